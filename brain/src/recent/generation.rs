//! One generation: keys in order, each with its versions. One task writes it while any number of others read, and none of them waits.

use std::ops::{Bound, RangeInclusive};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;

use super::Version;
use super::history::{History, Node};
use super::index::Index;
use crate::mvcc::Revision;
use crate::rows::Order;

/// Memory that a version takes beside its value.
const VERSION_OVERHEAD: usize = 136;

/// Memory that a key takes beside its bytes, in the order and in the index.
const KEY_OVERHEAD: usize = 200;

/// A part of the key space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// First key.
    pub from: Bytes,
    /// End, not part of it; `None` is the end of all keys.
    pub to: Option<Bytes>,
}

impl Span {
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
/// Readers ask for a revision, so that they do not see what is inserted for later ones meanwhile.
#[derive(Debug)]
pub struct Generation {
    order: SkipMap<Bytes, Arc<History>>,
    index: Index,
    writer: Mutex<()>,
    versions: AtomicUsize,
    bytes: AtomicUsize,
    first: AtomicI64,
    last: AtomicI64,
}

impl Default for Generation {
    fn default() -> Self {
        Self::new()
    }
}

impl Generation {
    /// No versions.
    #[must_use]
    pub fn new() -> Self {
        Self {
            order: SkipMap::new(),
            index: Index::new(),
            writer: Mutex::new(()),
            versions: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            first: AtomicI64::new(Revision::MAX),
            last: AtomicI64::new(Revision::MIN),
        }
    }

    /// Adds what `key` became at `revision`. Meant for one task; two would take turns.
    ///
    /// # Panics
    /// When `key` has a version of this or a later revision: the caller has lost its place in the log.
    pub fn insert(&self, key: Bytes, revision: Revision, version: Version) {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = version.value.as_ref().map_or(0, Bytes::len) + VERSION_OVERHEAD;
        match self.index.get(&key) {
            Some(history) => history.push(revision, version),
            None => {
                bytes += key.len() + KEY_OVERHEAD;
                let history = Arc::new(History::new(revision, version));
                self.index.insert(key.clone(), history.clone());
                self.order.insert(key, history);
            }
        }
        self.versions.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.first.fetch_min(revision, Relaxed);
        self.last.fetch_max(revision, Relaxed);
    }

    /// Versions inserted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.versions.load(Relaxed)
    }

    /// Whether nothing was inserted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of keys and values, and an estimate of what holds them.
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
        self.index.find(key, |history| history.at(at))?
    }

    /// The newest version not after `at` of each key of `span`, in order of keys. Costs what there are keys, not versions.
    #[must_use]
    pub fn range(&self, span: &Span, at: Revision, order: Order) -> Range<'_> {
        let next = match (order, &span.to) {
            (Order::Ascending, _) => self.order.lower_bound::<[u8]>(Bound::Included(&span.from)),
            (Order::Descending, Some(to)) => self.order.upper_bound::<[u8]>(Bound::Excluded(to)),
            (Order::Descending, None) => self.order.back(),
        };
        Range {
            span: span.clone(),
            at,
            order,
            next,
        }
    }

    /// The newest version of each key, in ascending order of keys.
    #[must_use]
    pub fn newest(&self) -> Range<'_> {
        self.range(&Span::all(), Revision::MAX, Order::Ascending)
    }

    /// Every version, in ascending order of keys, newest first within a key.
    #[must_use]
    pub fn versions(&self) -> Versions<'_> {
        Versions {
            key: self.order.front(),
            version: None,
        }
    }
}

type Key<'a> = Entry<'a, Bytes, Arc<History>>;

/// The newest versions of a range of keys.
#[derive(Debug)]
pub struct Range<'a> {
    span: Span,
    at: Revision,
    order: Order,
    next: Option<Key<'a>>,
}

impl Iterator for Range<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            let entry = self.next.take()?;
            let key = entry.key();
            if *key < self.span.from || self.span.to.as_ref().is_some_and(|to| key >= to) {
                return None;
            }
            self.next = match self.order {
                Order::Ascending => entry.next(),
                Order::Descending => entry.prev(),
            };
            if let Some((revision, version)) = entry.value().at(self.at) {
                return Some(Found {
                    key: key.clone(),
                    revision,
                    version,
                });
            }
        }
    }
}

/// Every version of a generation.
#[derive(Debug)]
pub struct Versions<'a> {
    key: Option<Key<'a>>,
    /// The next version of `key`; `None` before its first.
    version: Option<Arc<Node>>,
}

impl Iterator for Versions<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let entry = self.key.as_ref()?;
        let node = self.version.take().unwrap_or_else(|| entry.value().newest());
        let found = Found {
            key: entry.key().clone(),
            revision: node.revision,
            version: node.version.clone(),
        };
        self.version = node.older().cloned();
        if self.version.is_none() {
            self.key = entry.next();
        }
        Some(found)
    }
}
