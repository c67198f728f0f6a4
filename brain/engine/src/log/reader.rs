//! Reads batches in order: skips dead slots, joins the parts of a batch, drops unfinished batches of a deposed writer.

use std::collections::VecDeque;

use bytes::Bytes;

use super::batch_decoder::BatchDecoder;
pub use super::batch_decoder::LogEntry;
use super::frame::{Frame, is_barrier};
use super::window::{BarrierSearch, Window};
use super::{DynLog, Log, LogError, Slot};

/// Default number of bytes that a reader takes from the log at once.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// Walks the log from a slot that begins an item.
pub struct Reader {
    log: DynLog,
    decoder: BatchDecoder,
    chunk: usize,
    ahead: VecDeque<(Slot, Bytes)>,
}

impl Reader {
    /// A reader at `from`, where an item begins.
    pub fn new(log: DynLog, from: Slot) -> Self {
        Self {
            log,
            decoder: BatchDecoder::new(Window::FORMAT, from),
            chunk: READ_CHUNK_BYTES,
            ahead: VecDeque::new(),
        }
    }

    /// Returns the same reader, which reads about `bytes` bytes from the log at once.
    #[must_use]
    pub fn in_chunks(mut self, bytes: usize) -> Self {
        self.chunk = bytes;
        self
    }

    /// Returns a reader that begins at the first item at or after `from`, which may be any slot from the watermark on.
    pub async fn seek(log: DynLog, from: Slot) -> Result<Self, LogError> {
        let mut search = BarrierSearch::new(Window::FORMAT, from);
        loop {
            let (first, end) = search.near();
            if !search.found(&barriers(&*log, first, end).await?) {
                break;
            }
        }
        let watermark = log.watermark().await?; // after the slots, so that it covers those of them that were destroyed
        let mut reader = Self::new(log, search.first_alive(watermark));
        // In the middle of a batch: skip the rest of it.
        while let Some((slot, bytes)) = reader.peek().await? {
            match Frame::decode(slot, bytes)? {
                Frame::Part(part) if part.index > 0 => {
                    reader.ahead.pop_front();
                    reader.decoder.skip();
                }
                _ => break,
            }
        }
        Ok(reader)
    }

    /// The slot of the next item.
    pub fn position(&self) -> Slot {
        self.decoder.position()
    }

    /// The first slot that was not read, which is the slot that a writer would append to.
    pub fn frontier(&self) -> Slot {
        self.decoder.frontier()
    }

    /// The epoch that a barrier at the frontier begins, above everything read and above `floor`.
    pub fn next_epoch(&self, floor: u64) -> u64 {
        self.decoder.next_epoch(floor)
    }

