//! Reads batches in order: skips dead slots, joins the parts of a batch, drops what a deposed writer left unfinished.

use std::collections::VecDeque;

use bytes::Bytes;

use super::frame::{Frame, is_barrier};
pub use super::walk::Item;
use super::walk::Walk;
use super::window::{LookBack, Window};
use super::{Log, LogError, Slot};

/// How much a reader takes from the log at once, in bytes.
const CHUNK: usize = 1 << 20;

/// Walks the log from a slot that begins an item.
#[derive(Debug)]
pub struct Reader<L> {
    log: L,
    walk: Walk,
    ahead: VecDeque<(Slot, Bytes)>,
}

impl<L: Log> Reader<L> {
    /// A reader at `from`, where an item begins.
    pub fn new(log: L, from: Slot) -> Self {
        Self {
            log,
            walk: Walk::new(Window::FORMAT, from),
            ahead: VecDeque::new(),
        }
    }

    /// A reader that begins at the first item at or behind `from`, which may be anywhere from the watermark on.
    ///
    /// # Errors
    /// As [`Log::read`] and [`Log::watermark`].
    pub async fn seek(log: L, from: Slot) -> Result<Self, LogError> {
        let mut look = LookBack::new(Window::FORMAT, from);
        loop {
            let (first, end) = look.near();
            if !look.found(&barriers(&log, first, end).await?) {
                break;
            }
        }
        let watermark = log.watermark().await?; // after the slots, so that it covers what was destroyed of them
        let mut reader = Self::new(log, look.first_alive(watermark));
        // In the middle of a batch: go on behind it.
        while let Some((slot, bytes)) = reader.peek().await? {
            match Frame::decode(slot, bytes)? {
                Frame::Part(part) if part.index > 0 => {
                    reader.ahead.pop_front();
                    reader.walk.skip();
                }
                _ => break,
            }
        }
        Ok(reader)
    }

    /// Where the next item will stand.
    pub fn position(&self) -> Slot {
        self.walk.position()
    }

    /// The first slot that was not read: where a writer would append.
    pub fn frontier(&self) -> Slot {
        self.walk.frontier()
    }

    /// The epoch that a barrier at the frontier begins, above everything read and above `floor`.
    pub fn next_epoch(&self, floor: u64) -> u64 {
        self.walk.next_epoch(floor)
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
        self.walk.accept(slot, Frame::decode(slot, bytes)?)
    }

    /// The record of the next slot, if it is taken.
    async fn peek(&mut self) -> Result<Option<(Slot, Bytes)>, LogError> {
        let next = self.walk.frontier();
        while self.ahead.front().is_some_and(|(slot, _)| *slot < next) {
            self.ahead.pop_front(); // a dead slot
        }
        if self.ahead.is_empty() {
            self.ahead = self.log.read(next, CHUNK).await?.into();
        }
        match self.ahead.front() {
            Some((slot, bytes)) if *slot == next => Ok(Some((*slot, bytes.clone()))),
            // A gap: what stands behind it is not committed yet. It must be looked at again.
            _ => {
                self.ahead.clear();
                Ok(None)
            }
        }
    }
}

/// The barriers from `first` up to `end`.
async fn barriers<L: Log>(log: &L, first: Slot, end: Slot) -> Result<Vec<Slot>, LogError> {
    let (mut next, mut found) = (first, Vec::new());
    while next < end {
        let chunk = log.read(next, CHUNK).await?;
        next = chunk.last().map_or(end, |(slot, _)| slot.next());
        let chunk = chunk.iter().filter(|(slot, bytes)| *slot < end && is_barrier(bytes));
        found.extend(chunk.map(|(slot, _)| *slot));
    }
    Ok(found)
}
