//! Waits for a compaction's deletions, as long as they make progress.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use etcd_types::errors::Error;
use etcd_types::types::Revision;
use store::state::CompactionProgress;

/// The time without progress after which the wait ends: while a disk is full, the deletions would never end.
const COMPACTION_STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until everything that compaction up to `revision` made obsolete is deleted. Fails with [`Error::Stopped`] when the server
/// stops, with [`Error::Timeout`] when there is no progress; the compaction itself is done.
pub(super) async fn wait(
    mut progress: watch::Receiver<CompactionProgress>,
    revision: Revision,
    stop: &CancellationToken,
) -> Result<(), Error> {
    while progress.borrow_and_update().up_to < revision {
        tokio::select! {
            changed = tokio::time::timeout(COMPACTION_STALL_TIMEOUT, progress.changed()) => match changed {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Error::Stopped),
                Err(_) => return Err(Error::Timeout),
            },
            () = stop.cancelled() => return Err(Error::Stopped),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn after(steps: u64, up_to: Revision) -> CompactionProgress {
        CompactionProgress { up_to, steps }
    }

    #[tokio::test(start_paused = true)]
    async fn deletions_are_waited_for_as_long_as_they_go_forward() {
        let (progress, seen) = watch::channel(after(0, 3));
        let began = Instant::now();
        let stop = CancellationToken::new();
        let work = async {
            for step in 1..10 {
                tokio::time::sleep(COMPACTION_STALL_TIMEOUT / 2).await;
                progress.send_replace(after(step, 3));
            }
            progress.send_replace(after(10, 7));
        };
        let (waited, ()) = tokio::join!(wait(seen, 7, &stop), work);
        assert!(waited.is_ok(), "{waited:?}");
        assert!(began.elapsed() > 4 * COMPACTION_STALL_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_deletions_without_end() {
        let (_progress, seen) = watch::channel(after(0, 3));
        let stop = CancellationToken::new();
        let stuck = wait(seen.clone(), 7, &stop).await;
        assert!(matches!(stuck, Err(Error::Timeout)), "{stuck:?}");
        let began = Instant::now();
        stop.cancel();
        let stopped = wait(seen.clone(), 7, &stop).await;
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(wait(seen, 3, &stop).await.is_ok(), "nothing was left to wait for");
    }
}
