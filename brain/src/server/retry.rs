//! Waits for storage that cannot be reached yet.

use std::time::Duration;

use crate::refusal::Refusal;
use crate::server::not_ready::NotReady;
use crate::storage::retry;
use crate::tikv::ConnectError;

/// The first and the longest pause between attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Repeats `attempt` until it succeeds or fails permanently; its argument is the number of failures so far. The reason of each
/// failure is logged and served by `/readyz`.
pub(crate) async fn until_reached<T>(
    waiting: &NotReady,
    attempt: impl AsyncFn(u32) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (mut pause, mut failures) = (PAUSE.0, 0);
    loop {
        match attempt(failures).await {
            Err(error) if is_transient(&error) => {
                waiting.because(Refusal::of(&error));
                tracing::warn!(error = format!("{error:#}"), again_in = ?pause, "TiKV cannot be reached");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
                failures += 1;
            }
            outcome => return outcome,
        }
    }
}

fn is_transient(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ConnectError::Unreachable(_))) || retry::is_transient(error)
}
