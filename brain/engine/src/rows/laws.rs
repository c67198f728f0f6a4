//! The laws of [`Rows`], run on every implementation.
//!
//! Reopening and crashes are laws of those that can come back: see `engine_local::rows::tests`.

#![allow(clippy::unwrap_used, reason = "a law that does not hold is a failed test")]

use bytes::Bytes;

use super::{Order, Page, RowChange, Rows, RowsError, Scan};

mod fence;

/// Runs every law on rows that `fresh` makes, each on new ones. A batch of `large` rows is a large one.
pub async fn hold<R: Rows + Clone>(mut fresh: impl AsyncFnMut() -> R, large: usize) {
    an_apply_is_seen_whole_by_later_snapshots_only(fresh().await).await;
    fence::a_foreign_fence_keeps_a_writer_out(fresh().await).await;
    fence::a_change_that_is_repeated_is_made_once(fresh().await).await;
    fence::take_over_fences_older_writers(fresh().await).await;
    fence::parallel_writes_need_their_fence(fresh().await).await;
    of_several_changes_of_a_row_the_last_counts(fresh().await).await;
    row_order_is_byte_order(fresh().await).await;
    pages_end_at_their_limits(fresh().await).await;
    inverted_and_overlong_bounds_are_ranges_too(fresh().await).await;
    keys_that_cannot_be_stored_are_refused(fresh().await).await;
    long_values_are_stored_or_refused(fresh().await).await;
    a_large_batch_is_one_batch(fresh().await, large).await;
    split_points_lie_inside_and_ascend(fresh().await).await;
    clones_share_the_rows(fresh().await).await;
    writers_at_once_take_turns(fresh().await).await;
}

pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> RowChange {
    RowChange::Put(
        Bytes::copy_from_slice(key.as_ref()),
        Bytes::copy_from_slice(value.as_ref()),
    )
}

pub fn delete(key: impl AsRef<[u8]>) -> RowChange {
    RowChange::Delete(Bytes::copy_from_slice(key.as_ref()))
}

/// Everything, ascending.
pub fn everything() -> Scan {
    Scan {
        from: Bytes::new(),
        to: None,
        order: Order::Ascending,
        keys_only: false,
        max_rows: usize::MAX,
        max_bytes: usize::MAX,
    }
}

pub async fn content(rows: &dyn Rows) -> Vec<(Bytes, Bytes)> {
    let page = rows.snapshot().await.unwrap().scan(everything()).await.unwrap();
    assert!(page.done);
    page.rows
}

async fn apply(rows: &dyn Rows, changes: Vec<RowChange>) {
    let fence = rows.fence().await.unwrap();
    let last = fence.as_deref().and_then(|fence| fence.try_into().ok());
    let next = (last.map_or(0, u64::from_be_bytes) + 1).to_be_bytes();
    rows.apply(fence, Bytes::copy_from_slice(&next), changes).await.unwrap();
}

pub fn row(key: &'static str, value: &'static str) -> (Bytes, Bytes) {
    (Bytes::from(key), Bytes::from(value))
}

async fn an_apply_is_seen_whole_by_later_snapshots_only<R: Rows + Clone>(rows: R) {
    assert_eq!(rows.fence().await.unwrap(), None);
    let empty = rows.snapshot().await.unwrap();
    apply(&rows, vec![put("a", "1"), put("b", "2"), delete("c")]).await;
    let first = rows.snapshot().await.unwrap();
    apply(&rows, vec![delete("a"), put("b", "3"), put("c", "")]).await;
    let second = rows.snapshot().await.unwrap();
    let fence = rows.fence().await.unwrap();
    rows.sync().await.unwrap();
    for _ in 0..2 {
        assert_eq!(empty.scan(everything()).await.unwrap().rows, []);
        assert_eq!(
            first.scan(everything()).await.unwrap().rows,
            [row("a", "1"), row("b", "2")]
        );
        assert_eq!(
            second.scan(everything()).await.unwrap().rows,
            [row("b", "3"), row("c", "")]
        );
        assert_eq!(first.get(b"a").await.unwrap(), Some(Bytes::from("1")));
        assert_eq!(second.get(b"a").await.unwrap(), None);
        assert_eq!(empty.fence().await.unwrap(), None);
        assert_eq!(second.fence().await.unwrap(), fence);
        assert_ne!(first.fence().await.unwrap(), fence);
        apply(&rows, vec![put("d", "4"), delete("b"), put("b", "5"), delete("b")]).await;
    }
    let keys = ["a", "zz", "c", "", "b"].map(Bytes::from);
    let wanted = [Some(Bytes::from("1")), None, None, None, Some(Bytes::from("2"))];
    assert_eq!(first.multi_get(&keys).await.unwrap(), wanted);
    let many: Vec<Bytes> = keys.iter().cycle().take(500).cloned().collect();
    let wanted: Vec<Option<Bytes>> = wanted.iter().cycle().take(500).cloned().collect();
    assert_eq!(first.multi_get(&many).await.unwrap(), wanted);
}

