//! The source of events that the ring no longer has.

use std::sync::Arc;

use super::PrevKv;
use crate::types::{Committed, Revision};

#[cfg(test)]
pub(crate) mod laws;
#[cfg(test)]
pub(crate) mod model;

/// The committed revisions of a store, as far back as compaction left them.
///
/// Laws, checked for every implementation by `history::laws`:
/// 1. `read` shows only what is published, and every published revision that is not compacted.
/// 2. The compacted revision itself can still be read, a deletion in it included.
/// 3. Without `PrevKv::Included` no previous version is read or answered.
/// 4. `published` and `compacted` never go back, and answer without waiting.
pub trait History: Send + Sync + 'static {
    /// Whole revisions at or after `from` in ascending order, without a gap: the first one, and then as many as fit
    /// into `max_bytes`. Previous versions are filled in where compaction left them if `prev_kv` asks for them, and
    /// count as bytes. Nothing means that there is no such revision up to the published one.
    fn read(
        &self,
        from: Revision,
        max_bytes: usize,
        prev_kv: PrevKv,
    ) -> impl Future<Output = Result<Vec<Arc<Committed>>, HistoryError>> + Send;

    /// The newest revision that reads may show.
    fn published(&self) -> Revision;

    /// The compacted revision; older ones are gone. Less than 1 when nothing was compacted.
    fn compacted(&self) -> Revision;
}

/// Why history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The revision asked for is older than this compacted one: the watcher ends.
    #[error("revisions before {0} are compacted")]
    Compacted(Revision),
    /// Ask again later.
    #[error("history cannot be read")]
    Unavailable(#[source] anyhow::Error),
}
