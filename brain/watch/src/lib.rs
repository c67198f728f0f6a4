//! Delivers committed events to watchers: in order, once, without gaps, one revision at a time.
//!
//! The writer only appends to the ring and continues. The dispatcher finds the watchers of each event in the index and delivers to
//! them positions in the ring; a watcher whose mailbox is full, or whose position was evicted from the ring, catches up from
//! [history](History) by itself. So no watcher can delay the writer or another watcher, and none loses an event.
//!
//! Invariant: once `dispatched` is R, every event at or before R of every open mailbox is in it or was taken from it.
//!
//! It must not know how requests arrive, nor where history is kept.

mod dispatch;
mod history;
mod history_cache;
mod hub;
mod index;
mod mailbox;
mod range;

mod ring;
mod subscription;

pub use self::history::{DynHistory, History, HistoryError};
#[cfg(any(test, feature = "laws"))]
pub use self::history::{laws, model};
pub use self::history_cache::{Chunk, Replay};
pub use self::hub::{Gauges, Hub, WatchStart};
pub use self::mailbox::Inbox;
pub use self::range::{EmptyRange, KeyRange};
pub use self::ring::{Entry, PrevKv};
pub use self::subscription::{EventBatch, EventFilter, Subscription, SubscriptionStep};

use self::ring::Limit;
use etcd_types::types::Revision;

/// The limits of everything that watching keeps in memory.
#[derive(Debug, Clone, Copy)]
pub struct WatchLimits {
    /// The size of the ring in bytes: keys, values and their encodings.
    pub ring_bytes: usize,
    /// The most runs of events in one mailbox; a watcher with more must catch up from history.
    pub mailbox_runs: usize,
    /// The bytes of keys and values in one batch; the revision that reaches the limit is completed.
    pub batch_bytes: usize,
    /// The events that are examined for one batch; the revision that reaches the limit is completed.
    pub batch_events: usize,
    /// The bytes that one read of history requests.
    pub chunk_bytes: usize,
    /// The size in bytes of the cache of history chunks, with their encodings.
    pub cache_bytes: usize,
    /// The longest key that the store accepts, in bytes.
    pub key_bytes: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            ring_bytes: 32 << 20,
            mailbox_runs: 128,
            batch_bytes: 32 << 10,
            batch_events: 1024,
            chunk_bytes: 1 << 20,
            cache_bytes: 16 << 20,
            key_bytes: 64 << 10,
        }
    }
}

impl WatchLimits {
    fn batch(&self, through: Revision) -> Limit {
        Limit {
            events: self.batch_events,
            bytes: self.batch_bytes,
            through,
        }
    }
}

#[cfg(test)]
mod tests;
