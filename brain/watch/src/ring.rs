//! The newest events, bounded in bytes, each with a position.
//!
//! Invariant: the ring holds whole revisions, all of them from `covers_from` up to `through`.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::range::KeyRange;
use etcd_types::types::{Committed, Event, Revision};

/// Selects whether a watcher receives the previous version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrevKv {
    /// Without the previous version.
    Omitted,
    /// With it, if there was one.
    Included,
}

/// One event and its encodings, shared by all its watchers.
#[derive(Debug)]
pub struct Entry {
    committed: Arc<Committed>,
    index: usize,
    plain: OnceLock<Bytes>,
    with_prev_kv: OnceLock<Bytes>,
}

impl Entry {
    /// The weight of an entry without a key and values.
    pub(super) const LEAST_WEIGHT: usize = size_of::<Entry>() + size_of::<Event>() + 128;

    /// Returns the entries of a revision, in the order of its events.
    pub(super) fn of(committed: &Arc<Committed>) -> impl Iterator<Item = Arc<Entry>> {
        (0..committed.events.len()).map(|index| {
            Arc::new(Entry {
                committed: Arc::clone(committed),
                index,
                plain: OnceLock::new(),
                with_prev_kv: OnceLock::new(),
            })
        })
    }

    /// Returns the revision that the event belongs to.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.committed.revision
    }

    /// Returns the event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.committed.events[self.index]
    }

    /// Returns the event encoded by `encode`, which is called once for each form and must be deterministic.
    pub fn encoded(&self, form: PrevKv, encode: impl FnOnce(&Event, PrevKv) -> Bytes) -> Bytes {
        let cell = match form {
            PrevKv::Omitted => &self.plain,
            // There is no previous version: both forms are the same bytes.
            PrevKv::Included if self.event().prev_kv.is_none() => &self.plain,
            PrevKv::Included => &self.with_prev_kv,
        };
        cell.get_or_init(|| encode(self.event(), form)).clone()
    }

    /// Returns the bytes of keys and values as they are sent.
    pub(super) fn len(&self) -> usize {
        let event = self.event();
        let prev = event.prev_kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len());
        event.kv.key.len() + event.kv.value.len() + prev
    }

    /// Returns the memory that the entry may occupy: the event and both encodings.
    pub(super) fn weight(&self) -> usize {
        Self::LEAST_WEIGHT + 3 * self.len()
    }
}

/// Consecutive events that concern one watcher: positions from `start` up to, not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The revision of the event at `start`, or a lower one that the watcher has already seen.
    pub(super) revision: Revision,
}

/// The limits of one read of a ring or chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// The number of events to examine; the revision that reaches it is completed.
    pub(super) events: usize,
    /// The number of bytes to return; the revision that reaches it is completed.
    pub(super) bytes: usize,
    /// The last revision to examine.
    pub(super) through: Revision,
}

/// The requested positions are no longer in the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Evicted;

/// The newest events; see the module.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Arc<Entry>>,
    first: u64,
    covers_from: Revision,
    through: Revision,
    bytes: usize,
    max_bytes: usize,
}

