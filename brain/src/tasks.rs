//! The only ways to start a task: one of the process, which ends it when it ends early, or one that its owner waits for.

use std::future::Future;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The long-lived tasks of the process.
///
/// A task that fails, panics or ends before the stop stops all others: a half-dead server must not serve.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Tasks {
    /// No tasks yet; `stop` is cancelled by the first one that ends.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            stop,
        }
    }

    /// Starts `task` under a name that errors will carry.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Ends all tasks where they stand, as a killed process would.
    pub async fn abort(mut self) {
        self.set.shutdown().await;
    }

    /// Waits for all tasks. The first that fails, panics or ends before the stop stops the others, and is the error.
    ///
    /// # Errors
    /// The first failure, under the name of its task.
    pub async fn join(mut self) -> anyhow::Result<()> {
        let mut first = Ok(());
        while let Some(ended) = self.set.join_next().await {
            let outcome = match ended {
                Ok((name, Err(error))) => Err(error.context(format!("task {name:?} failed"))),
                Ok((name, Ok(()))) if !self.stop.is_cancelled() => Err(anyhow::anyhow!("task {name:?} ended early")),
                Ok(_) => Ok(()),
                Err(panic) => Err(anyhow::Error::new(panic).context("a task panicked")),
            };
            if outcome.is_err() {
                self.stop.cancel();
            }
            first = first.and(outcome);
        }
        first
    }
}

/// A task that its owner waits for, as a future. It ends where it stands when this is dropped.
#[derive(Debug)]
pub struct Owned<T>(JoinSet<T>);

impl<T: Send + 'static> Owned<T> {
    /// Starts it.
    pub fn start(task: impl Future<Output = T> + Send + 'static) -> Self {
        let mut set = JoinSet::new();
        set.spawn(task);
        Self(set)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It panicked.
    ///
    /// # Panics
    /// When its end was answered before.
    pub async fn end(&mut self) -> anyhow::Result<T> {
        let ended = self.0.join_next().await.expect("asked once for its end");
        ended.context("a task panicked")
    }

    /// Ends it where it stands, and waits until it is gone.
    pub async fn abort(mut self) {
        self.0.shutdown().await;
    }
}
