//! The only ways to start a task: one of the process, whose early end stops the process, or one that its owner waits for.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

/// The time for which tasks may take to end after the stop. The supervisor of the process kills it at some later time, without
/// notice.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The long-lived tasks of the process.
///
/// A task that fails, panics or ends before the stop stops all others: a partially running server must not serve.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: BTreeMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Tasks {
    /// Creates an empty set; `stop` is cancelled by the first task that ends.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            names: BTreeMap::new(),
            stop,
        }
    }

    /// Starts `task` with a name that errors contain.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let task = self.set.spawn(task);
        self.names.insert(task.id(), name);
    }

    /// Aborts all tasks, as if the process were killed.
    pub async fn abort(mut self) {
        self.set.shutdown().await;
    }

    /// Waits for all tasks, but not indefinitely after the stop. The first task that fails, panics or ends before the stop stops
    /// the others, and is the error; a task that ended before the stop without a failure is the error only if none failed, because
    /// a failure may be the reason. The error contains the name of the task.
    pub async fn join(mut self) -> anyhow::Result<()> {
        let stop = self.stop.clone();
        let too_late = async move {
            stop.cancelled().await;
            tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
        };
        let (mut first, mut early) = (Ok(()), Ok(()));
        tokio::select! {
            () = self.join_all(&mut first, &mut early) => {}
            () = too_late => {
                let left: Vec<_> = self.names.values().copied().collect();
                first = first.and(Err(anyhow::anyhow!("tasks {left:?} did not end within {SHUTDOWN_TIMEOUT:?} of the stop")));
                self.set.shutdown().await;
            }
        }
        first.and(early)
    }

    async fn join_all(&mut self, first: &mut anyhow::Result<()>, early: &mut anyhow::Result<()>) {
        while let Some(ended) = self.set.join_next_with_id().await {
            let (id, outcome) = match ended {
                Ok((id, outcome)) => (id, Ok(outcome)),
                Err(panic) => (panic.id(), Err(panic)),
            };
            let name = self.names.remove(&id).unwrap_or_default();
            let outcome = match outcome {
                Ok(Err(error)) => Err(error.context(format!("task {name:?} failed"))),
                Ok(Ok(())) if !self.stop.is_cancelled() => {
                    *early = Err(anyhow::anyhow!("task {name:?} ended early"));
                    self.stop.cancel();
                    continue;
                }
                Ok(Ok(())) => Ok(()),
                Err(panic) => Err(anyhow::Error::new(panic).context(format!("task {name:?} panicked"))),
            };
            if outcome.is_err() {
                self.stop.cancel();
            }
            if first.is_ok() {
                *first = outcome;
            }
        }
    }
}

/// A task that its owner waits for, as a future. It is aborted on drop.
#[derive(Debug)]
pub struct Owned<T>(JoinSet<T>);

impl<T: Send + 'static> Owned<T> {
    /// Starts the task.
    pub fn start(task: impl Future<Output = T> + Send + 'static) -> Self {
        let mut set = JoinSet::new();
        set.spawn(task);
        Self(set)
    }

    /// Waits for its end. Fails if it panicked.
    ///
    /// # Panics
    /// If its end was already returned.
    pub async fn end(&mut self) -> anyhow::Result<T> {
        let ended = self.0.join_next().await.expect("asked once for its end");
        ended.context("a task panicked")
    }

    /// Aborts the task, and waits until it has ended.
    pub async fn abort(mut self) {
        self.0.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_named() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let stopped = stop.clone();
        tasks.spawn("good", async move {
            stopped.cancelled().await;
            Ok(())
        });
        tasks.spawn("stuck", std::future::pending());
        stop.cancel();
        let error = tasks.join().await.unwrap_err().to_string();
        assert!(error.contains("stuck") && !error.contains("good"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_before_an_early_end() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        tasks.spawn("early", async { Ok(()) });
        let stopped = stop.clone();
        tasks.spawn("failing", async move {
            stopped.cancelled().await;
            Err(anyhow::anyhow!("the reason"))
        });
        let error = format!("{:#}", tasks.join().await.unwrap_err());
        assert!(error.contains("failing") && error.contains("the reason"), "{error}");
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("early", async { Ok(()) });
        assert!(tasks.join().await.unwrap_err().to_string().contains("early"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_stops_the_others_and_is_the_error() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let stopped = stop.clone();
        tasks.spawn("waiting", async move {
            stopped.cancelled().await;
            Err(anyhow::anyhow!("later"))
        });
        tasks.spawn("failing", async { Err(anyhow::anyhow!("the reason")) });
        let error = format!("{:#}", tasks.join().await.unwrap_err());
        assert!(error.contains("failing") && error.contains("the reason"), "{error}");
    }
}
