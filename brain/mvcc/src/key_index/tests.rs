use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const MAX: usize = 64 << 20;

fn change(key: &str, version: i64, prev_mod: Revision) -> KeyChange {
    KeyChange {
        key: Bytes::copy_from_slice(key.as_bytes()),
        version,
        prev_mod,
        ..KeyChange::default()
    }
}

fn span(from: &str, to: &str) -> Span {
    Span {
        key: Bytes::copy_from_slice(from.as_bytes()),
        end: Bytes::copy_from_slice(to.as_bytes()),
    }
}

/// A store of keys without values, and the index that follows it.
struct Store {
    index: KeyIndex,
    rng: StdRng,
    states: BTreeMap<Revision, BTreeSet<String>>,
}

impl Store {
    fn new(seed: u64) -> Self {
        Self {
            index: KeyIndex::new(1),
            rng: StdRng::seed_from_u64(seed),
            states: BTreeMap::from([(1, BTreeSet::new())]),
        }
    }

    fn revision(&self) -> Revision {
        *self.states.last_key_value().unwrap().0
    }

    fn keys(&self) -> BTreeSet<String> {
        self.states.last_key_value().unwrap().1.clone()
    }

    fn key(&mut self) -> String {
        format!(
            "/registry/{}/{}",
            self.rng.random_range(0..3),
            self.rng.random_range(0..200)
        )
    }

    /// Some changes at the next revision.
    fn change(&mut self) {
        let (mut keys, revision) = (self.keys(), self.revision() + 1);
        let mut changes = Vec::new();
        if self.rng.random_ratio(1, 60) {
            let prefix = format!("/registry/{}/", self.rng.random_range(0..3));
            let gone: Vec<String> = keys.iter().filter(|key| key.starts_with(&prefix)).cloned().collect();
            changes.extend(gone.iter().map(|key| change(key, 0, 1)));
            gone.iter().for_each(|key| assert!(keys.remove(key)));
        }
        for _ in 0..self.rng.random_range(1..20) {
            let key = self.key();
            if self.rng.random_ratio(1, 3) {
                if keys.remove(&key) {
                    changes.push(change(&key, 0, 1));
                }
            } else if keys.insert(key.clone()) {
                changes.push(change(&key, 1, 0));
            } else {
                changes.push(change(&key, 2, 1));
            }
        }
        self.index.record(revision, &changes);
        self.states.insert(revision, keys);
    }

    fn build(&mut self) {
        let begun = self.index.begin(MAX).unwrap();
        assert!(begun <= self.revision());
        let mut from = String::new();
        loop {
            let (view, piece) = (self.revision(), self.rng.random_range(1..100));
            let keys = self.keys();
            // The writer continues while the index is built.
            for _ in 0..self.rng.random_range(0..4) {
                self.change();
            }
            while self.index.build_up_to(view) {}
            for _ in 0..self.rng.random_range(0..4) {
                self.change();
            }
            let found: Vec<Bytes> = keys
                .range(from.clone()..)
                .take(piece)
                .map(|key| key.clone().into())
                .collect();
            let next = found
                .last()
                .filter(|_| found.len() == piece)
                .map(|last| [last, &b"\0"[..]].concat());
            self.index.build(&found, next.clone().map(Bytes::from), view);
            let Some(next) = next else { return };
            from = String::from_utf8(next).unwrap();
        }
    }

    fn check(&mut self, revision: Revision) {
        let keys = &self.states[&revision];
        let (from, to) = (self.rng.random_range(0..3), self.rng.random_range(0..4));
        let n = self.rng.random_range(0..200);
        for span in [
            span(&format!("/registry/{from}/{n}"), &format!("/registry/{to}/")),
            span(&format!("/registry/{from}/"), "\0"),
            span("\0", "\0"),
            span(&format!("/registry/{from}/{n}"), ""),
        ] {
            let counted = loop {
                match self.index.count(&span, revision) {
                    IndexCount::Behind => drop(self.index.apply_some()),
                    counted => break counted,
                }
            };
            let there = keys.iter().filter(|key| span.contains(key.as_bytes())).count();
            assert_eq!(
                counted,
                IndexCount::Keys(i64::try_from(there).unwrap()),
                "{span:?} at {revision}"
            );
        }
    }
}

#[test]
fn index_counts_as_a_set_does_at_every_revision_since_it_was_built() {
    for seed in 0..20 {
        let mut store = Store::new(seed);
        for _ in 0..store.rng.random_range(0..200) {
            store.change();
        }
        store.build();
        let first = store.index.built().at;
        for _ in 0..300 {
            store.change();
            let old = store.rng.random_range(first..=store.revision());
            store.check(old);
            store.check(store.revision());
        }
        assert_eq!(store.index.count(&span("\0", "\0"), first - 1), IndexCount::Unknown);
    }
}

