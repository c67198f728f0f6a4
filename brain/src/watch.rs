//! Committed events to their watchers: in order, once, without a gap, a revision at a time.
//!
//! The writer only appends to the ring and goes on. The dispatcher finds the watchers of each event through
//! the index and leaves them positions in the ring; a watcher whose mailbox is full, or whose position fell
//! off the ring, catches up from [history](History) by itself. So no watcher can slow the writer or another watcher,
//! and none loses an event.
//!
//! Invariant: once `dispatched` is R, every event at or before R of every open mailbox is in it or was taken from it.

mod dispatch;
mod history;
mod hub;
mod index;
mod mailbox;
mod range;
mod replay;
mod ring;
mod subscription;

pub use self::history::{History, HistoryError};
#[cfg(test)]
pub(crate) use self::history::{laws, model};
pub use self::hub::Hub;
pub use self::mailbox::Inbox;
pub use self::range::{EmptyRange, KeyRange};
pub use self::replay::{Chunk, Replay};
pub use self::ring::{Entry, PrevKv};
pub use self::subscription::{Batch, EventFilter, Step, Subscription};

use self::ring::Limit;
use crate::types::Revision;

/// Bounds of everything that watching keeps in memory.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The ring: keys, values and their encodings, in bytes.
    pub ring_bytes: usize,
    /// Runs of events in one mailbox; one more and its watcher has to catch up.
    pub mailbox_runs: usize,
    /// Keys and values in one batch, in bytes; the revision that reaches it is finished.
    pub batch_bytes: usize,
    /// Events that are looked at for one batch; the revision that reaches it is finished.
    pub batch_events: usize,
    /// The bytes that are asked of history at once.
    pub chunk_bytes: usize,
    /// Chunks of history that are kept for other watchers, in bytes with their encodings.
    pub cache_bytes: usize,
    /// The longest key that the store takes, in bytes.
    pub key_bytes: usize,
}

impl Default for Options {
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

impl Options {
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
