//! Periodic progress notifications, to watchers that want them and were sent nothing for a while.

use std::collections::VecDeque;

use super::response;
use super::watchers::{Watcher, Watchers};
use etcd_types::pb::etcdserverpb::WatchResponse;
use etcd_types::types::Revision;

/// The action of the next progress tick for a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressNotify {
    /// No notification, ever.
    Never,
    /// Sends a progress notification.
    Due,
    /// Sends nothing: an event was sent since the last tick.
    Elided,
}

impl Watchers {
    /// Returns every watcher that requested periodic progress notifications.
    pub(super) fn notified(&self) -> VecDeque<i64> {
        let wants = |watcher: &Watcher| watcher.notify != ProgressNotify::Never;
        self.by_id
            .iter()
            .filter(|(_, watcher)| wants(watcher))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Handles the tick of one watcher; `dispatched` is the revision of the stream's inbox.
    pub(super) fn tick(&mut self, id: i64, dispatched: Revision) -> Option<WatchResponse> {
        let watcher = self.by_id.get_mut(&id)?;
        let before = std::mem::replace(&mut watcher.notify, ProgressNotify::Due);
        let begun = watcher.start.is_none_or(|start| start <= dispatched);
        // If events beyond `dispatched` were already sent, the reported progress would go back.
        let known = watcher.subscription.next() - 1 <= dispatched;
        let due = before == ProgressNotify::Due && begun && known && !watcher.subscription.has_pending(dispatched);
        due.then(|| response::progress(self.shared.header(dispatched), id))
    }
}
