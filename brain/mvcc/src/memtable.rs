//! Memtables: versions not yet in rows.
//!
//! Every record that is newer than the rows is held in memory, in memtables: writes go to the newest one, and the older ones are being
//! flushed to rows. A read looks here first and in rows second; a tombstone found here hides the rows below it.
//!
//! Invariant: every revision in a memtable is higher than every revision in the older memtables. So the newest memtable that has
//! a key at or before a revision has its newest version at that revision.

use std::sync::Arc;

use bytes::Bytes;

pub use self::table::{Found, Memtable, MemtableSpan, MemtableVersions, Range};
use crate::key_filter::KeyHash;
use engine::rows::Order;
use etcd_types::types::{LeaseId, Revision};

mod table;

/// The state of a key from a revision on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Revision of the put that brought the key into being; 0 for a deletion.
    pub create_revision: Revision,
    /// Puts since the key came into being, this one included; 0 for a deletion.
    pub version: i64,
    /// The lease the key is attached to.
    pub lease: LeaseId,
    /// Revision of the version that this one took the place of; 0 where there was none.
    pub prev_mod: Revision,
    /// The value; `None` is a deletion.
    pub value: Option<Bytes>,
}

/// The memtables that a view reads, newest first. Immutable and cheap to clone: it says which memtables there are, while the newest one
/// still takes versions that views with a lower revision do not see.
#[derive(Debug, Clone)]
pub struct MemtableSet {
    memtables: Arc<[Arc<Memtable>]>,
}

impl Default for MemtableSet {
    fn default() -> Self {
        Self::new()
    }
}

impl MemtableSet {
    /// One empty memtable.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memtables: Arc::new([Arc::new(Memtable::new())]),
        }
    }

    /// The memtable that takes new versions.
    ///
    /// # Panics
    /// Never: there is always one.
    #[must_use]
    pub fn active(&self) -> &Arc<Memtable> {
        self.memtables
            .first()
            .expect("no change leaves a list without memtables")
    }

    /// The memtables, newest first.
    #[must_use]
    pub fn memtables(&self) -> &[Arc<Memtable>] {
        &self.memtables
    }

    /// The oldest memtable, unless it is the one that takes new versions: the next to become rows.
    #[must_use]
    pub fn oldest_immutable(&self) -> Option<&Arc<Memtable>> {
        match &*self.memtables {
            [_, .., oldest] => Some(oldest),
            _ => None,
        }
    }

    /// The same with a new memtable in front.
    #[must_use]
    pub fn rotated(&self) -> Self {
        let new = Arc::new(Memtable::new());
        Self {
            memtables: std::iter::once(new).chain(self.memtables.iter().cloned()).collect(),
        }
    }

    /// The same without a memtable that has become rows. The active one stays.
    #[must_use]
    pub fn without(&self, flushed: &Arc<Memtable>) -> Self {
        let (active, immutables) = self
            .memtables
            .split_first()
            .expect("no change leaves a list without memtables");
        Self {
            memtables: std::iter::once(active)
                .chain(immutables.iter().filter(|memtable| !Arc::ptr_eq(memtable, flushed)))
                .cloned()
                .collect(),
        }
    }

    /// Returns these memtables, followed by those of `older` that are not among them.
    #[must_use]
    pub fn over(&self, older: &Self) -> Self {
        if Arc::ptr_eq(&self.memtables, &older.memtables) {
            return self.clone();
        }
        let is_known = |memtable: &&Arc<Memtable>| self.memtables.iter().any(|known| Arc::ptr_eq(known, memtable));
        let behind = older.memtables.iter().filter(|memtable| !is_known(memtable));
        Self {
            memtables: self.memtables.iter().chain(behind).cloned().collect(),
        }
    }

    /// Bytes of all memtables, as [`Memtable::bytes`] counts them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memtables.iter().map(|memtable| memtable.bytes()).sum()
    }

    /// The newest version of `key` not after `at`, with its revision. `None` says nothing: the key may be in rows.
    #[must_use]
    pub fn get(&self, key: &[u8], at: Revision) -> Option<(Revision, Version)> {
        self.get_hashed(key, KeyHash::of(key), at)
    }

    /// The same with the hash of the key.
    #[must_use]
    pub fn get_hashed(&self, key: &[u8], hash: KeyHash, at: Revision) -> Option<(Revision, Version)> {
        self.memtables
            .iter()
            .find_map(|memtable| memtable.get_hashed(key, hash, at))
    }

    /// The newest version not after `at` of each key of `span`, tombstones included, in order of keys.
    #[must_use]
    pub fn range(&self, span: &MemtableSpan, at: Revision, order: Order) -> Merge<'_> {
        Merge {
            order,
            sources: self
                .memtables
                .iter()
                .map(|memtable| {
                    let mut range = memtable.range(span, at, order);
                    MergeSource {
                        head: range.next(),
                        range,
                    }
                })
                .collect(),
        }
    }
}

/// Ranges of several memtables as one. If several hold a key, the newest memtable wins.
#[derive(Debug)]
pub struct Merge<'a> {
    order: Order,
    /// Newest first.
    sources: Vec<MergeSource<'a>>,
}

#[derive(Debug)]
struct MergeSource<'a> {
    head: Option<Found>,
    range: Range<'a>,
}

impl Iterator for Merge<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let mut first: Option<(usize, &Bytes)> = None;
        for (index, source) in self.sources.iter().enumerate() {
            let Some(head) = &source.head else { continue };
            let earlier = first.is_none_or(|(_, key)| match self.order {
                Order::Ascending => head.key < *key,
                Order::Descending => head.key > *key,
            });
            if earlier {
                first = Some((index, &head.key));
            }
        }
        let (winner, _) = first?;
        let (source, older) = self.sources.get_mut(winner..)?.split_first_mut()?;
        let found = source.advance()?;
        for source in older {
            if source.head.as_ref().is_some_and(|head| head.key == found.key) {
                source.advance();
            }
        }
        Some(found)
    }
}

impl MergeSource<'_> {
    fn advance(&mut self) -> Option<Found> {
        std::mem::replace(&mut self.head, self.range.next())
    }
}

#[cfg(test)]
mod tests;
