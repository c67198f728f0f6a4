//! Clients that want to be told when there is no leader: they say so in the metadata of a request.

use http::HeaderMap;
use tokio::sync::watch;

/// Whether the client wants to be told.
#[must_use]
pub fn is_required(headers: &HeaderMap) -> bool {
    headers
        .get("hasleader")
        .is_some_and(|value| value.as_bytes() == b"true")
}

/// Whether there is none now, for a client that wants to be told.
#[must_use]
pub fn refuses(headers: &HeaderMap, has_leader: &watch::Receiver<bool>) -> bool {
    is_required(headers) && !*has_leader.borrow()
}

/// Ends when there is none any more; never for those who do not want to be told.
pub async fn lost(has_leader: Option<watch::Receiver<bool>>) {
    if let Some(mut has_leader) = has_leader
        && has_leader.wait_for(|has| !has).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
