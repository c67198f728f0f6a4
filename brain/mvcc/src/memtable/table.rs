//! One memtable: a map ordered by key and, within a key, newest first. One task writes it while any number of others read.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::{Bound, RangeInclusive};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;

use super::Version;
use crate::key_filter::{KeyFilter, KeyHash};
use engine::rows::Order;
use etcd_types::types::Revision;

/// Memory that a version takes beside key and value: the node, its tower, and the owners of two byte strings.
const VERSION_OVERHEAD_BYTES: usize = 200;

/// Words of the filter: a memtable of 8 MiB has at most 40,000 versions, which is 13 bits for each.
const FILTER_WORDS: usize = 8_192;

/// Versions of one key that are walked over before they are jumped over.
const MAX_STEPS_BEFORE_SEEK: usize = 4;

/// A part of the key space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemtableSpan {
    /// First key.
    pub from: Bytes,
    /// End, not part of it; `None` is the end of all keys.
    pub to: Option<Bytes>,
}

impl MemtableSpan {
    /// All keys.
    #[must_use]
    pub fn all() -> Self {
        Self {
            from: Bytes::new(),
            to: None,
        }
    }
}

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The key.
    pub key: Bytes,
    /// The revision that made the version.
    pub revision: Revision,
    /// The version.
    pub version: Version,
}

/// Versions of keys in memory.
///
/// Readers pass a revision, so that they do not see versions of later revisions that are inserted while they read.
#[derive(Debug)]
pub struct Memtable {
    versions: SkipMap<VersionPlace, Version>,
    filter: KeyFilter,
    count: AtomicUsize,
    bytes: AtomicUsize,
    first: AtomicI64,
    last: AtomicI64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self::new()
    }
}

impl Memtable {
    /// No versions.
    #[must_use]
    pub fn new() -> Self {
        Self {
            versions: SkipMap::new(),
            filter: KeyFilter::new(FILTER_WORDS),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            first: AtomicI64::new(Revision::MAX),
            last: AtomicI64::new(Revision::MIN),
        }
    }

    /// Adds the version of `key` at `revision`. Each key once per revision.
    pub fn insert(&self, key: Bytes, revision: Revision, version: Version) {
        let bytes = key.len() + version.value.as_ref().map_or(0, Bytes::len) + VERSION_OVERHEAD_BYTES;
        self.filter.insert(KeyHash::of(&key));
        self.versions.insert(VersionPlace { key, revision }, version);
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.first.fetch_min(revision, Relaxed);
        self.last.fetch_max(revision, Relaxed);
    }

    /// Counts a row that is no version and is flushed with them.
    pub fn count_beside(&self, row: &[u8], value: Option<&Bytes>) {
        let bytes = row.len() + value.map_or(0, Bytes::len) + VERSION_OVERHEAD_BYTES;
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Versions inserted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Returns true if nothing was inserted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of keys and values, and of the rows beside them, and an estimate of the overhead.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The lowest and the highest revision inserted.
    #[must_use]
    pub fn revisions(&self) -> Option<RangeInclusive<Revision>> {
        let (first, last) = (self.first.load(Relaxed), self.last.load(Relaxed));
        (first <= last).then_some(first..=last)
    }

    /// The newest version of `key` not after `at`, with its revision.
    #[must_use]
    pub fn get(&self, key: &[u8], at: Revision) -> Option<(Revision, Version)> {
        self.get_hashed(key, KeyHash::of(key), at)
    }

    /// The same with the hash of the key.
    pub(super) fn get_hashed(&self, key: &[u8], hash: KeyHash, at: Revision) -> Option<(Revision, Version)> {
        if !self.filter.may_contain(hash) {
            return None;
        }
        let entry = self.seek(key, at)?;
        (entry.key().key == key).then(|| (entry.key().revision, entry.value().clone()))
    }

    /// The newest version not after `at` of each key of `span`, in order of keys. Costs what there are keys, not versions.
    #[must_use]
    pub fn range(&self, span: &MemtableSpan, at: Revision, order: Order) -> Range<'_> {
        let next = match (order, &span.to) {
            (Order::Ascending, _) => self.seek(&span.from, Revision::MAX),
            (Order::Descending, Some(to)) => self.before(to),
            (Order::Descending, None) => self.versions.back(),
        };
        Range {
            memtable: self,
            span: span.clone(),
            at,
            order,
            next,
        }
    }

