//! What a leader tells those who follow it, within its process: a bounded ring of news.
//!
//! Nobody waits for a follower. One that is too slow misses news and reads what they said from the log.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast;

use crate::log::Slot;
use crate::mvcc::Committed;

/// News that are kept for a follower. Each is at most as large as a batch of requests.
const KEPT: usize = 64;

/// Something that followers have to know.
#[derive(Debug, Clone)]
pub enum News {
    /// A batch was committed.
    Batch(Shown),
    /// Rows have moved on: what was in memory longest is in them now.
    Rows,
}

/// A batch as the leader shows it.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its first slot.
    pub first: Slot,
    /// The slot behind its last one.
    pub next: Slot,
    /// The record; `None` when it takes several slots, and is better read from the log.
    pub payload: Option<Bytes>,
    /// What watchers see of it.
    pub events: Vec<Arc<Committed>>,
}

/// Where a leader leaves its news. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Feed(broadcast::Sender<News>);

impl Default for Feed {
    fn default() -> Self {
        Self::new()
    }
}

impl Feed {
    /// A feed that nobody follows yet.
    #[must_use]
    pub fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Tells all who follow now.
    pub fn tell(&self, news: News) {
        // Nobody may be there.
        drop(self.0.send(news));
    }

    /// All news from now on. A receiver that lags has to read the log.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<News> {
        self.0.subscribe()
    }
}
