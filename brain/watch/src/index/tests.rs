use proptest::prelude::*;

use super::*;

/// Generates short keys over few bytes, so that ranges nest, touch and repeat.
fn key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a', 0xff]), 0..4).prop_map(Bytes::from)
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Bytes, Bytes),
    Remove(prop::sample::Index),
    Match(Bytes),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (key(), key()).prop_map(|(from, end)| Step::Insert(from, end)),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        3 => key().prop_map(Step::Match),
    ]
}

fn found(index: &Index<u64>, key: &[u8]) -> Vec<u64> {
    let mut ids = Vec::new();
    index.matches(key, |group| ids.extend(group.members().iter()));
    ids.sort_unstable();
    ids
}

proptest! {
    #[test]
    fn the_index_finds_what_a_list_finds(steps in prop::collection::vec(step(), 1..200)) {
        let mut index = Index::new();
        let mut list: Vec<(u64, KeyRange)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(from, end) => {
                    let Ok(range) = KeyRange::from_request(from, end) else { continue };
                    let id = index.last_id + 1;
                    assert_eq!(index.insert(&range, id), id);
                    list.push((id, range));
                }
                Step::Remove(at) if !list.is_empty() => {
                    let (id, range) = list.remove(at.index(list.len()));
                    prop_assert_eq!(index.remove(&range, id), Some(id));
                    prop_assert_eq!(index.remove(&range, id), None);
                }
                Step::Remove(_) => {}
                Step::Match(key) => {
                    let expected: Vec<u64> =
                        list.iter().filter(|(_, range)| range.contains(&key)).map(|(id, _)| *id).collect();
                    prop_assert_eq!(found(&index, &key), expected);
                }
            }
            index.spans.verify();
        }
        let mut all: Vec<u64> = index.values().flat_map(|members| members.iter().copied()).collect();
        all.sort_unstable();
        prop_assert_eq!(all, list.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    }
}

#[test]
fn ten_thousand_ranges_in_order_make_a_shallow_tree() {
    let mut index = Index::new();
    let range = |n: u64| {
        let from = Bytes::from(format!("{n:06}"));
        let end = Bytes::from(format!("{:06}", n + 1));
        KeyRange::from_request(from, end).unwrap()
    };
    for n in 1..=10_000 {
        assert_eq!(index.insert(&range(n), n), n);
    }
    let depth = index.spans.verify();
    assert!(depth < 80, "the tree is {depth} deep");
    assert_eq!(found(&index, b"004711x"), [4711]);
    for n in 1..=10_000 {
        assert_eq!(index.remove(&range(n), n), Some(n));
    }
    assert_eq!(found(&index, b"004711x"), [0; 0]);
}

#[test]
fn a_watcher_of_many_on_one_range_is_taken_out_alone() {
    let mut index = Index::new();
    let all = KeyRange::from_request(Bytes::new(), Bytes::from_static(&[0])).unwrap();
    for id in 1..=1000 {
        assert_eq!(index.insert(&all, id), id);
    }
    assert_eq!(index.remove(&all, 500), Some(500));
    assert_eq!(found(&index, b"k").len(), 999);
}

#[test]
fn removed_ranges_keep_no_memory() {
    let mut index = Index::new();
    let range = |n: u64| {
        let end = [&n.to_be_bytes()[..], &vec![0xff; 1 << 10]].concat();
        KeyRange::from_request(Bytes::from_static(&[0]), Bytes::from(end)).unwrap()
    };
    for n in 1..=1000 {
        index.insert(&range(n), n);
    }
    for n in 2..=1000 {
        assert_eq!(index.remove(&range(n), n), Some(n));
        index.spans.verify();
    }
    let (nodes, bytes) = index.spans.held();
    assert!(bytes < 2 << 10, "{bytes} bytes of keys are held");
    assert!(nodes < 64, "room for {nodes} ranges is held");
    assert_eq!(found(&index, b"\0"), [1]);
}

#[test]
fn members_stay_as_they_were_when_their_group_changes() {
    const MANY: u64 = 2000;
    let mut index = Index::new();
    let range = KeyRange::from_request(Bytes::from_static(b"k"), Bytes::new()).unwrap();
    for id in 1..=MANY {
        index.insert(&range, id);
    }
    let mut then = None;
    index.matches(b"k", |group| then = Some(group.members().clone()));
    for id in (1..=MANY).filter(|id| id % 3 != 0) {
        assert_eq!(index.remove(&range, id), Some(id));
    }
    let left: Vec<u64> = (1..=MANY).filter(|id| id % 3 == 0).collect();
    assert_eq!(found(&index, b"k"), left);
    assert_eq!(
        then.unwrap().iter().copied().collect::<Vec<_>>(),
        (1..=MANY).collect::<Vec<_>>()
    );
    for id in left {
        assert_eq!(index.remove(&range, id), Some(id));
    }
    assert!(index.keys.is_empty());
}

#[test]
fn watchers_of_one_key_are_found_without_a_look_at_each() {
    let mut index = Index::new();
    let range = KeyRange::from_request(Bytes::from_static(b"k"), Bytes::new()).unwrap();
    // Each clone of a value is counted, as each mailbox that is taken under the lock would be.
    let value = Arc::new(());
    for _ in 0..10_000 {
        index.insert(&range, Arc::clone(&value));
    }
    let before = Arc::strong_count(&value);
    let mut then = None;
    index.matches(b"k", |group| then = Some(group.members().clone()));
    assert_eq!(Arc::strong_count(&value), before);
    index.insert(&range, Arc::clone(&value));
    assert!(
        Arc::strong_count(&value) <= before + 1 + WATCHERS_PER_PART,
        "more than a part was copied"
    );
    assert_eq!(then.unwrap().iter().count(), 10_000);
}