    /// Returns the next item, or `None` if the next slot is still free. Fails as [`Log::read`] does, and with
    /// [`LogError::Corrupt`] if the records contradict each other.
    pub async fn next(&mut self) -> Result<Option<LogEntry>, LogError> {
        while let Some((slot, bytes)) = self.peek().await? {
            self.ahead.pop_front();
            if let Some(item) = self.accept(slot, bytes)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Takes the record of the next slot, from any source. Returns [`LogError::Corrupt`] if the record is not valid in that slot.
    pub fn accept(&mut self, slot: Slot, bytes: Bytes) -> Result<Option<LogEntry>, LogError> {
        self.decoder.accept(slot, Frame::decode(slot, bytes)?)
    }

    /// Returns true if the next item may be in memory already.
    pub fn has_more(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The record of the next slot, if it is taken.
    async fn peek(&mut self) -> Result<Option<(Slot, Bytes)>, LogError> {
        let next = self.decoder.frontier();
        while self.ahead.front().is_some_and(|(slot, _)| *slot < next) {
            self.ahead.pop_front(); // a dead slot
        }
        if self.ahead.is_empty() {
            self.ahead = self.log.read(next, self.chunk).await?.into();
        }
        match self.ahead.front() {
            Some((slot, bytes)) if *slot == next => Ok(Some((*slot, bytes.clone()))),
            // A gap: the slots after it are not committed yet, and must be read again.
            _ => {
                self.ahead.clear();
                Ok(None)
            }
        }
    }
}

/// The barriers from `first` up to `end`.
async fn barriers(log: &dyn Log, first: Slot, end: Slot) -> Result<Vec<Slot>, LogError> {
    let (mut next, mut found) = (first, Vec::new());
    while next < end {
        let chunk = log.read(next, READ_CHUNK_BYTES).await?;
        next = chunk.last().map_or(end, |(slot, _)| slot.next());
        let chunk = chunk.iter().filter(|(slot, bytes)| *slot < end && is_barrier(bytes));
        found.extend(chunk.map(|(slot, _)| *slot));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::log::MemLog;
    use crate::log::frame::{Barrier, put_part_header};

    async fn barrier(log: &MemLog, slot: u64, epoch: u64) {
        let barrier = Barrier {
            epoch,
            nonce: 0,
            writer: 1,
            lease: Duration::ZERO,
            lock: 0,
        };
        log.append(Slot(slot), barrier.encode()).await.unwrap();
    }

    async fn part(log: &MemLog, slot: u64, epoch: u64, index: u32, last: bool, len: usize) {
        let mut bytes = BytesMut::new();
        put_part_header(&mut bytes, epoch, slot, index, last);
        bytes.put_bytes(7, len);
        log.append(Slot(slot), bytes.freeze()).await.unwrap();
    }

    /// Slots of the items that are read from `from` on.
    async fn items(log: &MemLog, from: u64) -> Vec<u64> {
        let mut reader = Reader::seek(Arc::new(log.clone()), Slot(from)).await.unwrap();
        let mut found = Vec::new();
        while let Some(item) = reader.next().await.unwrap() {
            found.push(match item {
                LogEntry::Barrier(slot, _) => slot.0,
                LogEntry::Batch { first, .. } => first.0,
            });
        }
        found
    }

    #[tokio::test]
    async fn reader_begins_behind_a_batch_or_dead_slots() {
        let log = MemLog::keeping(is_barrier);
        barrier(&log, 1, 1).await;
        part(&log, 4, 0, 0, true, 1).await; // of an older writer
        part(&log, 9, 1, 0, true, 1).await;
        part(&log, 10, 1, 0, false, 1).await;
        log.append(Slot(11), {
            let mut bytes = BytesMut::new();
            put_part_header(&mut bytes, 1, 10, 1, true);
            bytes.freeze()
        })
        .await
        .unwrap();
        part(&log, 12, 1, 0, true, 1).await;
        for (from, expected) in [
            (1, vec![1, 9, 10, 12]),
            (4, vec![9, 10, 12]),
            (10, vec![10, 12]),
            (11, vec![12]),
            (13, vec![]),
        ] {
            assert_eq!(items(&log, from).await, expected, "from {from}");
        }
    }

    #[tokio::test]
    async fn a_barrier_is_found_behind_large_records() {
        let log = MemLog::keeping(is_barrier);
        for slot in 1..=6 {
            part(&log, slot, 1, 0, true, READ_CHUNK_BYTES).await;
        }
        barrier(&log, 7, 2).await;
        part(&log, 8, 1, 0, true, 1).await; // in flight when the barrier came
        part(&log, 15, 2, 0, true, 1).await;
        assert_eq!(items(&log, 8).await, [15]);
    }

    #[tokio::test]
    async fn a_stray_barrier_hides_nothing() {
        let log = MemLog::keeping(is_barrier);
        for slot in 1..=30 {
            part(&log, slot, 1, 0, true, 1).await;
        }
        log.raise_watermark(Slot(20)).await.unwrap();
        log.destroy_below_watermark().await.unwrap();
        barrier(&log, 19, 2).await; // an opener took it for a free slot
        assert_eq!(items(&log, 20).await, (20..=30).collect::<Vec<_>>());
        // Another one was misled by that, and put its barrier into a dead slot.
        barrier(&log, 31, 2).await;
        barrier(&log, 36, 3).await;
        part(&log, 39, 2, 0, true, 1).await;
        assert_eq!(items(&log, 37).await, [39]);
        assert_eq!(items(&log, 39).await, [39]);
    }
}
