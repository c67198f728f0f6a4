//! Versions that are not in the rows yet: everything from the marker on, by key, in memory.
//!
//! Written by one task, read by many without waiting. A version once inserted never changes.

use std::cmp::Reverse;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;

use crate::mvcc::{LeaseId, Revision};

/// What a key became at some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Revision of the put that brought the key into being; 0 for a tombstone.
    pub create_revision: Revision,
    /// Puts since then; 0 for a tombstone.
    pub version: i64,
    /// The lease of the key.
    pub lease: LeaseId,
    /// The version that this one superseded; 0 if there was none.
    pub prev_mod: Revision,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
}

/// Versions between two slots of the log.
#[derive(Debug, Default)]
pub struct Generation {
    versions: SkipMap<(Bytes, Reverse<Revision>), Version>,
    bytes: AtomicUsize,
}

/// Bytes that a version takes beside its key and value: node, tower and handles.
const OVERHEAD: usize = 208;

impl Generation {
    /// Adds a version. Only the sequencer does.
    pub fn insert(&self, key: Bytes, revision: Revision, version: Version) {
        let size = key.len() + version.value.as_ref().map_or(0, Bytes::len) + OVERHEAD;
        self.versions.insert((key, Reverse(revision)), version);
        self.bytes.fetch_add(size, Ordering::Relaxed);
    }

    /// The newest version of a key at a revision, and the revision that made it.
    pub fn get(&self, key: &Bytes, at: Revision) -> Option<(Revision, Version)> {
        let found = self
            .versions
            .lower_bound(Bound::Included(&(key.clone(), Reverse(at))))?;
        let (found_key, Reverse(revision)) = found.key();
        (found_key == key).then(|| (*revision, found.value().clone()))
    }

    /// Bytes in memory, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Holds no version.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// All versions behind one, ordered by key, each key's newest first.
    pub fn versions_after(
        &self,
        after: Option<(Bytes, Revision)>,
    ) -> impl Iterator<Item = (Bytes, Revision, Version)> + '_ {
        let from = after.map_or(Bound::Unbounded, |(key, revision)| {
            Bound::Excluded((key, Reverse(revision)))
        });
        let entries = self.versions.range((from, Bound::Unbounded));
        entries.map(|entry| (entry.key().0.clone(), entry.key().1.0, entry.value().clone()))
    }

    /// The first key in a range that has a version at or below a revision.
    fn first_at(&self, from: Bound<&Bytes>, to: Option<&Bytes>, at: Revision) -> Option<(Bytes, Revision, Version)> {
        let mut probe = match from {
            Bound::Included(key) => (key.clone(), Reverse(Revision::MAX)),
            Bound::Excluded(key) => (key.clone(), Reverse(Revision::MIN)),
            Bound::Unbounded => (Bytes::new(), Reverse(Revision::MAX)),
        };
        loop {
            let entry = self.versions.lower_bound(Bound::Included(&probe))?;
            let (key, Reverse(revision)) = entry.key();
            if to.is_some_and(|to| key >= to) {
                return None;
            }
            if *revision <= at {
                return Some((key.clone(), *revision, entry.value().clone()));
            }
            // Too new: look for this key's version at `at`, which may lead to the next key.
            probe = (key.clone(), Reverse(at));
        }
    }
}

/// The generations that a view reads, newest first.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    /// Newest first; only the first one is still written.
    pub generations: Arc<Vec<Arc<Generation>>>,
}

impl Recent {
    /// The newest version of a key at a revision, if one is in memory.
    pub fn get(&self, key: &Bytes, at: Revision) -> Option<(Revision, Version)> {
        self.generations.iter().find_map(|generation| generation.get(key, at))
    }

    /// The first key of a range with a version in memory at or below a revision, and its newest such version.
    pub fn first_at(
        &self,
        from: Bound<&Bytes>,
        to: Option<&Bytes>,
        at: Revision,
    ) -> Option<(Bytes, Revision, Version)> {
        let mut first: Option<(Bytes, Revision, Version)> = None;
        for generation in self.generations.iter() {
            if let Some(found) = generation.first_at(from, to, at) {
                // On equal keys the newer generation, which was asked first, is right.
                if first.as_ref().is_none_or(|first| found.0 < first.0) {
                    first = Some(found);
                }
            }
        }
        first
    }

    /// Bytes in memory, roughly.
    pub fn bytes(&self) -> usize {
        self.generations.iter().map(|generation| generation.bytes()).sum()
    }
}
