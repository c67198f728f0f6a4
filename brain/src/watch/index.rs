//! Whom a key concerns: watchers by the range of keys that they ask for.
//!
//! Watchers of one key are found by hash, those of a range through a balanced tree in which every subtree knows how
//! far its ranges reach. Watchers of equal ranges share one place. Finding costs O(log ranges + matches).

mod spans;

use std::collections::HashMap;

use bytes::Bytes;

use self::spans::Spans;
use super::range::{KeyRange, Shape};

/// Watchers of one range.
#[derive(Debug)]
pub(super) struct Group<T> {
    /// Unique among the groups of an index.
    id: u64,
    /// By id, ascending.
    members: Vec<(u64, T)>,
}

impl<T> Group<T> {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &T> {
        self.members.iter().map(|(_, value)| value)
    }
}

/// Watchers by range.
#[derive(Debug)]
pub(super) struct Index<T> {
    keys: HashMap<Bytes, Group<T>>,
    spans: Spans<Group<T>>,
    last_id: u64,
}

impl<T> Index<T> {
    pub(super) fn new() -> Self {
        Self {
            keys: HashMap::new(),
            spans: Spans::new(),
            last_id: 0,
        }
    }

    /// Adds a watcher and answers the id to remove it by.
    pub(super) fn insert(&mut self, range: &KeyRange, value: T) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let group = || Group {
            id,
            members: Vec::with_capacity(1),
        };
        let group = match &range.0 {
            Shape::One(key) => self.keys.entry(key.clone()).or_insert_with(group),
            Shape::Span(from, end) => self.spans.get_or_insert_with(from, end, group),
        };
        group.members.push((id, value));
        id
    }

    /// Takes out what was inserted under this range and id.
    pub(super) fn remove(&mut self, range: &KeyRange, id: u64) -> Option<T> {
        let group = match &range.0 {
            Shape::One(key) => self.keys.get_mut(key)?,
            Shape::Span(from, end) => self.spans.get_mut(from, end)?,
        };
        let at = group.members.binary_search_by_key(&id, |(other, _)| *other).ok()?;
        let (_, value) = group.members.remove(at);
        if group.members.is_empty() {
            match &range.0 {
                Shape::One(key) => drop(self.keys.remove(key)),
                Shape::Span(from, end) => drop(self.spans.remove(from, end)),
            }
        } else if group.members.capacity() > 4 * group.members.len() {
            group.members.shrink_to(2 * group.members.len());
        }
        Some(value)
    }

    /// Calls `found` once for the watchers of every range that `key` is in.
    pub(super) fn matches<'a>(&'a self, key: &[u8], mut found: impl FnMut(&'a Group<T>)) {
        if let Some(group) = self.keys.get(key) {
            found(group);
        }
        self.spans.stab(key, &mut found);
    }

    /// Every watcher, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.keys.values().chain(self.spans.values()).flat_map(Group::members)
    }
}

#[cfg(test)]
mod tests;
