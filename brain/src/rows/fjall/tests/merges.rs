//! Tables are merged beside everything else, and views lose nothing by it.

use std::sync::Arc;

use super::*;
use crate::rows::Snapshot as _;

const KEYS: u64 = 40;

fn value(batch: u64) -> Bytes {
    Bytes::from(batch.to_be_bytes().repeat(100))
}

/// Writes all keys, in a table of their own.
async fn write(rows: &FjallRows, batch: u64) {
    let changes = (0..KEYS)
        .map(|key| laws::put(format!("key/{key}"), value(batch)))
        .collect();
    rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), changes)
        .await
        .unwrap();
    rows.shared.keyspace.rotate_memtable_and_wait().unwrap();
}

/// Merges all tables of level 0, unless the thread does.
async fn merge(rows: &FjallRows) {
    let merged = async {
        while rows.shared.keyspace.tree.l0_run_count() > 0 {
            rows.shared.merger.try_to_merge().unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), merged).await.unwrap();
}

#[tokio::test]
async fn views_keep_their_rows_while_tables_are_merged() {
    let root = tempfile::tempdir().unwrap();
    let rows = FjallRows::open(&root.path().join("rows"), small()).unwrap();
    let mut views = Vec::new();
    for batch in 1..=60 {
        write(&rows, batch).await;
        if batch % 7 == 0 {
            views.push((batch, rows.snapshot().await.unwrap()));
        }
    }
    merge(&rows).await;
    for (batch, view) in &views {
        for key in 0..KEYS {
            let row = view.get(format!("key/{key}").as_bytes()).await.unwrap();
            assert_eq!(row, Some(value(*batch)), "key {key} of batch {batch}");
        }
    }
    let kept = rows.shared.keyspace.disk_space();
    // With the views go the rows that only they needed.
    drop(views);
    write(&rows, 61).await;
    merge(&rows).await;
    let left = rows.shared.keyspace.disk_space();
    assert!(left * 3 < kept, "{left} of {kept} bytes are left");
}

#[tokio::test]
async fn fjalls_own_thread_merges_nothing() {
    let root = tempfile::tempdir().unwrap();
    let rows = FjallRows::open(&root.path().join("rows"), small()).unwrap();
    let tree = &rows.shared.keyspace.tree;
    // Without our thread.
    rows.shared.merger.end();
    for batch in 1..=12 {
        write(&rows, batch).await;
    }
    // The first one overlaps no other, and is moved.
    let before = tree.l0_run_count();
    assert_eq!(before, 11);
    tree.compact(Arc::new(merge::nothing()), 0).unwrap();
    assert_eq!(tree.l0_run_count(), before);
    tree.compact(Arc::new(merge::strategy()), 0).unwrap();
    assert_eq!(tree.l0_run_count(), 0);
}

#[tokio::test]
async fn merges_without_free_space_are_not_begun() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    drop(FjallRows::open(&dir, small()).unwrap());
    let options = Options {
        reserve_bytes: 1 << 60,
        ..small()
    };
    let rows = FjallRows::open(&dir, options).unwrap();
    match rows.shared.merger.require_space() {
        Err(RowsError::Full(reason)) => assert!(reason.to_string().contains("bytes are missing"), "{reason}"),
        other => panic!("expected full, got {other:?}"),
    }
}
