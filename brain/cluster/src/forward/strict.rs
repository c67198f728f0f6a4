//! Strict reads: storage is checked for a later leader, once for all waiting reads.
//!
//! A lease relies on this machine's clock, which stops in a virtual machine that is paused. Storage does not.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use etcd_types::errors::Error;

/// Queue capacity; further reads block on send.
const READ_QUEUE_CAPACITY: usize = 10_000;

/// The minimum timeout of a read, and of one check of storage. The timeout is the time for which a leader continues without storage if that
/// is longer; both are shorter than the time for which a follower waits for its leader's answer.
const MIN_STRICT_READ_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Checks in storage whether a later leader has begun.
pub type LaterLeader = Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<bool>> + Send + Sync>;

/// The queue of reads that need a check. Reads that arrive while one check is in progress share the next one.
#[derive(Debug, Clone)]
pub struct StorageCheck {
    queue: mpsc::Sender<oneshot::Sender<Result<(), Error>>>,
    timeout: Duration,
}

impl StorageCheck {
    /// Creates the queue, and the task that checks storage for the waiting reads; it ends when all handles are dropped.
    pub fn new(later_leader: LaterLeader, renew_deadline: Duration) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, mut waiting) = mpsc::channel::<oneshot::Sender<Result<(), Error>>>(READ_QUEUE_CAPACITY);
        let timeout = renew_deadline.max(MIN_STRICT_READ_TIMEOUT);
        let task = async move {
            while let Some(first) = waiting.recv().await {
                let mut asked = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    asked.push(next);
                }
                let outcome = match tokio::time::timeout(timeout, later_leader()).await {
                    Ok(Ok(false)) => Ok(()),
                    Ok(Ok(true)) => Err(Error::NotLeader),
                    Ok(Err(error)) => {
                        tracing::debug!(error = format!("{error:#}"), "cannot ask storage for a later leader");
                        Err(Error::Timeout)
                    }
                    Err(_) => Err(Error::Timeout),
                };
                for read in asked {
                    // The reader may be gone.
                    let _gone = read.send(outcome);
                }
            }
        };
        (Self { queue, timeout }, task)
    }

    /// Succeeds if no later leader had begun when this was called. Fails with `not leader`, `request timed out` or `server
    /// stopped`.
    pub(super) async fn ask(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.queue.send(reply).await.map_err(|_| Error::Stopped)?;
            answer.await.map_err(|_| Error::Stopped)?
        };
        // It may wait for the check before its own, too.
        tokio::time::timeout(self.timeout, asked)
            .await
            .unwrap_or(Err(Error::Timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    /// Else its follower would take the leader for gone.
    #[tokio::test(start_paused = true)]
    async fn read_that_waits_for_two_checks_waits_no_longer_than_for_one() {
        let never = Box::new(|| Box::pin(std::future::pending()) as BoxFuture<'static, _>);
        let (check, task) = StorageCheck::new(never, Duration::from_secs(10));
        let reads = async {
            let begun = tokio::time::Instant::now();
            let second = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                check.ask().await
            };
            let asked = tokio::join!(check.ask(), second);
            assert_eq!(asked, (Err(Error::Timeout), Err(Error::Timeout)));
            assert_eq!(begun.elapsed(), Duration::from_secs(11));
        };
        tokio::select! {
            () = reads => {}
            () = task => panic!("somebody may ask yet"),
        }
    }

    #[tokio::test]
    async fn reads_that_wait_share_one_question_that_is_sent_after_they_came() {
        let (asked, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (count, permits) = (asked.clone(), answers.clone());
        let (check, task) = StorageCheck::new(
            Box::new(move || {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let permits = permits.clone();
                Box::pin(async move {
                    permits.acquire().await?.forget();
                    Ok(number == 2)
                })
            }),
            Duration::ZERO,
        );
        let reads = async {
            let first = check.ask();
            tokio::pin!(first);
            while asked.load(Ordering::SeqCst) == 0 {
                assert!(futures::poll!(&mut first).is_pending());
                tokio::task::yield_now().await;
            }
            // These arrive after the first check has begun.
            let others = futures::future::join_all((0..100).map(|_| check.ask()));
            let released = async { answers.add_permits(2) };
            let (first, others, ()) = tokio::join!(first, others, released);
            assert!(first.is_ok() && others.iter().all(Result::is_ok));
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            answers.add_permits(1);
            assert!(matches!(check.ask().await, Err(Error::NotLeader)));
        };
        tokio::select! {
            () = reads => {}
            () = task => panic!("somebody may ask yet"),
        }
    }
}
