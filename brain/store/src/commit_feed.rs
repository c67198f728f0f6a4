//! Commits for followers, within the leader's process: a bounded broadcast channel.
//!
//! The leader does not wait for a follower. A follower that lags misses messages and reads the commits from the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use engine::log::Slot;
use etcd_types::types::{Committed, Event};

/// Events kept for a follower that lags.
const MAX_KEPT_EVENTS: usize = 64;

/// Bytes of records and previous versions that are kept for it. Of more the oldest are given up: it reads them from the log, and those who
/// do not lag have received them.
const MAX_KEPT_BYTES: usize = 32 << 20;

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
    /// The slot after its last one.
    pub next: Slot,
    /// The record; `None` when it takes several slots, and is better read from the log.
    pub payload: Option<Bytes>,
    /// Its events for watchers. A follower has none without the record.
    pub events: Vec<Arc<Committed>>,
}

/// An event as it is kept.
#[derive(Debug, Clone)]
enum FeedMessage {
    Batch(Arc<KeptBatch>),
    Rows,
}

/// A batch as it is kept.
#[derive(Debug)]
struct KeptBatch {
    first: Slot,
    next: Slot,
    content: Mutex<Option<KeptContent>>,
}

impl KeptBatch {
    fn content(&self) -> MutexGuard<'_, Option<KeptContent>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(&self) -> CommittedBatch {
        let content = self.content();
        CommittedBatch {
            first: self.first,
            next: self.next,
            payload: content.as_ref().map(|content| content.payload.clone()),
            events: content.as_ref().map_or_else(Vec::new, |content| content.events.clone()),
        }
    }
}

/// The record and the events of a batch: the feed drops them when it keeps too many bytes.
#[derive(Debug)]
struct KeptContent {
    payload: Bytes,
    events: Vec<Arc<Committed>>,
    _bytes: KeptBytes,
}

/// Bytes that count until all followers have received them, or none can receive them any more.
#[derive(Debug)]
struct KeptBytes {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl KeptBytes {
    fn new(bytes: usize, of: Arc<AtomicUsize>) -> Self {
        of.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, of }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The sending side. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CommitFeed {
    sender: broadcast::Sender<FeedMessage>,
    /// The batches that some follower has not received, the oldest first.
    kept: Arc<Mutex<VecDeque<Weak<KeptBatch>>>>,
    /// Bytes that are kept.
    bytes: Arc<AtomicUsize>,
}

/// The receiving side.
#[derive(Debug)]
pub struct CommitReceiver(broadcast::Receiver<FeedMessage>);

impl CommitReceiver {
    /// Returns the next event. A receiver that lags must read the log.
    pub async fn recv(&mut self) -> Result<CommitEvent, RecvError> {
        self.0.recv().await.map(|message| match message {
            FeedMessage::Batch(kept) => CommitEvent::Batch(kept.batch()),
            FeedMessage::Rows => CommitEvent::Rows,
        })
    }
}

impl Default for CommitFeed {
    fn default() -> Self {
        Self::new()
    }
}

impl CommitFeed {
    /// A feed without followers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(MAX_KEPT_EVENTS),
            kept: Arc::default(),
            bytes: Arc::default(),
        }
    }

    /// Sends to all current followers.
    pub fn send(&self, event: CommitEvent) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let message = match event {
            CommitEvent::Batch(batch) => FeedMessage::Batch(self.keep(batch)),
            CommitEvent::Rows => FeedMessage::Rows,
        };
        // The last one may have gone.
        drop(self.sender.send(message));
    }

    /// Counts the bytes of a batch, and gives up what is too much with it.
    fn keep(&self, batch: CommittedBatch) -> Arc<KeptBatch> {
        let bytes = batch
            .payload
            .as_ref()
            .map_or(0, |payload| payload.len() + previous(&batch.events));
        // A batch that exceeds the limit by itself would be dropped only after all others.
        let payload = batch.payload.filter(|_| bytes <= MAX_KEPT_BYTES);
        let content = payload.map(|payload| KeptContent {
            payload,
            events: batch.events,
            _bytes: KeptBytes::new(bytes, self.bytes.clone()),
        });
        let new = Arc::new(KeptBatch {
            first: batch.first,
            next: batch.next,
            content: Mutex::new(content),
        });
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.strong_count() > 0);
        kept.push_back(Arc::downgrade(&new));
        while self.bytes.load(Ordering::Relaxed) > MAX_KEPT_BYTES
            && let Some(oldest) = kept.pop_front()
        {
            drop(oldest.upgrade().and_then(|oldest| oldest.content().take()));
        }
        new
    }

    /// All events from now on.
    #[must_use]
    pub fn subscribe(&self) -> CommitReceiver {
        CommitReceiver(self.sender.subscribe())
    }
}

/// Bytes of the versions before events, and of what is made of each event.
fn previous(events: &[Arc<Committed>]) -> usize {
    let events = events.iter().flat_map(|committed| &committed.events);
    let bytes = events.map(|event| size_of::<Event>() + event.prev_kv.as_ref().map_or(0, |kv| kv.value.len()));
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn batches_beyond_what_is_kept_are_read_from_the_log_by_who_lags() {
        let feed = CommitFeed::new();
        let batch = |slot, bytes| {
            CommitEvent::Batch(CommittedBatch {
                first: Slot(slot),
                next: Slot(slot + 1),
                payload: Some(vec![0; bytes].into()),
                events: Vec::new(),
            })
        };
        feed.send(batch(0, 10 << 20));
        assert_eq!(feed.bytes.load(Ordering::Relaxed), 0, "nobody is there");
        let (mut commits, mut lagging) = (feed.subscribe(), feed.subscribe());
        let next = async |commits: &mut CommitReceiver| match commits.recv().await.unwrap() {
            CommitEvent::Batch(batch) => (batch.first.0, batch.payload.is_some()),
            CommitEvent::Rows => panic!("rows"),
        };
        for round in 0..2 {
            for slot in 0..5 {
                feed.send(batch(slot, 10 << 20));
                assert_eq!(next(&mut commits).await, (slot, true), "round {round}");
                assert!(feed.bytes.load(Ordering::Relaxed) <= MAX_KEPT_BYTES);
            }
            feed.send(batch(5, MAX_KEPT_BYTES + 1));
            assert_eq!(next(&mut commits).await, (5, false), "alone too much");
            for slot in 0..6 {
                let is_kept = (2..5).contains(&slot);
                assert_eq!(next(&mut lagging).await, (slot, is_kept), "round {round}");
            }
            assert_eq!(feed.bytes.load(Ordering::Relaxed), 0);
        }
    }
}
