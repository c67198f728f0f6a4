//! The index from keys to watchers, by the range of keys that they watch.
//!
//! Watchers of one key are found by hash, those of a range in a balanced tree in which every subtree knows the furthest end of its
//! ranges. Watchers of equal ranges share one entry. A lookup costs O(log ranges + matching ranges), independent of the number of
//! watchers of each range, and a removal costs no more than a lookup and a part of the group.

mod spans;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use self::spans::Spans;
use super::range::{KeyRange, RangeShape};

/// The watchers of one range.
#[derive(Debug)]
pub(super) struct Group<T> {
    /// Unique among the groups of an index.
    id: u64,
    members: Members<T>,
}

impl<T> Group<T> {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn members(&self) -> &Members<T> {
        &self.members
    }
}

/// A snapshot of the watchers of one range. A clone is cheap, and does not change with the group: shared data is copied when the
/// group changes, one part of bounded size at a time.
#[derive(Debug, Clone)]
pub(super) struct Members<T>(Held<T>);

/// Watchers in ascending order of their ids, in parts that are never empty.
type Parts<T> = Arc<Vec<Arc<Vec<(u64, T)>>>>;

#[derive(Debug, Clone)]
enum Held<T> {
    /// The most common case.
    One(u64, T),
    Many(Parts<T>),
}

/// The number of watchers in one part.
const WATCHERS_PER_PART: usize = 256;

impl<T: Clone> Members<T> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, many) = match &self.0 {
            Held::One(_, value) => (Some(value), None),
            Held::Many(parts) => (None, Some(parts)),
        };
        let many = many.into_iter().flat_map(|parts| parts.iter());
        one.into_iter()
            .chain(many.flat_map(|part| part.iter().map(|(_, value)| value)))
    }

    /// Adds a watcher, whose id must be higher than all others.
    fn push(&mut self, id: u64, value: T) {
        if let Held::One(first, before) = &self.0 {
            self.0 = Held::Many(Arc::new(vec![Arc::new(vec![(*first, before.clone())])]));
        }
        if let Held::Many(parts) = &mut self.0 {
            let parts = Arc::make_mut(parts);
            match parts.last_mut().filter(|part| part.len() < WATCHERS_PER_PART) {
                Some(part) => Arc::make_mut(part).push((id, value)),
                None => parts.push(Arc::new(vec![(id, value)])),
            }
        }
    }

    /// Removes a watcher from a group of several; a group of one is removed as a whole instead.
    fn remove(&mut self, id: u64) -> Option<T> {
        let Held::Many(parts) = &mut self.0 else { return None };
        let at = parts.partition_point(|part| part.last().is_some_and(|(last, _)| *last < id));
        let place = parts.get(at)?.binary_search_by_key(&id, |(other, _)| *other).ok()?;
        let parts = Arc::make_mut(parts);
        let part = Arc::make_mut(&mut parts[at]);
        let (_, value) = part.remove(place);
        if part.is_empty() {
            parts.remove(at);
        } else if part.capacity() > 4 * part.len() {
            part.shrink_to(2 * part.len());
        }
        if parts.capacity() > 4 * parts.len() {
            parts.shrink_to(2 * parts.len());
        }
        Some(value)
    }

    /// Returns the watcher with this id, if it is the only one.
    fn only(&self, id: u64) -> Option<&T> {
        match &self.0 {
            Held::One(one, value) => (*one == id).then_some(value),
            Held::Many(parts) => match parts.as_slice() {
                [part] => match part.as_slice() {
                    [(one, value)] => (*one == id).then_some(value),
                    _ => None,
                },
                _ => None,
            },
        }
    }
}

/// Watchers by range.
#[derive(Debug)]
pub(super) struct Index<T> {
    keys: HashMap<Bytes, Group<T>>,
    spans: Spans<Group<T>>,
    last_id: u64,
}

impl<T: Clone> Index<T> {
    pub(super) fn new() -> Self {
        Self {
            keys: HashMap::new(),
            spans: Spans::new(),
            last_id: 0,
        }
    }

    /// Adds a watcher and returns the id for its removal.
    pub(super) fn insert(&mut self, range: &KeyRange, value: T) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let members = Members(Held::One(id, value.clone()));
        let group = || Group { id, members };
        let group = match &range.0 {
            RangeShape::One(key) => self.keys.entry(key.clone()).or_insert_with(group),
            RangeShape::Span(from, end) => self.spans.get_or_insert_with(from, end, group),
        };
        if group.id != id {
            group.members.push(id, value);
        }
        id
    }

    /// Removes the watcher with this range and id.
    pub(super) fn remove(&mut self, range: &KeyRange, id: u64) -> Option<T> {
        let group = match &range.0 {
            RangeShape::One(key) => self.keys.get_mut(key)?,
            RangeShape::Span(from, end) => self.spans.get_mut(from, end)?,
        };
        let Some(value) = group.members.only(id).cloned() else {
            return group.members.remove(id);
        };
        match &range.0 {
            RangeShape::One(key) => {
                self.keys.remove(key);
                if self.keys.capacity() > MIN_KEPT_RANGES.max(4 * self.keys.len()) {
                    self.keys.shrink_to(2 * self.keys.len());
                }
            }
            RangeShape::Span(from, end) => drop(self.spans.remove(from, end)),
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

    /// Returns every watcher, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &Members<T>> {
        self.keys.values().chain(self.spans.values()).map(Group::members)
    }
}

/// The number of ranges for which memory is always kept.
const MIN_KEPT_RANGES: usize = 64;

#[cfg(test)]
mod tests;