#[test]
fn changes_of_one_revision_are_counted_together_or_not_at_all() {
    let index = KeyIndex::new(1);
    index.begin(MAX).unwrap();
    while index.build_up_to(1) {}
    index.build(&[], None, 1);
    let changes: Vec<KeyChange> = (0..CHANGES_PER_TURN * 3)
        .map(|n| change(&format!("{n:06}"), 1, 0))
        .collect();
    index.record(2, &changes);
    let all = span("\0", "\0");
    assert_eq!(index.count(&all, 2), IndexCount::Behind);
    assert!(index.apply_some());
    assert_eq!(index.count(&all, 2), IndexCount::Behind);
    assert_eq!(index.count(&all, 1), IndexCount::Keys(0));
    while index.apply_some() {}
    assert_eq!(
        index.count(&all, 2),
        IndexCount::Keys(i64::try_from(changes.len()).unwrap())
    );
    assert_eq!(index.count(&all, 1), IndexCount::Keys(0));
}

#[test]
fn index_that_takes_too_much_memory_is_dropped() {
    let index = KeyIndex::new(1);
    let keys: Vec<Bytes> = (0..10_000).map(|n| format!("key-{n:06}").into()).collect();
    let all = span("\0", "\0");
    index.begin(16 << 10).unwrap();
    index.build(&keys, None, 1);
    assert_eq!(index.count(&all, 1), IndexCount::Unknown);
    assert_eq!(
        index.size(),
        IndexSize {
            phase: IndexPhase::Exceeded,
            keys: 0,
            bytes: 0
        }
    );
    // The queue is bounded, too.
    index.try_again();
    assert_eq!(index.size().phase, IndexPhase::Idle);
    index.begin(16 << 10).unwrap();
    while index.build_up_to(1) {}
    index.build(&[], None, 1);
    assert_eq!(index.count(&all, 1), IndexCount::Keys(0));
    for (revision, key) in (2..).zip(&keys) {
        index.record(
            revision,
            &[KeyChange {
                key: key.clone(),
                version: 1,
                ..KeyChange::default()
            }],
        );
        assert!(index.size().bytes <= 64 << 10);
    }
    assert_eq!(index.count(&all, 10_001), IndexCount::Behind);
    assert!(!index.apply_some());
    assert_eq!(index.count(&all, 10_001), IndexCount::Unknown);
    // It is built again, for keys may be few.
    assert_eq!(index.size().phase, IndexPhase::Idle);
}

/// A reader that fell behind applies changes while the index is built again.
#[test]
fn reader_does_not_push_on_an_index_that_is_being_built() {
    let index = KeyIndex::new(1);
    index.begin(MAX).unwrap();
    index.record(2, &[change("a", 1, 0), change("z", 1, 0)]);
    while index.build_up_to(1) {}
    assert!(!index.apply_some());
    index.build(&[], None, 1);
    while index.apply_some() {}
    assert_eq!(index.count(&span("\0", "\0"), 2), IndexCount::Keys(2));
}

#[test]
fn closed_index_is_not_built_again() {
    let index = KeyIndex::new(1);
    index.begin(MAX).unwrap();
    index.build(&["a".into()], None, 1);
    index.close();
    assert_eq!(index.begin(MAX), None);
    assert_eq!(index.count(&span("\0", "\0"), 1), IndexCount::Unknown);
    assert_eq!(
        index.size(),
        IndexSize {
            phase: IndexPhase::Closed,
            keys: 0,
            bytes: 0
        }
    );
}

#[test]
fn keys_that_come_and_go_leave_an_index_that_serves() {
    let index = KeyIndex::new(1);
    const MAX: usize = 1 << 20;
    index.begin(MAX).unwrap();
    index.build(&[], None, 1);
    for revision in 2..60_000 {
        let key = format!("{:0130}", revision / 2 % 128).into();
        // Put and deleted in turn.
        let version = 1 - revision % 2;
        index.record(
            revision,
            &[KeyChange {
                key,
                version,
                prev_mod: if version == 0 { revision - 1 } else { 0 },
                ..KeyChange::default()
            }],
        );
        while index.apply_some() {}
        assert!(index.size().bytes <= MAX, "{} bytes", index.size().bytes);
    }
    assert_eq!(index.size().phase, IndexPhase::Serving);
}
