//! Versions not yet in rows.
//!
//! From the first record that rows do not hold on, everything is in memory, in generations: the newest one takes what is written, the older
//! ones are being made rows of. A read looks here first and in rows second; a tombstone found here hides the rows below it.
//!
//! Invariant: every revision in a generation is higher than every revision in the generations behind it. So the newest generation that knows
//! a key at or before a revision knows its newest version there.

use std::sync::Arc;

use bytes::Bytes;

pub use self::generation::{Found, Generation, Range, Span, Versions};
use crate::mvcc::{LeaseId, Revision};
use crate::rows::Order;

mod generation;

/// What a key became at a revision.
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

/// The generations that a view reads, newest first. Immutable and cheap to clone: it says which generations there are, while the newest one
/// still takes versions that views with a lower revision do not see.
#[derive(Debug, Clone)]
pub struct Recent {
    generations: Arc<[Arc<Generation>]>,
}

impl Default for Recent {
    fn default() -> Self {
        Self::new()
    }
}

impl Recent {
    /// One empty generation.
    #[must_use]
    pub fn new() -> Self {
        Self {
            generations: Arc::new([Arc::new(Generation::new())]),
        }
    }

    /// The generation that takes new versions.
    ///
    /// # Panics
    /// Never: there is always one.
    #[must_use]
    pub fn active(&self) -> &Arc<Generation> {
        self.generations
            .first()
            .expect("no change leaves a list without generations")
    }

    /// The generations, newest first.
    #[must_use]
    pub fn generations(&self) -> &[Arc<Generation>] {
        &self.generations
    }

    /// The oldest generation, unless it is the one that takes new versions: the next to become rows.
    #[must_use]
    pub fn oldest_sealed(&self) -> Option<&Arc<Generation>> {
        match &*self.generations {
            [_, .., oldest] => Some(oldest),
            _ => None,
        }
    }

    /// The same with a new generation in front.
    #[must_use]
    pub fn rotated(&self) -> Self {
        let new = Arc::new(Generation::new());
        Self {
            generations: std::iter::once(new).chain(self.generations.iter().cloned()).collect(),
        }
    }

    /// The same without a generation that has become rows. The active one stays.
    #[must_use]
    pub fn without(&self, flushed: &Arc<Generation>) -> Self {
        let (active, sealed) = self
            .generations
            .split_first()
            .expect("no change leaves a list without generations");
        Self {
            generations: std::iter::once(active)
                .chain(sealed.iter().filter(|generation| !Arc::ptr_eq(generation, flushed)))
                .cloned()
                .collect(),
        }
    }

    /// These generations, and behind them those of `older` that are not among them.
    #[must_use]
    pub fn over(&self, older: &Self) -> Self {
        if Arc::ptr_eq(&self.generations, &older.generations) {
            return self.clone();
        }
        let is_known =
            |generation: &&Arc<Generation>| self.generations.iter().any(|known| Arc::ptr_eq(known, generation));
        let behind = older.generations.iter().filter(|generation| !is_known(generation));
        Self {
            generations: self.generations.iter().chain(behind).cloned().collect(),
        }
    }

    /// Bytes of all generations, as [`Generation::bytes`] counts them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.generations.iter().map(|generation| generation.bytes()).sum()
    }

    /// The newest version of `key` not after `at`, with its revision. `None` says nothing: the key may be in rows.
    #[must_use]
    pub fn get(&self, key: &[u8], at: Revision) -> Option<(Revision, Version)> {
        self.generations.iter().find_map(|generation| generation.get(key, at))
    }

    /// The newest version not after `at` of each key of `span`, tombstones included, in order of keys.
    #[must_use]
    pub fn range(&self, span: &Span, at: Revision, order: Order) -> Merge<'_> {
        Merge {
            order,
            sources: self
                .generations
                .iter()
                .map(|generation| {
                    let mut range = generation.range(span, at, order);
                    Source {
                        head: range.next(),
                        range,
                    }
                })
                .collect(),
        }
    }
}

/// Ranges of several generations as one. Where several know a key, the newest generation wins.
#[derive(Debug)]
pub struct Merge<'a> {
    order: Order,
    /// Newest first.
    sources: Vec<Source<'a>>,
}

#[derive(Debug)]
struct Source<'a> {
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

impl Source<'_> {
    fn advance(&mut self) -> Option<Found> {
        std::mem::replace(&mut self.head, self.range.next())
    }
}

#[cfg(test)]
mod tests;
