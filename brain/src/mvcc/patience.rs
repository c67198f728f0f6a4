//! What the background does when storage is out of reach: it waits.

use std::time::Duration;

use crate::log::LogError;
use crate::rows::RowsError;

/// How long to wait before a medium is asked again that was out of reach, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Failures that may pass.
pub(super) trait Passing: std::error::Error + 'static {
    fn may_pass(&self) -> bool;
}

impl Passing for RowsError {
    fn may_pass(&self) -> bool {
        matches!(self, RowsError::Unavailable(_) | RowsError::Unknown(_))
    }
}

impl Passing for LogError {
    fn may_pass(&self) -> bool {
        matches!(self, LogError::Unavailable(_))
    }
}

/// Waits between attempts, a little longer each time.
pub(super) struct Patience(Duration);

impl Patience {
    pub(super) fn new() -> Patience {
        Patience(RETRY.0)
    }

    /// Answers when the attempt may be repeated.
    ///
    /// # Errors
    /// What does not pass.
    pub(super) async fn outlast<E: Passing>(&mut self, error: E) -> Result<(), E> {
        if !error.may_pass() {
            return Err(error);
        }
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the background waits for storage"
        );
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY.1);
        Ok(())
    }
}

/// Repeats what fails because a medium is out of reach. Whoever waits for the flush waits along, in bounded memory.
// A macro, for a function over `AsyncFnMut` cannot say that its future is `Send`.
macro_rules! reached {
    ($attempt:expr) => {{
        let mut patience = $crate::mvcc::patience::Patience::new();
        loop {
            match $attempt.await {
                Ok(value) => break Ok(value),
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
