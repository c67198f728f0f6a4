//! Deletion of old versions.

use super::*;

#[test]
fn collection_keeps_what_reads_above_the_safe_point_need_and_no_more() {
    let mut store = Store::new();
    for (start_ts, value) in [(10, "1"), (20, "2"), (30, "3")] {
        store.write(start_ts, start_ts + 5, vec![put("a", value)]);
    }
    store.write(10, 15, vec![put("gone", "1")]);
    store.write(20, 25, vec![mutation(Op::Del, "gone", "")]);
    store.rollback(12, "never");
    store.tables.apply(ChangeContent::SafePoint(29));
    store.tables.apply(ChangeContent::Collect(Default::default()));
    assert_eq!(store.tables.versions(b"a").len(), 2);
    assert_eq!(store.get("a", 29), Ok(Some("2".to_owned())));
    assert_eq!(store.get("a", 24), Ok(None), "below the safe point there are holes");
    assert!(store.tables.versions(b"gone").is_empty() && store.tables.versions(b"never").is_empty());
    assert_eq!(store.tables.writes.len(), 1);
}

#[test]
fn keys_are_counted_off_for_collection() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", ""), put("b", ""), put("c", ""), put("d", "")]);
    assert_eq!(store.tables.nth_key_after(b"", 2), Some(Bytes::from("c")));
    assert_eq!(store.tables.nth_key_after(b"b", 1), Some(Bytes::from("c")));
    assert_eq!(store.tables.nth_key_after(b"b", 3), None);
}

#[test]
fn erasing_takes_everything_in_the_span() {
    let mut store = Store::new();
    store.write(10, 20, vec![put("a", "1"), put("b", "1"), put("c", "1")]);
    store.prewrite(&prewrite_at(30, vec![put("b2", "1"), put("c", "2")]));
    let span = crate::change::Span {
        start: "b".into(),
        end: "c".into(),
    };
    store.tables.apply(ChangeContent::Erase(span));
    assert_eq!(store.scan(100, false, 10), ["a=1", "c=locked"]);
    store.tables.apply(ChangeContent::Erase(crate::change::Span {
        start: "b".into(),
        end: Bytes::new(),
    }));
    assert_eq!(store.scan(100, false, 10), ["a=1"]);
    assert!(store.tables.locks.is_empty());
}