async fn of_several_changes_of_a_row_the_last_counts<R: Rows + Clone>(rows: R) {
    apply(
        &rows,
        vec![
            put("a", "1"),
            put("a", "2"),
            put("b", "1"),
            delete("b"),
            delete("c"),
            put("c", "3"),
        ],
    )
    .await;
    assert_eq!(content(&rows).await, [row("a", "2"), row("c", "3")]);
}

async fn row_order_is_byte_order<R: Rows + Clone>(rows: R) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let bytes = [0x00, 0x01, 0x61, 0x7f, 0x80, 0xff];
    for a in bytes {
        keys.push(vec![a]);
        for b in bytes {
            keys.push(vec![a, b]);
            keys.push(vec![a, b, a]);
        }
    }
    apply(&rows, keys.iter().rev().map(|key| put(key, key)).collect()).await;
    keys.sort();
    keys.dedup();
    let found: Vec<Bytes> = content(&rows).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, keys);
    for (at, from) in keys.iter().enumerate() {
        // One for all ranges may be too old before the last one, on a store that limits its age.
        let snapshot = rows.snapshot().await.unwrap();
        let value = snapshot.get(from).await.unwrap();
        assert_eq!(value.as_deref(), Some(from.as_slice()));
        for (end, to) in keys.iter().enumerate().skip(at) {
            let mut scan = everything();
            scan.from = Bytes::from(from.clone());
            scan.to = Some(Bytes::from(to.clone()));
            let up = snapshot.scan(scan.clone()).await.unwrap();
            let found: Vec<&Bytes> = up.rows.iter().map(|(key, _)| key).collect();
            assert_eq!(found, keys[at..end].iter().collect::<Vec<_>>());
            scan.order = Order::Descending;
            let mut down = snapshot.scan(scan).await.unwrap();
            down.rows.reverse();
            assert_eq!(down, up);
        }
    }
}

async fn pages_end_at_their_limits<R: Rows + Clone>(rows: R) {
    apply(
        &rows,
        (0..100).map(|n| put(format!("k{n:02}"), vec![b'v'; n])).collect(),
    )
    .await;
    let all = content(&rows).await;
    let snapshot = rows.snapshot().await.unwrap();
    for keys_only in [false, true] {
        for (max_rows, max_bytes) in [
            (1, usize::MAX),
            (0, 0),
            (7, usize::MAX),
            (usize::MAX, 400),
            (7, 400),
            (100, usize::MAX),
            (40, 1),
        ] {
            let mut scan = everything();
            (scan.keys_only, scan.max_rows, scan.max_bytes) = (keys_only, max_rows, max_bytes);
            let mut found = Vec::new();
            loop {
                let page = snapshot.scan(scan.clone()).await.unwrap();
                let bytes: usize = page.rows.iter().map(|(key, value)| key.len() + value.len()).sum();
                assert!(page.rows.len() == 1 || (page.rows.len() <= max_rows && bytes <= max_bytes));
                let last = page.rows.last().expect("never before the first row").0.clone();
                scan.from = [last.as_ref(), &[0]].concat().into();
                let Page { rows, done } = page;
                found.extend(rows);
                assert_eq!(done, found.len() == all.len());
                if done {
                    break;
                }
            }
            let wanted = all
                .iter()
                .map(|(key, value)| (key.clone(), if keys_only { Bytes::new() } else { value.clone() }));
            assert_eq!(found, wanted.collect::<Vec<_>>());
        }
    }
    let mut scan = everything();
    (scan.order, scan.max_rows) = (Order::Descending, 3);
    let page = snapshot.scan(scan).await.unwrap();
    assert!(!page.done);
    assert_eq!(page.rows, all.iter().rev().take(3).cloned().collect::<Vec<_>>());
}

async fn inverted_and_overlong_bounds_are_ranges_too<R: Rows + Clone>(rows: R) {
    let longest = vec![b'b'; rows.max_key_len()];
    apply(&rows, vec![put("a", "1"), put(&longest, "2"), put("c", "3")]).await;
    let snapshot = rows.snapshot().await.unwrap();
    let count = async |from: &[u8], to: Option<&[u8]>| {
        let mut scan = everything();
        (scan.from, scan.to) = (Bytes::copy_from_slice(from), to.map(Bytes::copy_from_slice));
        let page = snapshot.scan(scan).await.unwrap();
        assert!(page.done);
        page.rows.len()
    };
    let longer = vec![b'b'; rows.max_key_len() + 10];
    assert_eq!(count(b"c", Some(b"a")).await, 0);
    assert_eq!(count(b"c", Some(b"c")).await, 0);
    assert_eq!(count(b"", Some(b"")).await, 0);
    assert_eq!(count(&longest, None).await, 2);
    assert_eq!(count(&longer, None).await, 1);
    assert_eq!(count(b"a", Some(&longer)).await, 2);
    assert_eq!(count(b"a", Some(&longest)).await, 1);
    assert_eq!(snapshot.get(&longest).await.unwrap(), Some(Bytes::from("2")));
    assert_eq!(snapshot.get(&longer).await.unwrap(), None);
}

