//! Waits for storage that cannot be reached yet.

use std::time::Duration;

use tokio::time::Instant;

use crate::server::refusal;
use engine_tikv::ConnectError;
use net::not_ready::NotReady;
use runtime::backoff::Backoff;
use store::retry;

/// The pause between attempts.
const START_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// An attempt that failed after this time was too slow: the next one gets more time. A refused connection fails sooner.
const SLOW_ATTEMPT_TIME: Duration = Duration::from_millis(1500);

/// Repeats `attempt` until it succeeds or fails permanently, however long that takes; its argument is the number of attempts so far
/// that were too slow. The reason of each failure is logged and served by `/readyz`.
pub(crate) async fn until_reached<T>(
    waiting: &NotReady,
    attempt: impl AsyncFn(u32) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (mut pauses, mut slow, started) = (START_BACKOFF, 0, Instant::now());
    loop {
        let begun = Instant::now();
        match attempt(slow).await {
            Err(error) if is_transient(&error) => {
                waiting.because(refusal::of(&error));
                let (pause, took, waited) = (pauses.next_delay(), begun.elapsed(), started.elapsed());
                if took >= SLOW_ATTEMPT_TIME {
                    slow += 1;
                    tracing::warn!(
                        error = format!("{error:#}"),
                        again_in = ?pause,
                        ?took,
                        ?waited,
                        "TiKV does not answer, or too slowly: continuing the start with longer timeouts"
                    );
                } else {
                    tracing::warn!(error = format!("{error:#}"), again_in = ?pause, ?waited, "TiKV cannot be reached");
                }
                tokio::time::sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
}

fn is_transient(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ConnectError::Unreachable(_))) || retry::is_transient(error)
}
