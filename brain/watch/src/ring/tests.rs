use super::super::tests::{READ_LIMIT, brief, range, revision};
use super::*;

fn push(ring: &mut Ring, at: Revision, keys: &[&str], len: usize) -> usize {
    let mut evicted = Vec::new();
    ring.push(at, &mut Entry::of(&revision(at, keys, len)).collect(), &mut evicted);
    evicted.len()
}

/// Returns a ring with revisions 2 to 9, each of `a` and `b`.
fn ring(max_bytes: usize) -> Ring {
    let mut ring = Ring::new(1, max_bytes);
    for at in 2..10 {
        push(&mut ring, at, &["a", "b"], 0);
    }
    ring
}

#[test]
fn the_ring_drops_whole_revisions_when_it_is_full() {
    let weight = Entry::of(&revision(2, &["a"], 0)).next().unwrap().weight();
    let mut ring = ring(7 * weight);
    assert_eq!(
        (ring.covers_from(), ring.through(), ring.first(), ring.end()),
        (7, 9, 10, 16)
    );
    assert!(ring.covers(7) && !ring.covers(6));
    assert_eq!(push(&mut ring, 10, &["a"], 0), 0);
    assert_eq!(push(&mut ring, 11, &["a"], 0), 2);
    assert_eq!(
        push(&mut ring, 12, &["a"], 8 * weight),
        7,
        "too long a revision leaves nothing"
    );
    assert_eq!((ring.covers_from(), ring.through(), ring.first()), (13, 12, ring.end()));
    assert_eq!(ring.bytes, 0);
}

#[test]
fn skipped_revisions_empty_the_ring_and_whoever_stood_at_its_end_notices() {
    let mut ring = ring(usize::MAX);
    let end = ring.end();
    assert_eq!(ring.at_position(end, READ_LIMIT).unwrap().len(), 0);
    assert_eq!(push(&mut ring, 20, &["c"], 0), 16);
    assert_eq!(ring.at_position(end, READ_LIMIT).unwrap_err(), Evicted);
    assert_eq!((ring.covers_from(), ring.through()), (20, 20));
}

#[test]
fn positions_are_read_in_whole_revisions() {
    let ring = ring(usize::MAX);
    let limit = Limit {
        events: 3,
        ..READ_LIMIT
    };
    assert_eq!(brief(&ring.at_position(0, limit).unwrap()), "a@2 b@2 a@3 b@3");
    assert_eq!(
        ring.at_position(17, limit).unwrap_err(),
        Evicted,
        "a position that is not given out yet"
    );
}

#[test]
fn runs_are_taken_in_whole_revisions_and_the_rest_stays() {
    let ring = ring(usize::MAX);
    let run = |start, end, revision| Run { start, end, revision };
    let mut runs = VecDeque::from([run(0, 1, 2), run(1, 2, 2), run(4, 8, 4), run(15, 16, 9)]);
    let one = Limit {
        events: 1,
        ..READ_LIMIT
    };
    assert_eq!(brief(&ring.take_runs(&mut runs, one).unwrap()), "a@2 b@2");
    assert_eq!(brief(&ring.take_runs(&mut runs, one).unwrap()), "a@4 b@4");
    assert_eq!(runs, [run(6, 8, 5), run(15, 16, 9)]);
    let held = Limit {
        through: 5,
        ..READ_LIMIT
    };
    assert_eq!(brief(&ring.take_runs(&mut runs, held).unwrap()), "a@5 b@5");
    assert_eq!(ring.take_runs(&mut runs, held).unwrap().len(), 0);
    assert_eq!(brief(&ring.take_runs(&mut runs, READ_LIMIT).unwrap()), "b@9");
    assert!(runs.is_empty());
    assert_eq!(
        ring.take_runs(&mut VecDeque::from([run(20, 21, 12)]), READ_LIMIT)
            .unwrap_err(),
        Evicted
    );
}

#[test]
fn a_scan_answers_where_to_go_on() {
    let ring = ring(usize::MAX);
    let look = |from, limit| {
        let (entries, next) = ring.scan(&range("b", ""), from, limit);
        (brief(&entries), next)
    };
    let all = Limit {
        through: 9,
        ..READ_LIMIT
    };
    assert_eq!(look(8, all), ("b@8 b@9".to_owned(), 10));
    assert_eq!(look(2, Limit { bytes: 1, ..all }), ("b@2".to_owned(), 3));
    assert_eq!(look(2, Limit { events: 3, ..all }), ("b@2 b@3".to_owned(), 4));
    assert_eq!(look(2, Limit { through: 3, ..all }), ("b@2 b@3".to_owned(), 4));
    assert_eq!(look(10, all), (String::new(), 10));
}

#[test]
fn an_event_is_encoded_once_for_each_form() {
    let mut committed = Committed::clone(&revision(2, &["a"], 0));
    let without = Entry::of(&Arc::new(committed.clone())).next().unwrap();
    committed.events[0].prev_kv = Some(committed.events[0].kv.clone());
    let with = Entry::of(&Arc::new(committed)).next().unwrap();
    let encode = |entry: &Entry, form| entry.encoded(form, |_, form| Bytes::from(format!("{form:?}")));
    assert_eq!(encode(&with, PrevKv::Omitted), "Omitted");
    assert_eq!(encode(&with, PrevKv::Included), "Included");
    assert_eq!(encode(&without, PrevKv::Included), "Included");
    for (entry, form) in [
        (&with, PrevKv::Omitted),
        (&with, PrevKv::Included),
        (&without, PrevKv::Omitted),
    ] {
        entry.encoded(form, |_, _| panic!("encoded again"));
    }
}
