//! The source of events that are no longer in the ring.

use async_trait::async_trait;
use std::sync::Arc;

use super::PrevKv;
use etcd_types::types::{Committed, Revision};

#[cfg(any(test, feature = "laws"))]
pub mod laws;
#[cfg(any(test, feature = "laws"))]
pub mod model;

/// The history of any store. Clones share it.
pub type DynHistory = Arc<dyn History>;

/// The committed revisions of a store, as far back as compaction has left them.
///
/// Laws, checked for every implementation by `history::laws`:
/// 1. `read` returns only published revisions, and every published revision that is not compacted.
/// 2. The compacted revision itself can still be read, including a deletion in it.
/// 3. Without `PrevKv::Included` no previous version is read or returned.
/// 4. `published` and `compacted` never go back, and return without waiting.
#[async_trait]
pub trait History: Send + Sync + 'static {
    /// Returns whole revisions at or after `from` in ascending order, without a gap: the first one, and then as many as fit into
    /// `max_bytes`. If `prev_kv` requests them, previous versions are filled in where compaction has left them, and count as bytes. Where
    /// those of one revision are more than there is memory for, that revision is returned alone, and its events say
    /// [that they were not read](etcd_types::types::Event::is_prev_unread).
    /// An empty result means that there is no such revision up to the published one.
    async fn read(
        &self,
        from: Revision,
        max_bytes: usize,
        prev_kv: PrevKv,
    ) -> Result<Vec<Arc<Committed>>, HistoryError>;

    /// Returns the newest revision that reads may return.
    fn published(&self) -> Revision;

    /// Returns the compacted revision; older ones are gone. Less than 1 if nothing was compacted.
    fn compacted(&self) -> Revision;
}

/// The reason why history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The requested revision is older than this compacted one: the watcher ends.
    #[error("revisions before {0} are compacted")]
    Compacted(Revision),
    /// History cannot be read now: try again later.
    #[error("cannot read history")]
    Unavailable(#[source] anyhow::Error),
}
