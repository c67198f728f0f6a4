//! Commits for followers, within the leader's process: a bounded broadcast channel.
//!
//! The leader does not wait for a follower. A follower that lags misses messages and reads the commits from the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::log::Slot;
use crate::types::{Committed, Event};

/// Events kept for a follower that lags.
const KEPT: usize = 64;

/// Bytes of records and previous versions that are kept for it. It reads further batches from the log.
const KEPT_BYTES: usize = 32 << 20;

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
    /// Its events for watchers. A follower has none without the record.
    pub events: Vec<Arc<Committed>>,
}

/// A batch as it is kept.
#[derive(Debug, Clone)]
struct Kept {
    event: CommitEvent,
    _bytes: Option<Arc<KeptBytes>>,
}

/// Bytes that count until all have received them, or nobody can any more.
#[derive(Debug)]
struct KeptBytes {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The sending side. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CommitFeed {
    sender: broadcast::Sender<Kept>,
    /// Bytes that are kept.
    bytes: Arc<AtomicUsize>,
}

/// The receiving side.
#[derive(Debug)]
pub struct Commits(broadcast::Receiver<Kept>);

impl Commits {
    /// The next event. A receiver that lags has to read the log.
    pub async fn recv(&mut self) -> Result<CommitEvent, RecvError> {
        self.0.recv().await.map(|kept| kept.event)
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
            sender: broadcast::Sender::new(KEPT),
            bytes: Arc::default(),
        }
    }

    /// Sends to all current followers.
    pub fn send(&self, event: CommitEvent) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let kept = match event {
            CommitEvent::Batch(batch) => self.keep(batch),
            event @ CommitEvent::Rows => Kept { event, _bytes: None },
        };
        // The last one may have gone.
        drop(self.sender.send(kept));
    }

    /// Counts the bytes of a batch, or leaves them out.
    fn keep(&self, batch: CommittedBatch) -> Kept {
        let bytes = batch
            .payload
            .as_ref()
            .map_or(0, |payload| payload.len() + previous(&batch.events));
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let kept = KeptBytes {
            bytes,
            of: self.bytes.clone(),
        };
        let is_room = before + bytes <= KEPT_BYTES;
        let batch = match batch.payload {
            Some(_) if is_room => batch,
            _ => CommittedBatch {
                payload: None,
                events: Vec::new(),
                ..batch
            },
        };
        Kept {
            _bytes: batch.payload.is_some().then(|| Arc::new(kept)),
            event: CommitEvent::Batch(batch),
        }
    }

    /// All events from now on.
    #[must_use]
    pub fn subscribe(&self) -> Commits {
        Commits(self.sender.subscribe())
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
    async fn batches_beyond_what_is_kept_are_read_from_the_log() {
        let feed = CommitFeed::new();
        let batch = |slot| {
            CommitEvent::Batch(CommittedBatch {
                first: Slot(slot),
                next: Slot(slot + 1),
                payload: Some(vec![0; 10 << 20].into()),
                events: Vec::new(),
            })
        };
        feed.send(batch(0));
        assert_eq!(feed.bytes.load(Ordering::Relaxed), 0, "nobody is there");
        let mut commits = feed.subscribe();
        let mut received = async |many: usize| {
            let mut with_payload = 0;
            for _ in 0..many {
                match commits.recv().await.unwrap() {
                    CommitEvent::Batch(batch) => with_payload += usize::from(batch.payload.is_some()),
                    CommitEvent::Rows => panic!("rows"),
                }
            }
            with_payload
        };
        for round in 0..2 {
            (0..5).for_each(|slot| feed.send(batch(slot)));
            assert_eq!(received(5).await, 3, "round {round}");
            assert_eq!(feed.bytes.load(Ordering::Relaxed), 0);
        }
    }
}
