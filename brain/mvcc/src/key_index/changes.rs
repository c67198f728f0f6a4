//! Creations and deletions of keys, in the order of their revisions.

use std::collections::VecDeque;

use etcd_types::types::Revision;

/// Changes in one segment of the log at most, and bytes of their keys, one key excepted.
const SEGMENT_CHANGES: usize = 1_024;
const SEGMENT_BYTES: usize = 256 << 10;

/// Changes in the log at most, and bytes that they take, if the index may take many.
const LOG_CHANGES: usize = 256 << 10;
const LOG_BYTES: usize = 32 << 20;

/// A part of the key space.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyBounds<'a> {
    /// First key.
    pub(super) from: &'a [u8],
    /// End, not part of it; `None` is the end of all keys.
    pub(super) to: Option<&'a [u8]>,
}

/// The creation or deletion of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyPresence<'a> {
    pub(super) revision: Revision,
    pub(super) key: &'a [u8],
    /// True if the key exists after this change.
    pub(super) exists: bool,
}

/// Changes whose keys are in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct ChangeList {
    keys: Vec<u8>,
    entries: Vec<PresenceEntry>,
}

#[derive(Debug)]
struct PresenceEntry {
    revision: Revision,
    /// Of its key in `keys`.
    end: usize,
    exists: bool,
}

impl ChangeList {
    pub(super) fn push(&mut self, change: KeyPresence<'_>) {
        self.keys.extend_from_slice(change.key);
        self.entries.push(PresenceEntry {
            revision: change.revision,
            end: self.keys.len(),
            exists: change.exists,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<KeyPresence<'_>> {
        let entry = self.entries.get(at)?;
        Some(KeyPresence {
            revision: entry.revision,
            key: self.key(at),
            exists: entry.exists,
        })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.keys.capacity() + self.entries.capacity() * size_of::<PresenceEntry>()
    }

    fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].end);
        &self.keys[start..self.entries[at].end]
    }

    /// The number of keys of a part that these changes, from one on, have added.
    fn added(&self, from: usize, bounds: KeyBounds<'_>) -> i64 {
        let changes = (from..self.len()).filter_map(|at| self.get(at));
        let within = changes.filter(|change| bounds.contains(change.key));
        within.map(|change| if change.exists { 1 } else { -1 }).sum()
    }
}

impl KeyBounds<'_> {
    fn contains(&self, key: &[u8]) -> bool {
        key >= self.from && self.to.is_none_or(|to| key < to)
    }
}

/// The newest changes that were applied to the tree, so that counts of older revisions are known.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    segments: VecDeque<ChangeSegment>,
    /// Without the last segment.
    bytes: usize,
    /// Bytes that it may take.
    max_bytes: usize,
    /// Every change after this revision is included.
    floor: Revision,
}

#[derive(Debug, Default)]
struct ChangeSegment {
    changes: ChangeList,
    /// Changes ordered by key, once the segment is full.
    order: Vec<u16>,
    /// At position `n`: the number of keys that the first `n` changes of `order` have added.
    sums: Vec<i16>,
}

impl ChangeSegment {
    fn is_full(&self) -> bool {
        self.changes.len() >= SEGMENT_CHANGES || self.changes.keys.len() >= SEGMENT_BYTES
    }

    fn seal(&mut self) {
        self.changes.keys.shrink_to_fit();
        self.changes.entries.shrink_to_fit();
        let changes = &self.changes;
        self.order = (0..changes.len()).filter_map(|at| u16::try_from(at).ok()).collect();
        self.order
            .sort_by(|a, b| changes.key(usize::from(*a)).cmp(changes.key(usize::from(*b))));
        let exists = |at: &u16| changes.entries[usize::from(*at)].exists;
        let mut sum = 0;
        let sums = self.order.iter().map(|at| {
            sum += if exists(at) { 1 } else { -1 };
            sum
        });
        self.sums = std::iter::once(0).chain(sums).collect();
    }

    fn bytes(&self) -> usize {
        self.changes.bytes() + (self.order.capacity() + self.sums.capacity()) * size_of::<u16>() + size_of::<Self>()
    }

    fn first(&self) -> Option<Revision> {
        self.changes.entries.first().map(|entry| entry.revision)
    }

    fn last(&self) -> Option<Revision> {
        self.changes.entries.last().map(|entry| entry.revision)
    }

