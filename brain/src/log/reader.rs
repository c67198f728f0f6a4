//! Reads batches in order: skips dead slots, joins the parts of a batch, drops what a deposed writer left unfinished.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::frame::{Barrier, Frame, Part, WINDOW};
use super::{Log, LogError, Slot};

/// How much a reader takes from the log at once, in bytes.
const CHUNK: usize = 1 << 20;

/// One step of the log's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An epoch began in this slot.
    Barrier(Slot, Barrier),
    /// A whole batch, its first slot and the slot behind its last one.
    Batch {
        /// Slot of its first part.
        first: Slot,
        /// Where the next item stands.
        next: Slot,
        /// Number within its epoch.
        number: u64,
        /// The epoch.
        epoch: u64,
        /// What the writer appended.
        payload: Bytes,
    },
}

/// Walks the log from a slot that begins an item.
///
/// Invariant: `next` is never inside the dead slots behind a barrier, and all parts in `parts` stand right before it.
#[derive(Debug)]
pub struct Reader<L> {
    log: L,
    next: Slot,
    epoch: u64,
    parts: Vec<(Slot, Part)>,
    ahead: VecDeque<(Slot, Bytes)>,
}

impl<L: Log> Reader<L> {
    /// A reader at `from`, where an item begins.
    pub fn new(log: L, from: Slot) -> Self {
        Self {
            log,
            next: from,
            epoch: 0,
            parts: Vec::new(),
            ahead: VecDeque::new(),
        }
    }

    /// A reader that begins at the first item at or behind `from`, which may be anywhere.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn seek(log: L, from: Slot) -> Result<Self, LogError> {
        let mut start = from;
        // A barrier within the last WINDOW - 1 slots would make `from` a dead slot.
        let back = Slot(from.0.saturating_sub(WINDOW - 1).max(Slot::FIRST.0));
        for (slot, bytes) in log.read(back, CHUNK).await? {
            if slot >= from {
                break;
            }
            if let Ok(Frame::Barrier(_)) = Frame::decode(slot, bytes) {
                start = start.max(Slot(slot.0 + WINDOW));
            }
        }
        let mut reader = Self::new(log, start);
        // In the middle of a batch: go on behind it.
        loop {
            match reader.peek().await? {
                Some((slot, bytes)) => match Frame::decode(slot, bytes)? {
                    Frame::Part(part) if part.index > 0 => {
                        reader.ahead.pop_front();
                        reader.next = slot.next();
                    }
                    _ => return Ok(reader),
                },
                None => return Ok(reader),
            }
        }
    }

    /// Where the next item will stand.
    pub fn position(&self) -> Slot {
        self.parts.first().map_or(self.next, |(slot, _)| *slot)
    }

    /// The first slot that was not read: where a writer would append.
    pub fn frontier(&self) -> Slot {
        self.next
    }

    /// The epoch of what was read last; 0 before anything was.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The next item, or `None` where the next slot is still free.
    ///
    /// # Errors
    /// As [`Log::read`]; [`LogError::Corrupt`] when the records contradict each other.
    pub async fn next(&mut self) -> Result<Option<Item>, LogError> {
        while let Some((slot, bytes)) = self.peek().await? {
            self.ahead.pop_front();
            if let Some(item) = self.accept(slot, bytes)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Takes the record of the slot that is next, wherever it was learnt from.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] when it cannot stand there.
    pub fn accept(&mut self, slot: Slot, bytes: Bytes) -> Result<Option<Item>, LogError> {
        debug_assert_eq!(slot, self.next);
        match Frame::decode(slot, bytes)? {
            Frame::Barrier(barrier) => {
                if barrier.epoch <= self.epoch {
                    let found = barrier.epoch;
                    return Err(LogError::Corrupt(format!(
                        "slot {slot}: epoch {found} follows {}",
                        self.epoch
                    )));
                }
                self.parts.clear();
                self.epoch = barrier.epoch;
                self.next = Slot(slot.0 + WINDOW);
                Ok(Some(Item::Barrier(slot, barrier)))
            }
            Frame::Part(part) => self.accept_part(slot, part),
        }
    }

    fn accept_part(&mut self, slot: Slot, part: Part) -> Result<Option<Item>, LogError> {
        let expected = self
            .parts
            .last()
            .map(|(_, last)| (last.epoch, last.number, last.index + 1));
        let fits = match expected {
            Some(expected) => expected == (part.epoch, part.number, part.index),
            None => part.index == 0 && (self.epoch == 0 || part.epoch == self.epoch),
        };
        if !fits {
            return Err(LogError::Corrupt(format!(
                "slot {slot}: a part that does not follow what stands before it"
            )));
        }
        self.epoch = part.epoch;
        self.next = slot.next();
        let (last, number, epoch) = (part.last, part.number, part.epoch);
        self.parts.push((slot, part));
        if !last {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        let first = parts[0].0;
        let payload = match <[_; 1]>::try_from(parts) {
            Ok([(_, only)]) => only.payload,
            Err(parts) => {
                let mut whole = BytesMut::with_capacity(parts.iter().map(|(_, part)| part.payload.len()).sum());
                parts
                    .iter()
                    .for_each(|(_, part)| whole.extend_from_slice(&part.payload));
                whole.freeze()
            }
        };
        Ok(Some(Item::Batch {
            first,
            next: self.next,
            number,
            epoch,
            payload,
        }))
    }

    /// The record of the next slot, if it is taken.
    async fn peek(&mut self) -> Result<Option<(Slot, Bytes)>, LogError> {
        while self.ahead.front().is_some_and(|(slot, _)| *slot < self.next) {
            self.ahead.pop_front(); // a dead slot
        }
        if self.ahead.is_empty() {
            self.ahead = self.log.read(self.next, CHUNK).await?.into();
        }
        match self.ahead.front() {
            Some((slot, bytes)) if *slot == self.next => Ok(Some((*slot, bytes.clone()))),
            // A gap: what stands behind it is not committed yet. It must be looked at again.
            _ => {
                self.ahead.clear();
                Ok(None)
            }
        }
    }
}