impl Ring {
    /// Creates an empty ring of a store that is at `revision`.
    pub(super) fn new(revision: Revision, max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            covers_from: revision + 1,
            through: revision,
            bytes: 0,
            max_bytes,
        }
    }

    /// Returns the position of the oldest event.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the position of the next event.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns the newest revision.
    pub(super) fn through(&self) -> Revision {
        self.through
    }

    /// Returns the revision from which on all events are in the ring.
    pub(super) fn covers_from(&self) -> Revision {
        self.covers_from
    }

    /// Returns true if all events from `revision` on are in the ring.
    pub(super) fn covers(&self, revision: Revision) -> bool {
        revision >= self.covers_from
    }

    /// Appends a revision, emptying `entries`, and moves evicted entries to `evicted`, for the caller to drop without holding a lock. A revision that
    /// does not follow the newest one empties the ring: the revisions in between are unknown.
    pub(super) fn push(&mut self, revision: Revision, entries: &mut Vec<Arc<Entry>>, evicted: &mut Vec<Arc<Entry>>) {
        if revision != self.through + 1 {
            self.skip_to(revision - 1, evicted);
        }
        self.through = revision;
        self.bytes += entries.iter().map(|entry| entry.weight()).sum::<usize>();
        self.entries.extend(entries.drain(..));
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.entries.front().map(|entry| entry.revision()) else {
                break;
            };
            // There are few, at the front: a binary search would touch entries all over the ring.
            let end = self
                .entries
                .iter()
                .take_while(|entry| entry.revision() == oldest)
                .count();
            self.bytes -= self.entries.range(..end).map(|entry| entry.weight()).sum::<usize>();
            self.first += end as u64;
            evicted.extend(self.entries.drain(..end));
            self.covers_from = oldest + 1;
        }
    }

    /// Empties the ring: the revisions between its newest one and `revision` are unknown.
    pub(super) fn skip_to(&mut self, revision: Revision, evicted: &mut Vec<Arc<Entry>>) {
        // The skipped position makes the gap visible to a reader that had reached the end.
        self.first = self.end() + 1;
        evicted.extend(self.entries.drain(..));
        self.bytes = 0;
        self.covers_from = revision + 1;
        self.through = revision;
    }

    /// Returns the events from a position on, up to the end of the revision that reaches `limit`.
    pub(super) fn at_position(&self, position: u64, limit: Limit) -> Result<Vec<Arc<Entry>>, Evicted> {
        let mut taken = Vec::new();
        let mut room = Room::new(limit);
        for entry in self.entries.range(self.offset(position)?..) {
            if !room.take(entry, true) {
                break;
            }
            taken.push(Arc::clone(entry));
        }
        Ok(taken)
    }

    /// Returns the events of `runs`, whole revisions up to `limit`, and leaves the rest in `runs`.
    pub(super) fn take_runs(&self, runs: &mut VecDeque<Run>, limit: Limit) -> Result<Vec<Arc<Entry>>, Evicted> {
        let mut taken = Vec::new();
        let mut room = Room::new(limit);
        while let Some(run) = runs.front_mut() {
            let offset = self.offset(run.start)?;
            for entry in self.entries.range(offset..) {
                if run.start == run.end {
                    break;
                }
                if !room.take(entry, true) {
                    run.revision = entry.revision();
                    return Ok(taken);
                }
                taken.push(Arc::clone(entry));
                run.start += 1;
            }
            runs.pop_front();
        }
        Ok(taken)
    }

    /// Returns the events of `range` from revision `from` on, whole revisions up to `limit`, and the revision at which the next
    /// scan must begin. The ring must cover `from`, and `limit.through` must not be beyond the ring.
    pub(super) fn scan(&self, range: &KeyRange, from: Revision, limit: Limit) -> (Vec<Arc<Entry>>, Revision) {
        let offset = self.entries.partition_point(|entry| entry.revision() < from);
        scan(self.entries.range(offset..), range, limit)
    }

    fn offset(&self, position: u64) -> Result<usize, Evicted> {
        let offset = position.checked_sub(self.first).ok_or(Evicted)?;
        usize::try_from(offset)
            .ok()
            .filter(|offset| *offset <= self.entries.len())
            .ok_or(Evicted)
    }
}

/// Returns the events of `range`, whole revisions up to `limit`, and the revision at which to continue. `entries` must contain all
/// events up to `limit.through`.
pub(super) fn scan<'a>(
    entries: impl Iterator<Item = &'a Arc<Entry>>,
    range: &KeyRange,
    limit: Limit,
) -> (Vec<Arc<Entry>>, Revision) {
    let mut taken = Vec::new();
    let mut room = Room::new(limit);
    for entry in entries {
        let wanted = range.contains(&entry.event().kv.key);
        if !room.take(entry, wanted) {
            return (taken, entry.revision().min(limit.through + 1));
        }
        if wanted {
            taken.push(Arc::clone(entry));
        }
    }
    (taken, limit.through + 1)
}

/// The remainder of a [`Limit`]; it never ends within a revision.
struct Room {
    limit: Limit,
    revision: Option<Revision>,
}

impl Room {
    fn new(limit: Limit) -> Self {
        Self { limit, revision: None }
    }

    fn take(&mut self, entry: &Entry, wanted: bool) -> bool {
        let limit = &mut self.limit;
        let is_full = limit.events == 0 || limit.bytes == 0;
        let begins = self.revision.is_some_and(|revision| revision != entry.revision());
        if entry.revision() > limit.through || (begins && is_full) {
            return false;
        }
        self.revision = Some(entry.revision());
        limit.events = limit.events.saturating_sub(1);
        if wanted {
            limit.bytes = limit.bytes.saturating_sub(entry.len());
        }
        true
    }
}

#[cfg(test)]
mod tests;
