//! Whom a key concerns: watchers by the range of keys that they ask for.
//!
//! Watchers of one key are found by hash, those of a range through a balanced tree in which every subtree knows how
//! far its ranges reach. Watchers of equal ranges share one place. Finding costs O(log ranges + matches).

mod spans;

use std::collections::HashMap;

use bytes::Bytes;

use self::spans::Spans;
use super::range::{KeyRange, Shape};

/// Watchers by range. Ids are unique, and taken in ascending order by [`Index::insert`].
#[derive(Debug)]
pub(super) struct Index<T> {
    keys: HashMap<Bytes, Vec<(u64, T)>>,
    spans: Spans<(u64, T)>,
}

impl<T> Index<T> {
    pub(super) fn new() -> Self {
        Self {
            keys: HashMap::new(),
            spans: Spans::new(),
        }
    }

    pub(super) fn insert(&mut self, range: &KeyRange, id: u64, value: T) {
        let group = match &range.0 {
            Shape::One(key) => self.keys.entry(key.clone()).or_default(),
            Shape::Span(from, end) => self.spans.group(from, end),
        };
        let at = group.partition_point(|(other, _)| *other < id);
        group.insert(at, (id, value));
    }

    /// Takes out what was inserted under this range and id.
    pub(super) fn remove(&mut self, range: &KeyRange, id: u64) -> Option<T> {
        let group = match &range.0 {
            Shape::One(key) => self.keys.get_mut(key)?,
            Shape::Span(from, end) => self.spans.find(from, end)?,
        };
        let at = group.binary_search_by_key(&id, |(other, _)| *other).ok()?;
        let (_, value) = group.remove(at);
        if group.is_empty() {
            match &range.0 {
                Shape::One(key) => drop(self.keys.remove(key)),
                Shape::Span(from, end) => self.spans.remove(from, end),
            }
        } else if group.capacity() > 2 * group.len() {
            group.shrink_to_fit();
        }
        Some(value)
    }

    /// Calls `found` once for every watcher whose range `key` is in.
    pub(super) fn matches(&self, key: &[u8], mut found: impl FnMut(u64, &T)) {
        for (id, value) in self.keys.get(key).into_iter().flatten() {
            found(*id, value);
        }
        self.spans.stab(key, &mut |group| {
            for (id, value) in group {
                found(*id, value);
            }
        });
    }

    /// Every watcher, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        let spans = self.spans.groups().flatten();
        self.keys.values().flatten().chain(spans).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests;
