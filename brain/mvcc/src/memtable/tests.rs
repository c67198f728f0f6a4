use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn version(n: i64) -> Version {
    Version {
        create_revision: n,
        version: 1,
        lease: LeaseId::NONE,
        prev_mod: 0,
        value: (n % 4 != 0).then(|| Bytes::from(n.to_string())),
    }
}

fn span(from: &str, to: Option<&str>) -> MemtableSpan {
    MemtableSpan {
        from: Bytes::copy_from_slice(from.as_bytes()),
        to: to.map(|to| Bytes::copy_from_slice(to.as_bytes())),
    }
}

/// The plainest thing that could be right: all versions, filtered.
#[derive(Default)]
struct Model {
    versions: BTreeMap<(Bytes, Reverse<Revision>), Version>,
}

impl Model {
    fn range(&self, span: &MemtableSpan, at: Revision, order: Order) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for ((key, Reverse(revision)), version) in &self.versions {
            let inside = *key >= span.from && span.to.as_ref().is_none_or(|to| key < to);
            if inside && *revision <= at && found.last().is_none_or(|last| last.key != *key) {
                found.push(Found {
                    key: key.clone(),
                    revision: *revision,
                    version: version.clone(),
                });
            }
        }
        if order == Order::Descending {
            found.reverse();
        }
        found
    }
}

fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0x00u8), Just(b'a'), Just(0xff)], 0..4).prop_map(Bytes::from)
}

#[derive(Debug, Clone)]
enum Step {
    /// Keys that the next revision changes.
    Commit(Vec<Bytes>),
    Rotate,
    /// The oldest immutable memtable has become rows.
    FlushResult,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => vec(key(), 1..4).prop_map(Step::Commit),
        1 => Just(Step::Rotate),
        1 => Just(Step::FlushResult),
    ]
}

proptest! {
    #[test]
    fn generations_together_find_what_one_map_finds(
        steps in vec(step(), 1..60), asks in vec((key(), proptest::option::of(key()), 0..130i64), 1..20),
    ) {
        let mut memtables = MemtableSet::new();
        let mut model = Model::default();
        let mut revision = 1;
        for step in steps {
            match step {
                Step::Commit(mut keys) => {
                    revision += 2;
                    keys.sort();
                    keys.dedup();
                    for key in keys {
                        memtables.active().insert(key.clone(), revision, version(revision));
                        model.versions.insert((key, Reverse(revision)), version(revision));
                    }
                }
                Step::Rotate => memtables = memtables.rotated(),
                Step::FlushResult => {
                    let Some(oldest) = memtables.oldest_immutable().cloned() else { continue };
                    for found in oldest.versions() {
                        prop_assert!(model.versions.remove(&(found.key, Reverse(found.revision))).is_some());
                    }
                    memtables = memtables.without(&oldest);
                }
            }
        }
        for (from, to, at) in asks {
            let got = memtables.get(&from, at);
            let span = MemtableSpan { from: from.clone(), to };
            for order in [Order::Ascending, Order::Descending] {
                prop_assert_eq!(memtables.range(&span, at, order).collect::<Vec<_>>(), model.range(&span, at, order));
            }
            let wanted = model.range(&MemtableSpan::all(), at, Order::Ascending).into_iter().find(|found| found.key == from);
            prop_assert_eq!(got, wanted.map(|found| (found.revision, found.version)));
        }
        let all: usize = memtables.memtables().iter().map(|memtable| memtable.versions().count()).sum();
        prop_assert_eq!(all, model.versions.len());
        prop_assert_eq!(memtables.memtables().iter().map(|memtable| memtable.len()).sum::<usize>(), all);
    }
}