    /// The newest version of each key, in ascending order of keys.
    #[must_use]
    pub fn newest(&self) -> Range<'_> {
        self.range(&MemtableSpan::all(), Revision::MAX, Order::Ascending)
    }

    /// Every version, in ascending order of keys, newest first within a key.
    #[must_use]
    pub fn versions(&self) -> MemtableVersions<'_> {
        MemtableVersions {
            next: self.versions.front(),
        }
    }

    /// Every version after that of `key` at `revision`, in the same order.
    #[must_use]
    pub fn versions_behind(&self, key: &[u8], revision: Revision) -> MemtableVersions<'_> {
        MemtableVersions {
            next: self
                .versions
                .lower_bound(Bound::Excluded(&(key, revision) as &dyn VersionPosition)),
        }
    }

    /// The first place at or after `key` as of `at`.
    fn seek(&self, key: &[u8], at: Revision) -> Option<TableEntry<'_>> {
        self.versions
            .lower_bound(Bound::Included(&(key, at) as &dyn VersionPosition))
    }

    /// The first place of the first key after `key`.
    fn behind(&self, key: &[u8]) -> Option<TableEntry<'_>> {
        self.versions
            .lower_bound(Bound::Excluded(&(key, Revision::MIN) as &dyn VersionPosition))
    }

    /// The last place of the last key before `key`.
    fn before(&self, key: &[u8]) -> Option<TableEntry<'_>> {
        self.versions
            .upper_bound(Bound::Excluded(&(key, Revision::MAX) as &dyn VersionPosition))
    }
}

type TableEntry<'a> = Entry<'a, VersionPlace, Version>;

/// The newest versions of a range of keys.
#[derive(Debug)]
pub struct Range<'a> {
    memtable: &'a Memtable,
    span: MemtableSpan,
    at: Revision,
    order: Order,
    /// Ascending the newest, descending the oldest version of the next key.
    next: Option<TableEntry<'a>>,
}

impl Iterator for Range<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let node = self.next.take()?;
            let key = node.key().key.clone();
            if key < self.span.from || self.span.to.as_ref().is_some_and(|to| key >= *to) {
                return None;
            }
            let found = match self.order {
                Order::Ascending => self.ascend(node, &key),
                Order::Descending => self.descend(&node, &key),
            };
            if let Some(node) = found {
                return Some(found_at(&node));
            }
        }
    }
}

impl<'a> Range<'a> {
    /// The version of `key` to show, from its newest one; moves on to the next key.
    fn ascend(&mut self, newest: TableEntry<'a>, key: &[u8]) -> Option<TableEntry<'a>> {
        let old_enough = |node: &TableEntry<'a>| node.key().key != key || node.key().revision <= self.at;
        let seen = walk(newest, old_enough).unwrap_or_else(|| self.memtable.seek(key, self.at))?;
        if seen.key().key != key {
            self.next = Some(seen);
            return None;
        }
        self.next = walk(seen.clone(), |node| node.key().key != key).unwrap_or_else(|| self.memtable.behind(key));
        Some(seen)
    }

    /// The version of `key` to show, from its oldest one; moves on to the key before.
    fn descend(&mut self, oldest: &TableEntry<'a>, key: &[u8]) -> Option<TableEntry<'a>> {
        self.next = self.memtable.before(key);
        if oldest.key().revision > self.at {
            return None;
        }
        self.memtable.seek(key, self.at).filter(|node| node.key().key == key)
    }
}

/// The first node from `node` on that `fits`, or the end; `None` if it is more than a few steps away.
fn walk<'a>(node: TableEntry<'a>, fits: impl Fn(&TableEntry<'a>) -> bool) -> Option<Option<TableEntry<'a>>> {
    let mut node = node;
    for _ in 0..MAX_STEPS_BEFORE_SEEK {
        if fits(&node) {
            return Some(Some(node));
        }
        match node.next() {
            Some(next) => node = next,
            None => return Some(None),
        }
    }
    None
}

/// Every version of a memtable.
#[derive(Debug)]
pub struct MemtableVersions<'a> {
    next: Option<TableEntry<'a>>,
}

impl Iterator for MemtableVersions<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let node = self.next.take()?;
        self.next = node.next();
        Some(found_at(&node))
    }
}

fn found_at(node: &TableEntry<'_>) -> Found {
    Found {
        key: node.key().key.clone(),
        revision: node.key().revision,
        version: node.value().clone(),
    }
}

/// The position of a version.
#[derive(Debug)]
struct VersionPlace {
    key: Bytes,
    revision: Revision,
}

/// A place, or a key and a revision to look a place up by without making one.
trait VersionPosition {
    fn at(&self) -> (&[u8], Revision);
}

impl VersionPosition for VersionPlace {
    fn at(&self) -> (&[u8], Revision) {
        (&self.key, self.revision)
    }
}

impl VersionPosition for (&[u8], Revision) {
    fn at(&self) -> (&[u8], Revision) {
        *self
    }
}

fn order(a: (&[u8], Revision), b: (&[u8], Revision)) -> Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}

impl<'a> Borrow<dyn VersionPosition + 'a> for VersionPlace {
    fn borrow(&self) -> &(dyn VersionPosition + 'a) {
        self
    }
}

impl Ord for dyn VersionPosition + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        order(self.at(), other.at())
    }
}

impl PartialOrd for dyn VersionPosition + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn VersionPosition + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn VersionPosition + '_ {}

impl Ord for VersionPlace {
    fn cmp(&self, other: &Self) -> Ordering {
        order(self.at(), other.at())
    }
}

impl PartialOrd for VersionPlace {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for VersionPlace {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for VersionPlace {}
