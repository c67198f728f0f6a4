//! The only way to start a task. A task that ends early ends the process.

use std::future::Future;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The long-lived tasks of the process.
///
/// The first task that fails, panics or ends before `stop` was cancelled ends the process, so that no partly working operator remains.
#[derive(Debug)]
pub(crate) struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Tasks {
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            stop,
        }
    }

    /// Starts `task` under a name that appears in errors.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits for all tasks. After a failure it waits for no other task: a replica that lost the Lease must not finish its writes. The other
    /// tasks are aborted, and end with the runtime.
    ///
    /// # Errors
    /// The first failure, with the name of its task.
    pub(crate) async fn join(mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.set.join_next().await {
            match ended {
                Ok((name, Err(error))) => return Err(error.context(format!("task {name:?} failed"))),
                Ok((name, Ok(()))) if !self.stop.is_cancelled() => anyhow::bail!("task {name:?} ended early"),
                Ok(_) => {}
                Err(panic) => return Err(anyhow::Error::new(panic).context("a task panicked")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// Sets its flag after a minute.
    async fn slow(finished: Arc<AtomicBool>) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_secs(60)).await;
        finished.store(true, Ordering::SeqCst);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn failure_waits_for_nobody() {
        let finished = Arc::<AtomicBool>::default();
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("slow", slow(finished.clone()));
        tasks.spawn("election", async { anyhow::bail!("lost") });
        let error = tasks.join().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task \"election\" failed: lost");
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(!finished.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_everybody() {
        let finished = Arc::<AtomicBool>::default();
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        tasks.spawn("slow", slow(finished.clone()));
        stop.cancel();
        tasks.spawn("quick", async { Ok(()) });
        tasks.join().await.unwrap();
        assert!(finished.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn task_that_ends_early_is_a_failure() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("http", async { Ok(()) });
        assert_eq!(tasks.join().await.unwrap_err().to_string(), "task \"http\" ended early");
    }
}
