//! Waits for storage that cannot be reached yet.

use std::time::Duration;

use brain::member::waiting::Waiting;
use brain::mvcc::patience;
use brain::tikv::ConnectError;

/// How long to wait before storage is tried again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Tries until it succeeds, or fails in a way that does not pass; each attempt is told how many failed. Each pause begins with
/// a word about the reason, which is shown to those who ask whether this member is ready, too.
pub(crate) async fn outlast<T>(
    waiting: &Waiting,
    attempt: impl AsyncFn(u32) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (mut pause, mut failures) = (PAUSE.0, 0);
    loop {
        match attempt(failures).await {
            Err(error) if may_pass(&error) => {
                waiting.because(format!("{error:#}"));
                tracing::warn!(error = format!("{error:#}"), again_in = ?pause, "TiKV cannot be reached");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
                failures += 1;
            }
            outcome => return outcome,
        }
    }
}

fn may_pass(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ConnectError::Unreachable(_))) || patience::may_pass(error)
}