#[test]
fn a_generation_lists_the_newest_of_each_key_and_all_of_them() {
    let memtable = Memtable::new();
    for (key, revision) in [("b", 2), ("a", 3), ("b", 5), ("c", 4), ("b", 7)] {
        memtable.insert(Bytes::from(key), revision, version(revision));
    }
    let said = |found: Found| (String::from_utf8(found.key.to_vec()).unwrap(), found.revision);
    let newest: Vec<_> = memtable.newest().map(said).collect();
    assert_eq!(newest, [("a".into(), 3), ("b".into(), 7), ("c".into(), 4)]);
    let all: Vec<_> = memtable.versions().map(said).collect();
    assert_eq!(
        all,
        [
            ("a".into(), 3),
            ("b".into(), 7),
            ("b".into(), 5),
            ("b".into(), 2),
            ("c".into(), 4)
        ]
    );
    assert_eq!(memtable.revisions(), Some(2..=7));
    assert_eq!(Memtable::new().revisions(), None);
}

#[test]
fn bytes_grow_with_keys_and_values_and_leave_with_their_generation() {
    let memtables = MemtableSet::new();
    assert_eq!(memtables.bytes(), 0);
    memtables.active().insert(Bytes::from("key"), 2, version(2));
    let small = memtables.bytes();
    let mut large = version(3);
    large.value = Some(Bytes::from(vec![0; 1000]));
    memtables.active().insert(Bytes::from("key"), 3, large);
    assert_eq!(memtables.bytes(), small + small + 999);
    let rotated = memtables.rotated();
    assert_eq!(rotated.bytes(), memtables.bytes());
    assert_eq!(memtables.oldest_immutable().map(|memtable| memtable.len()), None);
    let oldest = rotated.oldest_immutable().unwrap().clone();
    assert_eq!(rotated.without(&oldest).bytes(), 0);
    assert_eq!(rotated.without(rotated.active()).memtables().len(), 2);
}

#[test]
fn tombstones_hide_older_generations() {
    let memtables = MemtableSet::new();
    memtables.active().insert(Bytes::from("k"), 3, version(3));
    let memtables = memtables.rotated();
    memtables.active().insert(Bytes::from("k"), 4, version(4));
    assert_eq!(version(4).value, None);
    assert_eq!(memtables.get(b"k", 9), Some((4, version(4))));
    assert_eq!(memtables.get(b"k", 3), Some((3, version(3))));
    let found: Vec<_> = memtables.range(&MemtableSpan::all(), 9, Order::Ascending).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].version.value, None);
}

/// Would take minutes if a range walked over the versions that it does not show.
#[test]
fn a_hot_key_costs_a_range_no_more_than_any_other() {
    let memtable = Memtable::new();
    let hot = 100_000;
    for revision in 1..=hot {
        memtable.insert(Bytes::from("hot"), revision, version(revision));
    }
    memtable.insert(Bytes::from("after"), hot + 1, version(1));
    memtable.insert(Bytes::from("before"), hot + 2, version(1));
    let span = span("a", Some("z"));
    for at in (1..hot).step_by(10) {
        for order in [Order::Ascending, Order::Descending] {
            let mut range = memtable.range(&span, at, order);
            let found = range.next().unwrap();
            assert_eq!((found.key.as_ref(), found.revision), (&b"hot"[..], at));
            assert_eq!(range.next(), None);
        }
    }
}

#[test]
fn readers_at_a_revision_see_all_of_it_while_the_writer_goes_on() {
    let memtables = MemtableSet::new();
    let (published, done) = (AtomicI64::new(0), AtomicBool::new(false));
    let keys: Vec<Bytes> = (0..50).map(|n| Bytes::from(format!("key{n:02}"))).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for revision in 1..=2000 {
                for key in &keys {
                    memtables.active().insert(key.clone(), revision, version(revision));
                }
                published.store(revision, Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        for order in [Order::Ascending, Order::Descending] {
            let (memtables, published, done, keys) = (&memtables, &published, &done, &keys);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let at = published.load(Ordering::Acquire);
                    let found: Vec<Found> = memtables.range(&MemtableSpan::all(), at, order).collect();
                    assert_eq!(found.len(), if at == 0 { 0 } else { keys.len() });
                    assert!(found.iter().all(|found| found.revision == at));
                    assert_eq!(
                        memtables.get(&keys[7], at).map(|(revision, _)| revision),
                        (at > 0).then_some(at)
                    );
                }
            });
        }
    });
}