    /// The number of keys within `bounds` that the changes after a revision have added.
    fn added_behind(&self, revision: Revision, bounds: KeyBounds<'_>) -> i64 {
        if self.order.is_empty() || self.first().is_none_or(|first| first <= revision) {
            let from = self.changes.entries.partition_point(|entry| entry.revision <= revision);
            return self.changes.added(from, bounds);
        }
        let before = |key: &[u8]| {
            let changes = &self.changes;
            self.order.partition_point(|at| changes.key(usize::from(*at)) < key)
        };
        let (from, to) = (before(bounds.from), bounds.to.map_or(self.order.len(), before));
        i64::from(self.sums[to.max(from)]) - i64::from(self.sums[from])
    }
}

impl ChangeLog {
    /// An empty log of the changes after a revision, with at most `max_bytes` bytes in addition to its last segment.
    pub(super) fn behind(floor: Revision, max_bytes: usize) -> Self {
        Self {
            floor,
            max_bytes: max_bytes.min(LOG_BYTES),
            ..Self::default()
        }
    }

    /// Adds a change, and removes the oldest ones if there are too many.
    pub(super) fn push(&mut self, change: KeyPresence<'_>) {
        if self.segments.back().is_none_or(ChangeSegment::is_full) {
            if let Some(full) = self.segments.back_mut() {
                full.seal();
                self.bytes += full.bytes();
            }
            self.segments.push_back(ChangeSegment::default());
            while self.segments.len() > LOG_CHANGES / SEGMENT_CHANGES || self.bytes > self.max_bytes {
                let Some(oldest) = self.segments.pop_front() else { break };
                self.bytes -= oldest.bytes().min(self.bytes);
                self.floor = oldest.last().unwrap_or(self.floor);
            }
        }
        if let Some(last) = self.segments.back_mut() {
            last.changes.push(change);
        }
    }

    /// The number of keys within `bounds` that the changes after a revision have added; `None` if not all of them are known.
    pub(super) fn added_behind(&self, revision: Revision, bounds: KeyBounds<'_>) -> Option<i64> {
        if revision < self.floor {
            return None;
        }
        let behind = self.segments.iter().rev();
        let behind = behind.take_while(|segment| segment.last().is_some_and(|last| last > revision));
        Some(behind.map(|segment| segment.added_behind(revision, bounds)).sum())
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.segments.back().map_or(0, ChangeSegment::bytes)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    #[test]
    fn log_knows_what_was_added_behind_any_revision() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut log = ChangeLog::behind(10, LOG_BYTES);
        let mut all = Vec::new();
        let mut revision = 10;
        for _ in 0..6_000 {
            // Changes of one revision may be in two segments.
            revision += rng.random_range(0..2);
            let (key, exists) = ([rng.random_range(0..50)], rng.random_bool(0.6));
            let revision = revision.max(11);
            log.push(KeyPresence {
                revision,
                key: &key,
                exists,
            });
            all.push((revision, key, exists));
        }
        for _ in 0..500 {
            let (at, from, to) = (
                rng.random_range(10..=revision),
                [rng.random_range(0..50)],
                [rng.random_range(0..50)],
            );
            let to = Some(&to[..]).filter(|_| rng.random_bool(0.8));
            let bounds = KeyBounds { from: &from, to };
            let within = all
                .iter()
                .filter(|(changed, key, _)| *changed > at && bounds.contains(key));
            let added: i64 = within.map(|(_, _, exists)| if *exists { 1 } else { -1 }).sum();
            assert_eq!(log.added_behind(at, bounds), Some(added));
        }
        assert_eq!(log.added_behind(9, KeyBounds { from: b"", to: None }), None);
    }

    #[test]
    fn log_is_bounded_and_forgets_the_oldest_revisions() {
        let all = KeyBounds { from: b"", to: None };
        for (changes, len) in [(300_000, 40), (20_000, 4_000)] {
            let mut log = ChangeLog::behind(0, LOG_BYTES);
            let key = vec![b'k'; len];
            for revision in 1..=changes {
                let exists = revision % 2 == 0;
                log.push(KeyPresence {
                    revision,
                    key: &key,
                    exists,
                });
                assert!(log.bytes() <= LOG_BYTES + (1 << 20), "{} bytes", log.bytes());
            }
            assert!(log.floor > 0, "nothing was forgotten");
            assert_eq!(log.added_behind(log.floor - 1, all), None);
            assert!(log.added_behind(log.floor, all).is_some());
            assert_eq!(log.added_behind(changes - 1, all), Some(1));
        }
    }
}