async fn keys_that_cannot_be_stored_are_refused<R: Rows + Clone>(rows: R) {
    let longer = vec![0; rows.max_key_len() + 1];
    for change in [put("", "1"), delete(""), put(&longer, "1"), delete(&longer)] {
        match rows.apply(None, Bytes::from("f"), vec![put("a", "1"), change]).await {
            Err(RowsError::Refused(_)) => {}
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
    assert_eq!(rows.fence().await.unwrap(), None);
    apply(&rows, vec![put(&longer[1..], "1")]).await;
    assert_eq!(content(&rows).await.len(), 1);
}

async fn long_values_are_stored_or_refused<R: Rows + Clone>(rows: R) {
    // Longer ones need more memory than a test should take.
    let longest = rows.max_value_len().min(16 << 20);
    let value = vec![7; rows.max_value_len() + 1];
    match rows.apply(None, Bytes::from("f"), vec![put("a", &value)]).await {
        Err(RowsError::Refused(_)) => {}
        other => panic!("expected a refusal, got {other:?}"),
    }
    assert_eq!(rows.fence().await.unwrap(), None);
    apply(&rows, vec![put("a", &value[..longest]), put("b", "1")]).await;
    let found = rows.snapshot().await.unwrap().get(b"a").await.unwrap();
    assert!(found.is_some_and(|found| found == value[..longest]));
}

async fn a_large_batch_is_one_batch<R: Rows + Clone>(rows: R, large: usize) {
    let value = vec![b'v'; 500];
    apply(&rows, (0..large).map(|n| put(format!("k{n:06}"), &value)).collect()).await;
    let before = rows.snapshot().await.unwrap();
    apply(
        &rows,
        (0..large)
            .map(|n| {
                if n % 2 == 0 {
                    delete(format!("k{n:06}"))
                } else {
                    put(format!("k{n:06}"), "w")
                }
            })
            .collect(),
    )
    .await;
    let big = vec![b'x'; 3 << 20];
    apply(&rows, vec![put("large", &big)]).await;
    assert_eq!(before.scan(everything()).await.unwrap().rows.len(), large);
    let now = content(&rows).await;
    assert_eq!(now.len(), large / 2 + 1);
    assert!(now[..large / 2].iter().all(|(_, value)| value == "w"));
    assert_eq!(now[large / 2].1, big);
}

async fn split_points_lie_inside_and_ascend<R: Rows + Clone>(rows: R) {
    for part in 0..4 {
        apply(
            &rows,
            (0..2000)
                .map(|n| put(format!("k{n:06}{part}"), "v".repeat(100)))
                .collect(),
        )
        .await;
    }
    let snapshot = rows.snapshot().await.unwrap();
    for (from, to) in [
        (&b""[..], None),
        (b"k000100", Some(&b"k001000"[..])),
        (b"x", None),
        (b"k1", Some(b"k0")),
    ] {
        for parts in [0, 1, 2, 7] {
            let points = snapshot.split_points(from, to, parts).await.unwrap();
            assert!(points.len() <= parts.saturating_sub(1));
            assert!(points.is_sorted_by(|a, b| a < b));
            assert!(
                points
                    .iter()
                    .all(|point| point.as_ref() > from && to.is_none_or(|to| point.as_ref() < to))
            );
        }
    }
}

async fn clones_share_the_rows<R: Rows + Clone>(rows: R) {
    let other = rows.clone();
    apply(&rows, vec![put("a", "1")]).await;
    apply(&other, vec![put("b", "2")]).await;
    assert_eq!(content(&rows).await, [row("a", "1"), row("b", "2")]);
    assert_eq!(rows.fence().await.unwrap(), other.fence().await.unwrap());
    rows.sync().await.unwrap();
    assert_ne!(rows.size(), Some(0));
}

async fn writers_at_once_take_turns<R: Rows + Clone>(rows: R) {
    let write = async |name: &'static str| {
        let fence = Bytes::from(name);
        rows.apply(None, fence.clone(), vec![put("owner", name), put(name, name)])
            .await
            .map(|()| fence)
    };
    let (a, b, c) = tokio::join!(write("a"), write("b"), write("c"));
    let won: Vec<Bytes> = [a, b, c].into_iter().filter_map(Result::ok).collect();
    assert_eq!(won.len(), 1);
    assert_eq!(rows.fence().await.unwrap(), Some(won[0].clone()));
    let mut wanted = vec![(won[0].clone(), won[0].clone()), (Bytes::from("owner"), won[0].clone())];
    wanted.sort();
    assert_eq!(content(&rows).await, wanted);
}
