//! The order in which records make sense: which slot is read next, which epoch follows, which parts make a batch.
//!
//! Pure state, without a log. Invariant: `next` is never inside the dead slots after a barrier that was read, and all
//! parts in `parts` are in the slots right before it.

use bytes::{Bytes, BytesMut};

use super::frame::{Barrier, Frame, Part};
use super::window::Window;
use super::{LogError, Slot};

/// An entry of the log, decoded from its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// An epoch began in this slot.
    Barrier(Slot, Barrier),
    /// A whole batch, with its first slot and the slot after its last one.
    Batch {
        /// Slot of its first part.
        first: Slot,
        /// The slot of the next entry.
        next: Slot,
        /// Number within its epoch.
        number: u64,
        /// The epoch.
        epoch: u64,
        /// A record as the writer appended it.
        payload: Bytes,
    },
}

/// Decodes the slots of the log, in order, into entries.
#[derive(Debug, Clone)]
pub struct BatchDecoder {
    window: Window,
    next: Slot,
    epoch: u64,
    parts: Vec<(Slot, Part)>,
}

impl BatchDecoder {
    /// A decoder that begins at `from` and has read nothing, in a log of this window.
    #[must_use]
    pub fn new(window: Window, from: Slot) -> Self {
        Self::resume(window, from, 0, Vec::new())
    }

    /// A decoder that has come to `next` in an epoch, the parts of an unfinished batch right before it.
    #[must_use]
    pub fn resume(window: Window, next: Slot, epoch: u64, parts: Vec<(Slot, Part)>) -> Self {
        Self {
            window,
            next,
            epoch,
            parts,
        }
    }

    /// The slot of the next item.
    #[must_use]
    pub fn position(&self) -> Slot {
        self.parts.first().map_or(self.next, |(slot, _)| *slot)
    }

    /// The first slot that was not read, which is the slot that a writer would append to.
    #[must_use]
    pub fn frontier(&self) -> Slot {
        self.next
    }

    /// The epoch of the last record that was read; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Parts read of a batch that is not complete yet.
    #[must_use]
    pub fn pending(&self) -> &[(Slot, Part)] {
        &self.parts
    }

    /// The epoch that a barrier at the frontier begins, above everything read and above `floor`.
    #[must_use]
    pub fn next_epoch(&self, floor: u64) -> u64 {
        self.epoch.max(floor) + 1
    }

    /// Skips the record at the frontier.
    pub(super) fn skip(&mut self) {
        self.next = self.next.next();
    }

    /// Takes the record at the frontier; returns the item that it completes.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] if the record is not valid in this slot.
    pub fn accept(&mut self, slot: Slot, frame: Frame) -> Result<Option<LogEntry>, LogError> {
        debug_assert_eq!(slot, self.next);
        match frame {
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
                self.next = self.window.behind_barrier(slot);
                Ok(Some(LogEntry::Barrier(slot, barrier)))
            }
            Frame::Part(part) => self.accept_part(slot, part),
        }
    }

    fn accept_part(&mut self, slot: Slot, part: Part) -> Result<Option<LogEntry>, LogError> {
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
                "slot {slot}: a part that does not follow the previous one"
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
        Ok(Some(LogEntry::Batch {
            first,
            next: self.next,
            number,
            epoch,
            payload: joined(parts),
        }))
    }
}

/// The payloads of all parts as one.
fn joined(parts: Vec<(Slot, Part)>) -> Bytes {
    match <[_; 1]>::try_from(parts) {
        Ok([(_, only)]) => only.payload,
        Err(parts) => {
            let mut whole = BytesMut::with_capacity(parts.iter().map(|(_, part)| part.payload.len()).sum());
            parts
                .iter()
                .for_each(|(_, part)| whole.extend_from_slice(&part.payload));
            whole.freeze()
        }
    }
}
