//! Follows the log without a leader: applies records of others once something later proves that they are committed.
//!
//! Even the writer of a readable record may not know yet that it is committed, and no member may be newer than the leader. The proof is a
//! barrier, or a slot a whole window later, which a writer takes only once the slots before the window are committed.

use std::collections::VecDeque;

use prost::Message;

use super::{Replica, StoreOpenError};
use engine::log::frame::{Barrier, WINDOW_SLOTS};
use engine::log::reader::{LogEntry, Reader};
use engine::log::{DynLog, Slot};
use mvcc::record::Record;

/// Bytes that are read at once: enough to be faster than the writer.
const READ_CHUNK_BYTES: usize = 4 << 20;

/// The position at which a replica continues to read the log.
pub struct LogTail {
    log: DynLog,
    reader: Reader,
    began: Slot,
    /// Read, but perhaps not committed.
    unproven: VecDeque<LogEntry>,
    /// Everything below is committed.
    proven_below: Slot,
}

impl LogTail {
    /// Begins where the replica is.
    pub fn new(log: DynLog, replica: &Replica) -> Self {
        Self {
            reader: Reader::new(log.clone(), replica.next()).in_chunks(READ_CHUNK_BYTES),
            log,
            began: replica.next(),
            unproven: VecDeque::new(),
            proven_below: Slot::FIRST,
        }
    }

    /// Applies committed records: up to `committed`, if that is given, or else what the log proves, up to its end. After `limit` chunks of
    /// the log, if it made progress, it returns `false`: there may be more, and the writer may be faster than this reads. Watchers are not
    /// notified: they read history. Returns [`StoreOpenError::Destroyed`] if the replica must be reset from the rows.
    pub async fn catch_up(
        &mut self,
        replica: &mut Replica,
        committed: Option<Slot>,
        limit: usize,
    ) -> Result<bool, StoreOpenError> {
        let (start, mut chunks) = (replica.next(), 0);
        loop {
            let item = match self.reader.next().await {
                Ok(item) => item,
                // Destroyed slots may be unreadable, or hold late records that contradict each other.
                Err(error) => {
                    self.check_watermark().await?;
                    return Err(error.into());
                }
            };
            let is_end = item.is_none();
            if let Some(item) = item {
                // A barrier proves itself: the first reader makes it committed for all.
                let proven_below = match &item {
                    LogEntry::Barrier(slot, _) => slot.next(),
                    LogEntry::Batch { next, .. } => Slot(next.0.saturating_sub(WINDOW_SLOTS)),
                };
                self.proven_below = self.proven_below.max(proven_below);
                self.unproven.push_back(item);
                if self.reader.has_more() {
                    continue;
                }
            }
            let proven_below = self.proven_below.max(committed.unwrap_or(Slot::FIRST));
            let proven = self.unproven.partition_point(|item| end_of(item) <= proven_below);
            // A record in a destroyed slot came late, and a destroyed slot looks like a free one.
            self.check_watermark().await?;
            for item in self.unproven.drain(..proven) {
                replica.replay(DecodedItem::of(item)?)?;
            }
            self.began = replica.next();
            if is_end || committed.is_some_and(|committed| replica.next() >= committed) {
                return Ok(true);
            }
            chunks += 1;
            // Large records are proved many chunks later: the next call begins where the replica is.
            if chunks >= limit && replica.next() > start {
                return Ok(false);
            }
        }
    }

    async fn check_watermark(&self) -> Result<(), StoreOpenError> {
        if self.log.watermark().await? > self.began {
            return Err(StoreOpenError::Destroyed);
        }
        Ok(())
    }
}

/// An item of the log with its decoded record.
#[derive(Debug)]
pub(super) enum DecodedItem {
    Barrier(Slot, Barrier),
    Batch { record: Record, first: Slot, next: Slot },
}

impl DecodedItem {
    /// Decodes the record of an item. Returns [`StoreOpenError::Record`] if it does not decode.
    pub(super) fn of(item: LogEntry) -> Result<DecodedItem, StoreOpenError> {
        match item {
            LogEntry::Barrier(slot, barrier) => Ok(DecodedItem::Barrier(slot, barrier)),
            LogEntry::Batch {
                first, next, payload, ..
            } => match Record::decode(payload) {
                Ok(record) => Ok(DecodedItem::Batch { record, first, next }),
                Err(error) => Err(StoreOpenError::Record {
                    slot: first,
                    reason: error.to_string(),
                }),
            },
        }
    }
}

/// Returns the slot after the last one of an item that was appended.
fn end_of(item: &LogEntry) -> Slot {
    match item {
        LogEntry::Barrier(slot, _) => slot.next(),
        LogEntry::Batch { next, .. } => *next,
    }
}

impl Replica {
    /// Applies an item of the log that is known to be committed. Fails if it contradicts the items before it.
    pub(super) fn replay(&mut self, read: DecodedItem) -> Result<(), StoreOpenError> {
        let (record, first, next) = match read {
            DecodedItem::Barrier(slot, barrier) => {
                self.prior_leases.begin(barrier.lock, barrier.lease);
                self.state.set_epoch(barrier.epoch);
                self.last = slot;
                self.pass(Slot(slot.0 + WINDOW_SLOTS));
                return Ok(());
            }
            DecodedItem::Batch { record, first, next } => (record, first, next),
        };
        if record.base != self.revision() {
            let (base, newest) = (record.base, self.revision());
            let reason = format!("a batch after revision {base}, but the newest is {newest}");
            return Err(StoreOpenError::Record { slot: first, reason });
        }
        self.apply(record, Vec::new(), first..next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::log::frame::is_barrier;
    use engine::log::{Faulty, MemLog};
    use engine::rows::DynRows;
    use engine::rows::mem::MemRows;
    use std::sync::Arc;

    #[tokio::test]
    async fn destroyed_slots_are_not_taken_for_free_ones() {
        let log: DynLog = Arc::new(MemLog::keeping(is_barrier));
        let rows: DynRows = Arc::new(MemRows::new());
        let mut replica = Replica::load(&log, &rows).await.unwrap();
        let mut tail = LogTail::new(log.clone(), &replica);
        tail.catch_up(&mut replica, Some(Slot(7)), usize::MAX).await.unwrap();
        log.raise_watermark(Slot(5)).await.unwrap();
        log.destroy_below_watermark().await.unwrap();
        let ended = tail.catch_up(&mut replica, Some(Slot(7)), usize::MAX).await;
        assert!(matches!(ended, Err(StoreOpenError::Destroyed)), "{ended:?}");
    }

    #[tokio::test]
    async fn destroyed_slots_that_cannot_be_read_are_no_damage() {
        for is_garbage in [false, true] {
            let faulty = Faulty::new(MemLog::keeping(is_barrier));
            let log: DynLog = Arc::new(faulty.clone());
            let rows: DynRows = Arc::new(MemRows::new());
            let mut replica = Replica::load(&log, &rows).await.unwrap();
            if is_garbage {
                log.append(Slot::FIRST, "late".into()).await.unwrap();
            }
            for watermark in [Slot::FIRST, Slot(5)] {
                log.raise_watermark(watermark).await.unwrap();
                if !is_garbage {
                    faulty.fail_reads(1);
                }
                let mut tail = LogTail::new(log.clone(), &replica);
                let ended = tail.catch_up(&mut replica, None, usize::MAX).await;
                let is_destroyed = matches!(ended, Err(StoreOpenError::Destroyed));
                assert_eq!(is_destroyed, watermark > Slot::FIRST, "{ended:?}");
                assert!(ended.is_err(), "garbage: {is_garbage}");
            }
        }
    }
}
