//! Commits for followers, within the leader's process: a bounded broadcast channel.
//!
//! The leader does not wait for a follower. A follower that lags misses messages and reads the commits from the log.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast;

use crate::log::Slot;
use crate::types::Committed;

/// Events kept for a follower that lags. Each is at most as large as a batch of requests.
const KEPT: usize = 64;

/// Something that followers apply.
#[derive(Debug, Clone)]
pub enum CommitEvent {
    /// A batch was committed.
    Batch(CommittedBatch),
    /// Rows have advanced: the oldest versions in memory are in them now.
    Rows,
}

/// A committed batch.
#[derive(Debug, Clone)]
pub struct CommittedBatch {
    /// Its first slot.
    pub first: Slot,
    /// The slot behind its last one.
    pub next: Slot,
    /// The record; `None` when it takes several slots, and is better read from the log.
    pub payload: Option<Bytes>,
    /// Its events for watchers.
    pub events: Vec<Arc<Committed>>,
}

/// The sending side. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CommitFeed(broadcast::Sender<CommitEvent>);

impl Default for CommitFeed {
    fn default() -> Self {
        Self::new()
    }
}

impl CommitFeed {
    /// A feed without followers.
    #[must_use]
    pub fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Sends to all current followers.
    pub fn send(&self, event: CommitEvent) {
        // Nobody may be there.
        drop(self.0.send(event));
    }

    /// All events from now on. A receiver that lags has to read the log.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<CommitEvent> {
        self.0.subscribe()
    }
}
