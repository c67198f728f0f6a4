//! What is done when storage is out of reach or full: whoever works in the background waits, until it is to stop.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::log::LogError;
use crate::rows::RowsError;

/// How long to wait before storage is asked again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The process stops while storage is out of reach.
#[derive(Debug, thiserror::Error)]
#[error("stopped while waiting for storage")]
pub(super) struct Interrupted;

/// Failures that may pass.
pub(super) trait Passing: std::error::Error + Send + Sync + 'static {
    fn may_pass(&self) -> bool;
}

impl Passing for RowsError {
    fn may_pass(&self) -> bool {
        matches!(
            self,
            RowsError::Unavailable(_) | RowsError::Unknown(_) | RowsError::Full(_)
        )
    }
}

impl Passing for LogError {
    fn may_pass(&self) -> bool {
        matches!(self, LogError::Unavailable(_))
    }
}

/// Whether an error says that storage is out of reach or full, rather than damaged or somebody else's.
#[must_use]
pub fn may_pass(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(RowsError::may_pass) || cause.downcast_ref().is_some_and(LogError::may_pass)
    })
}

/// Waits between attempts, a little longer each time.
pub(super) struct Patience<'a> {
    stop: &'a CancellationToken,
    pause: Duration,
}

impl<'a> Patience<'a> {
    pub(super) fn new(stop: &'a CancellationToken) -> Self {
        let pause = RETRY.0;
        Self { stop, pause }
    }

    /// Answers when the attempt may be repeated.
    ///
    /// # Errors
    /// What does not pass, or [`Interrupted`].
    pub(super) async fn outlast<E: Passing>(&mut self, error: E) -> anyhow::Result<()> {
        if !error.may_pass() {
            return Err(error.into());
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the background waits for storage"
        );
        tokio::select! {
            () = self.stop.cancelled() => return Err(Interrupted.into()),
            () = tokio::time::sleep(self.pause) => {}
        }
        self.pause = (self.pause * 2).min(RETRY.1);
        Ok(())
    }
}

/// Repeats what fails because storage is out of reach. Whoever waits for the flush waits along, in bounded memory.
// A macro, for a function over `AsyncFnMut` cannot say that its future is `Send`.
macro_rules! reached {
    ($stop:expr, $attempt:expr) => {{
        let mut patience = $crate::mvcc::patience::Patience::new($stop);
        loop {
            match $attempt.await {
                Ok(value) => break anyhow::Ok(value),
                Err(error) => {
                    if let Err(error) = patience.outlast(error).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}
pub(super) use reached;
