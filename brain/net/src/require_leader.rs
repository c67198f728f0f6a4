//! etcd's `hasleader` metadata: the client requires an error if there is no leader, instead of a wait.

use http::HeaderMap;
use tokio::sync::watch;

/// Returns true if the client requires a leader.
#[must_use]
pub fn is_required(headers: &HeaderMap) -> bool {
    headers
        .get("hasleader")
        .is_some_and(|value| value.as_bytes() == b"true")
}

/// Returns true if the client requires a leader and there is none.
#[must_use]
pub fn refuses(headers: &HeaderMap, has_leader: &watch::Receiver<bool>) -> bool {
    is_required(headers) && !*has_leader.borrow()
}

/// Completes when there is no leader any more; never if `has_leader` is `None`, because the client requires none.
pub async fn lost(has_leader: Option<watch::Receiver<bool>>) {
    if let Some(mut has_leader) = has_leader
        && has_leader.wait_for(|has| !has).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
