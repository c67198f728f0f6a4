//! A map from ranges of keys: a treap ordered by range whose subtrees know their furthest end.
//!
//! Invariant: a parent's priority is not lower than its children's, and `furthest` is the node with the greatest end in the subtree
//! of its node.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;

use crate::range::RangeEnd;

/// The position of a node; [`NO_NODE`] is no node.
type Link = u32;
const NO_NODE: Link = Link::MAX;

#[derive(Debug)]
struct Node<T> {
    from: Bytes,
    end: RangeEnd,
    /// `None` before it is created.
    value: Option<T>,
    priority: u64,
    left: Link,
    right: Link,
    furthest: Link,
}

/// The values, one for each distinct range.
#[derive(Debug)]
pub(super) struct Spans<T> {
    /// Without gaps: when a node is removed, the last one takes its place.
    nodes: Vec<Node<T>>,
    root: Link,
    /// Makes the shape of the tree unpredictable for the clients that choose the ranges.
    seed: RandomState,
    inserted: u64,
}

impl<T> Spans<T> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            root: NO_NODE,
            seed: RandomState::new(),
            inserted: 0,
        }
    }

    /// Returns the value of a range; creates it if there is none.
    pub(super) fn get_or_insert_with(&mut self, from: &Bytes, end: &RangeEnd, make: impl FnOnce() -> T) -> &mut T {
        let link = match self.link(from, end) {
            NO_NODE => self.insert(from.clone(), end.clone()),
            link => link,
        };
        self.node_mut(link).value.get_or_insert_with(make)
    }

    /// Returns the value of a range.
    pub(super) fn get_mut(&mut self, from: &Bytes, end: &RangeEnd) -> Option<&mut T> {
        match self.link(from, end) {
            NO_NODE => None,
            link => self.node_mut(link).value.as_mut(),
        }
    }

    /// Removes a range and returns its value.
    pub(super) fn remove(&mut self, from: &Bytes, end: &RangeEnd) -> Option<T> {
        let link = self.link(from, end);
        if link == NO_NODE {
            return None;
        }
        self.root = self.cut(self.root, from, end);
        let last = Link::try_from(self.nodes.len() - 1).ok()?;
        if last != link {
            self.rename(last, link);
        }
        let removed = self.nodes.swap_remove(link as usize);
        if self.nodes.capacity() > super::MIN_KEPT_RANGES.max(4 * self.nodes.len()) {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        removed.value
    }

    /// Replaces all references to a node by its new position, before it is moved there.
    fn rename(&mut self, at: Link, to: Link) {
        let node = self.node(at);
        let (from, end) = (node.from.clone(), node.end.clone());
        let mut link = std::mem::replace(&mut self.root, NO_NODE);
        self.root = if link == at { to } else { link };
        while link != NO_NODE {
            let node = self.node_mut(link);
            if node.furthest == at {
                node.furthest = to;
            }
            let next = match (&from, &end).cmp(&(&node.from, &node.end)) {
                Ordering::Less => &mut node.left,
                Ordering::Greater => &mut node.right,
                Ordering::Equal => return,
            };
            link = *next;
            if link == at {
                *next = to;
            }
        }
    }

    /// Calls `found` for the value of every range that `key` is in.
    pub(super) fn stab<'a>(&'a self, key: &[u8], found: &mut impl FnMut(&'a T)) {
        self.stab_below(self.root, key, found);
    }

    /// Returns all values, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.value.as_ref())
    }

    fn stab_below<'a>(&'a self, mut link: Link, key: &[u8], found: &mut impl FnMut(&'a T)) {
        while link != NO_NODE {
            let node = self.node(link);
            if !self.node(node.furthest).end.is_after(key) {
                return; // no range below reaches as far as the key
            }
            self.stab_below(node.left, key, found);
            if node.from.as_ref() > key {
                return; // all ranges to the right begin after the key
            }
            if node.end.is_after(key) {
                node.value.iter().for_each(&mut *found);
            }
            link = node.right;
        }
    }

    fn link(&self, from: &Bytes, end: &RangeEnd) -> Link {
        let mut link = self.root;
        while link != NO_NODE {
            let node = self.node(link);
            link = match (from, end).cmp(&(&node.from, &node.end)) {
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
                Ordering::Equal => return link,
            };
        }
        NO_NODE
    }

    fn insert(&mut self, from: Bytes, end: RangeEnd) -> Link {
        self.inserted += 1;
        let priority = self.seed.hash_one(self.inserted);
        let (left, right) = self.split(self.root, &from, &end);
        let node = Node {
            from,
            end,
            value: None,
            priority,
            left: NO_NODE,
            right: NO_NODE,
            furthest: NO_NODE,
        };
        self.nodes.push(node);
        let link = Link::try_from(self.nodes.len() - 1).expect("fewer than 2^32 ranges fit into memory");
        self.node_mut(link).furthest = link;
        let left = self.join(left, link);
        self.root = self.join(left, right);
        link
    }

    /// Removes one range from the subtree and returns its new root.
    fn cut(&mut self, link: Link, from: &Bytes, end: &RangeEnd) -> Link {
        if link == NO_NODE {
            return NO_NODE;
        }
        let node = self.node(link);
        let (left, right) = (node.left, node.right);
        match (from, end).cmp(&(&node.from, &node.end)) {
            Ordering::Less => self.node_mut(link).left = self.cut(left, from, end),
            Ordering::Greater => self.node_mut(link).right = self.cut(right, from, end),
            Ordering::Equal => return self.join(left, right),
        }
        self.measure(link);
        link
    }

    /// Splits a subtree into the ranges below a range and the rest.
    fn split(&mut self, link: Link, from: &Bytes, end: &RangeEnd) -> (Link, Link) {
        if link == NO_NODE {
            return (NO_NODE, NO_NODE);
        }
        let node = self.node(link);
        let (left, right) = (node.left, node.right);
        if (&node.from, &node.end) < (from, end) {
            let (low, high) = self.split(right, from, end);
            self.node_mut(link).right = low;
            self.measure(link);
            (link, high)
        } else {
            let (low, high) = self.split(left, from, end);
            self.node_mut(link).left = high;
            self.measure(link);
            (low, link)
        }
    }

    /// Merges two subtrees; all ranges of the first are below those of the second.
    fn join(&mut self, low: Link, high: Link) -> Link {
        if low == NO_NODE {
            return high;
        }
        if high == NO_NODE {
            return low;
        }
        if self.node(low).priority >= self.node(high).priority {
            let right = self.node(low).right;
            self.node_mut(low).right = self.join(right, high);
            self.measure(low);
            low
        } else {
            let left = self.node(high).left;
            self.node_mut(high).left = self.join(low, left);
            self.measure(high);
            high
        }
    }

    /// Recomputes `furthest` from the node and its children.
    fn measure(&mut self, link: Link) {
        let node = self.node(link);
        let mut furthest = link;
        for child in [node.left, node.right] {
            if child != NO_NODE {
                let candidate = self.node(child).furthest;
                if self.node(candidate).end > self.node(furthest).end {
                    furthest = candidate;
                }
            }
        }
        self.node_mut(link).furthest = furthest;
    }

    fn node(&self, link: Link) -> &Node<T> {
        &self.nodes[link as usize]
    }

    fn node_mut(&mut self, link: Link) -> &mut Node<T> {
        &mut self.nodes[link as usize]
    }
}

#[cfg(test)]
impl<T> Spans<T> {
    /// Returns the capacity for ranges, and the bytes of the stored keys.
    pub(super) fn held(&self) -> (usize, usize) {
        let bytes = |node: &Node<T>| {
            let end = if let RangeEnd::Before(end) = &node.end {
                end.len()
            } else {
                0
            };
            node.from.len() + end
        };
        (self.nodes.capacity(), self.nodes.iter().map(bytes).sum())
    }

    /// Checks the invariants, and returns the depth of the tree.
    pub(super) fn verify(&self) -> usize {
        self.verify_below(self.root)
    }

    fn verify_below(&self, link: Link) -> usize {
        if link == NO_NODE {
            return 0;
        }
        let node = self.node(link);
        let mut furthest = &node.end;
        for child in [node.left, node.right].into_iter().filter(|child| *child != NO_NODE) {
            assert!(
                self.node(child).priority <= node.priority,
                "a child outranks its parent"
            );
            furthest = furthest.max(&self.node(self.node(child).furthest).end);
        }
        assert_eq!(&self.node(node.furthest).end, furthest, "furthest is wrong");
        1 + self.verify_below(node.left).max(self.verify_below(node.right))
    }
}
