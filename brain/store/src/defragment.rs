//! Giving back the space that rows and log do not need.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::state::StoreState;
use engine::log::DynLog;
use engine::rows::DynRows;
use mvcc::row::Manifest;

/// Maximum time to wait for a compaction that is under way, and for reads: the space of rows that it has not deleted yet, or that reads
/// still see, cannot be freed.
const COMPACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which the rows that reads see are checked during that time.
const READS_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Queue capacity; further clients block on send.
const QUEUE_CAPACITY: usize = 1000;

/// A queue of clients that wait for a defragmentation. One is under way at a time, and completes even if its clients disconnect;
/// clients that come during one share the next. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DefragmentQueue(mpsc::Sender<oneshot::Sender<Result<(), String>>>);

impl DefragmentQueue {
    /// Returns a queue, and the task that defragments for its clients; it ends when all handles on the queue are dropped.
    pub fn new<W>(defragment: impl Fn() -> W + Send) -> (Self, impl Future<Output = ()> + Send)
    where
        W: Future<Output = anyhow::Result<()>> + Send,
    {
        let (queue, mut waiting) = mpsc::channel::<oneshot::Sender<Result<(), String>>>(QUEUE_CAPACITY);
        let task = async move {
            while let Some(first) = waiting.recv().await {
                let mut asked = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    asked.push(next);
                }
                asked.retain(|asked| !asked.is_closed());
                if asked.is_empty() {
                    continue;
                }
                let outcome = defragment().await.map_err(|error| format!("{error:#}"));
                for asked in asked {
                    // A client that has gone away needs no answer.
                    let _gone = asked.send(outcome.clone());
                }
            }
        };
        (Self(queue), task)
    }

    /// Waits for a defragmentation that begins after this call. Fails if it fails, or if the process stops.
    pub async fn ask(&self) -> anyhow::Result<()> {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).await.context("the process stops")?;
        answer.await.context("the process stops")?.map_err(anyhow::Error::msg)
    }
}

/// Frees the space that compaction made obsolete, that of the log first, because that needs no room. Fails if log or rows fail, or have
/// no room for it.
pub async fn defragment(log: &DynLog, rows: &DynRows, state: &StoreState) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_deleted(state).await? {
        if begun.elapsed() >= COMPACTION_TIMEOUT {
            tracing::warn!(limit = ?COMPACTION_TIMEOUT, "the running compaction takes long; its space is freed later");
            break;
        }
        tokio::time::sleep(READS_CHECK_INTERVAL).await;
    }
    log.shrink().await?;
    Ok(rows.compact().await?)
}

/// Defragments if that is likely to free `threshold` bytes, because that many are not in use.
pub async fn at_start(queue: &DefragmentQueue, rows: &DynRows, state: &StoreState, threshold: u64) {
    let (before, in_use) = (state.total_size(rows), state.size_in_use(rows));
    if !is_worthwhile(before, in_use, threshold) {
        tracing::info!(
            size = before,
            in_use,
            threshold,
            "skipped the defragmentation at the start: it would free too little"
        );
        return;
    }
    match queue.ask().await {
        Ok(()) => tracing::info!(
            before,
            after = state.total_size(rows),
            "finished the defragmentation at the start"
        ),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "the defragmentation at the start failed; space is freed later");
        }
    }
}

fn is_worthwhile(size: u64, in_use: u64, threshold: u64) -> bool {
    size.saturating_sub(in_use) >= threshold
}

/// Returns true if the rows that are read now hold nothing that compaction made obsolete.
async fn is_deleted(state: &StoreState) -> anyhow::Result<bool> {
    let view = state.view();
    let Some(manifest) = view.rows.fence().await? else {
        return Ok(true);
    };
    let manifest = Manifest::decode(manifest).context("decode the fence")?;
    Ok(manifest.deleted_up_to >= view.compacted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::replica::Replica;
    use engine::log::MemLog;
    use engine::rows::mem::MemRows;

    #[tokio::test]
    async fn clients_that_wait_share_a_defragmentation_and_those_that_left_cause_none() {
        let (begun, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (count, permits) = (begun.clone(), ends.clone());
        let (defragmentations, task) = DefragmentQueue::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            let permits = permits.clone();
            async move {
                permits.acquire().await?.forget();
                Ok(())
            }
        });
        let clients = async {
            let mut first = Box::pin(defragmentations.ask());
            while begun.load(Ordering::SeqCst) == 0 {
                assert!(futures::poll!(&mut first).is_pending());
                tokio::task::yield_now().await;
            }
            // The defragmentation continues without its client.
            drop(first);
            // This stays below the number of operations after which tokio makes a task yield: all clients ask before the next
            // defragmentation begins.
            for _ in 0..20 {
                assert!(futures::poll!(Box::pin(defragmentations.ask())).is_pending());
            }
            let others = futures::future::join_all((0..20).map(|_| defragmentations.ask()));
            let ended = async { ends.add_permits(2) };
            let (others, ()) = tokio::join!(others, ended);
            assert!(others.iter().all(Result::is_ok));
            assert_eq!(begun.load(Ordering::SeqCst), 2);
        };
        tokio::select! {
        () = clients => {}
        () = task => panic!("somebody may ask yet"),
        }
    }

    #[test]
    fn defragmentation_at_the_start_is_for_space_that_is_not_in_use() {
        let (free, none) = (is_worthwhile(10, 7, 3), is_worthwhile(10, 8, 3));
        assert!(free && !none && !is_worthwhile(7, 10, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn compaction_under_way_is_waited_for_up_to_a_limit() {
        let rows: DynRows = Arc::new(MemRows::new());
        let manifest = Manifest {
            revision: 9,
            compacted: 9,
            deleted_up_to: 5,
            ..Manifest::fresh()
        };
        let stored = Bytes::from(manifest.encode_to_vec());
        rows.apply(None, stored.clone(), Vec::new()).await.unwrap();
        let log: DynLog = Arc::new(MemLog::new());
        let mut replica = Replica::load(&log, &rows).await.unwrap();
        let state = replica.state().clone();
        let begun = Instant::now();
        defragment(&log, &rows, &state).await.unwrap();
        assert_eq!(begun.elapsed(), COMPACTION_TIMEOUT);
        let done = Manifest {
            deleted_up_to: 9,
            ..manifest
        };
        rows.apply(Some(stored), done.encode_to_vec().into(), Vec::new())
            .await
            .unwrap();
        let begun = Instant::now();
        let shown = async {
            tokio::time::sleep(5 * READS_CHECK_INTERVAL).await;
            let snapshot = rows.snapshot().await.unwrap();
            replica.swap_rows(crate::replica::FlushResult {
                through: None,
                snapshot,
            });
        };
        let (outcome, ()) = tokio::join!(defragment(&log, &rows, &state), shown);
        outcome.unwrap();
        assert!(
            (5 * READS_CHECK_INTERVAL..COMPACTION_TIMEOUT).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}
