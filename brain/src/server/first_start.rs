//! Checks that apply only if no store exists yet.

use std::time::Duration;

use tokio::time::Instant;

use crate::flags::{Bootstrap, BootstrapError};

/// The time for which host names of peer URLs are resolved, as in etcd, and the pause between two attempts.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);
const RESOLVE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Checks the flags that begin a store.
pub(super) async fn check(bootstrap: &Bootstrap) -> anyhow::Result<()> {
    let until = Instant::now() + RESOLVE_TIMEOUT;
    loop {
        let checked = bootstrap.clone();
        match tokio::task::spawn_blocking(move || checked.check()).await? {
            Ok(()) => return Ok(()),
            Err(BootstrapError::Unresolved(why)) if Instant::now() < until => {
                tracing::warn!(reason = why, again_in = ?RESOLVE_RETRY_DELAY, "cannot compare the peer URLs of this member yet");
                tokio::time::sleep(RESOLVE_RETRY_DELAY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Logs which flags are not read because there is a store.
pub(super) fn ignore(bootstrap: &Bootstrap) {
    for fault in bootstrap.faults() {
        tracing::warn!(fault, "ignored a flag for the first start: the store exists");
    }
}
