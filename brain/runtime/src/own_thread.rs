//! A separate thread for tasks that must continue however busy the other threads are.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A runtime in a thread of its own. Ten thousands of requests at once fill the queues of the other threads, and each step of a task there
/// waits for its turn; the operating system gives this one its share of a processor. It ends with the last clone.
#[derive(Debug, Clone)]
pub struct OwnThread {
    handle: Handle,
    _running: Arc<DropGuard>,
}

impl OwnThread {
    /// Starts the thread; the operating system shows the first 15 bytes of `name`.
    ///
    /// # Errors
    /// There can be no more threads or files.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(stopped.cancelled()))?;
        Ok(Self {
            handle,
            _running: Arc::new(stop.drop_guard()),
        })
    }

    /// Runs a task there, with what it spawns; it is aborted when this is dropped.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(self, task: impl Future<Output = T> + Send + 'static) -> anyhow::Result<T> {
        let mut set = JoinSet::new();
        set.spawn_on(task, &self.handle);
        let ended = set.join_next().await.context("a task is gone")?;
        ended.context("a task panicked")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The only thread of the test is blocked while the task works.
    #[tokio::test]
    async fn task_goes_on_while_the_other_threads_are_busy() {
        let own = OwnThread::start("own").unwrap();
        let (steps, done) = mpsc::sync_channel(3);
        let mut task = Box::pin(own.run(async move {
            for step in 0..3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                steps.send(step).unwrap();
            }
            thread::current().name().map(str::to_owned)
        }));
        assert!(futures_poll(&mut task).await.is_none(), "it has begun");
        for step in 0..3 {
            assert_eq!(done.recv_timeout(Duration::from_secs(30)), Ok(step));
        }
        assert_eq!(task.await.unwrap().as_deref(), Some("own"));
    }

    async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn panic_is_an_error_and_a_task_that_nobody_waits_for_is_aborted() {
        let own = OwnThread::start("own").unwrap();
        let panicked = own.clone().run(async { panic!("said the task") }).await;
        assert!(format!("{:#}", panicked.unwrap_err()).contains("a task panicked"));
        let (held, mut gone) = tokio::sync::mpsc::channel::<()>(1);
        let task = own.run(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let waited = tokio::time::timeout(Duration::from_millis(10), task).await;
        assert!(waited.is_err());
        assert_eq!(gone.recv().await, None);
    }
}
