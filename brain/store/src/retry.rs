//! Retries with backoff for background work while storage is unreachable or full.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use engine::log::LogError;
use engine::rows::RowsError;
use runtime::backoff::Backoff;

/// The pause before an attempt is repeated.
const STORAGE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The process stops while storage is out of reach.
#[derive(Debug, thiserror::Error)]
#[error("stopped while waiting for storage")]
pub(super) struct RetryInterrupted;

/// Errors that may be transient.
pub(super) trait MaybeTransient: std::error::Error + Send + Sync + 'static {
    fn is_transient(&self) -> bool;
}

impl MaybeTransient for RowsError {
    fn is_transient(&self) -> bool {
        matches!(
            self,
            RowsError::Unavailable(_) | RowsError::Unknown(_) | RowsError::Full(_)
        )
    }
}

impl MaybeTransient for LogError {
    fn is_transient(&self) -> bool {
        matches!(self, LogError::Unavailable(_))
    }
}

/// Returns true if storage is unreachable or full, rather than damaged or owned by another cluster.
#[must_use]
pub fn is_transient(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(RowsError::is_transient)
            || cause.downcast_ref().is_some_and(LogError::is_transient)
    })
}

/// Pauses between attempts, which end at a stop.
pub(super) struct RetryPauses<'a> {
    stop: &'a CancellationToken,
    backoff: Backoff,
}

impl<'a> RetryPauses<'a> {
    pub(super) fn new(stop: &'a CancellationToken) -> Self {
        Self {
            stop,
            backoff: STORAGE_BACKOFF,
        }
    }

    /// Waits until the attempt may be repeated after a transient error. Returns any other error, and [`RetryInterrupted`] on a stop.
    pub(super) async fn after<E: MaybeTransient>(&mut self, error: E) -> anyhow::Result<()> {
        if !error.is_transient() {
            return Err(error.into());
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "storage is unreachable or full; background work will retry"
        );
        tokio::select! {
            () = self.stop.cancelled() => return Err(RetryInterrupted.into()),
            () = tokio::time::sleep(self.backoff.next_delay()) => {}
        }
        Ok(())
    }
}

/// Repeats an attempt that fails with a transient error. Tasks that wait for the flush wait as well; their memory is bounded.
// A macro, for a function over `AsyncFnMut` cannot say that its future is `Send`.
macro_rules! retry {
    ($stop:expr, $attempt:expr) => {{
        let mut pauses = $crate::retry::RetryPauses::new($stop);
        loop {
            match $attempt.await {
                Ok(value) => break anyhow::Ok(value),
                Err(error) => {
                    if let Err(error) = pauses.after(error).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}
pub(super) use retry;
