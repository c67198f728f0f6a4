//! The space of rows, and the files that a restart relies on.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use lsm_tree::AbstractTree as _;
use tokio::time::Instant;

use super::{History, LsmOptions, LsmRows, small};
use engine::rows::{Rows, RowsError, laws};

/// Bytes that all files below `dir` occupy.
fn occupied(dir: &Path) -> u64 {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                return occupied(&path);
            }
            let metadata = fs::metadata(path).unwrap();
            (metadata.blocks() * 512).min(metadata.len())
        })
        .sum()
}

#[tokio::test]
async fn compaction_leaves_little_more_than_live_rows() {
    const ROWS: u64 = 20;
    const ROW: usize = 100 << 10;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let rows = LsmRows::open(&dir, LsmOptions::default()).unwrap();
    let fence = |batch: u64| History::fence(batch);
    let mut view = None;
    for batch in 1..=300 {
        let value: Vec<u8> = (0..ROW as u64).map(|at| (at * batch % 251) as u8).collect();
        let change = laws::put(format!("key/{}", batch % ROWS), value);
        rows.apply(fence(batch - 1), fence(batch).unwrap(), vec![change])
            .await
            .unwrap();
        // It keeps all that is overwritten.
        view = view.or(Some(rows.snapshot().await.unwrap()));
    }
    rows.sync().await.unwrap();
    let before = occupied(&dir);
    drop(view);
    rows.compact().await.unwrap();
    let live = ROWS * ROW as u64;
    assert!(before > 10 * live, "{before} bytes for {live} are no churn");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        // As a brain does every few seconds. This drops the earlier views, and so releases the files that they needed.
        drop(rows.snapshot().await.unwrap());
        let after = occupied(&dir);
        if after < 2 * live {
            eprintln!("{before} bytes before, {after} after, {live} live");
            break;
        }
        assert!(Instant::now() < deadline, "{after} bytes are occupied by {live}");
        // Nothing says when it is done: polled until the deadline.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let snapshot = rows.snapshot().await.unwrap();
    assert_eq!(rows.fence().await.unwrap(), fence(300));
    assert!(snapshot.get(b"key/7").await.unwrap().is_some());
    drop((snapshot, rows));
    let again = LsmRows::open(&dir, LsmOptions::default()).unwrap();
    assert_eq!(again.fence().await.unwrap(), fence(300));
}

#[tokio::test]
async fn compaction_without_free_space_says_how_much_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let options = LsmOptions {
        reserve_bytes: 1 << 60,
        ..small()
    };
    let dir = root.path().join("rows");
    let rows = LsmRows::open(&dir, small()).unwrap();
    History::new(1).apply(&rows, 1).await.unwrap();
    drop(rows);
    let rows = LsmRows::open(&dir, options).unwrap();
    match rows.compact().await {
        Err(RowsError::Full(reason)) => assert!(reason.to_string().contains("more bytes are needed"), "{reason}"),
        other => panic!("expected full, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_compactions_that_nobody_queued() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    for batch in 1..=super::super::backpressure::MAX_LEVEL0_RUNS as u64 {
        History::new(1).apply(&rows, batch).await.unwrap();
        // A table that the thread that merges knows nothing of.
        rows.shared.tree.flush_active_memtable(0).unwrap();
    }
    let last = super::super::backpressure::MAX_LEVEL0_RUNS as u64 + 1;
    History::new(1).apply(&rows, last).await.unwrap();
    assert!(rows.shared.tree.l0_run_count() < super::super::backpressure::MAX_LEVEL0_RUNS);
    assert_eq!(rows.fence().await.unwrap(), History::fence(last));
}
