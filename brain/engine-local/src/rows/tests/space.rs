//! The space of rows, and the files that a restart relies on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fjall::AbstractTree as _;
use tokio::time::Instant;

use super::{FjallOptions, FjallRows, History, small};
use crate::rows::{inspect, journal};
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
    let rows = FjallRows::open(&dir, FjallOptions::default()).unwrap();
    let fence = |batch: u64| History::fence(batch);
    for batch in 1..=300 {
        let value: Vec<u8> = (0..ROW as u64).map(|at| (at * batch % 251) as u8).collect();
        let change = laws::put(format!("key/{}", batch % ROWS), value);
        rows.apply(fence(batch - 1), fence(batch).unwrap(), vec![change])
            .await
            .unwrap();
    }
    let before = occupied(&dir);
    rows.compact().await.unwrap();
    let live = ROWS * ROW as u64;
    assert!(before > 15 * live, "{before} bytes for {live} are no churn");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        // As a brain does every few seconds. This drops the earlier views, and so releases the files that they needed. fjall's own
        // thread checks again whether a journal can be removed.
        drop(rows.snapshot().await.unwrap());
        let after = occupied(&dir);
        if after < 2 * live {
            eprintln!("{before} bytes before, {after} after, {live} live");
            break;
        }
        assert!(Instant::now() < deadline, "{after} bytes are occupied by {live}");
        // fjall sends no notification when its threads are done: polled until the deadline.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let snapshot = rows.snapshot().await.unwrap();
    assert_eq!(rows.fence().await.unwrap(), fence(300));
    assert!(snapshot.get(b"key/7").await.unwrap().is_some());
    drop((snapshot, rows));
    let again = FjallRows::open(&dir, FjallOptions::default()).unwrap();
    assert_eq!(again.fence().await.unwrap(), fence(300));
}

#[tokio::test]
async fn the_newest_journal_is_written_again_before_rows_rely_on_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let rows = FjallRows::open(&dir, small()).unwrap();
    for batch in 1..=5 {
        History::new(1).apply(&rows, batch).await.unwrap();
    }
    drop(rows);
    let newest = inspect::journals(&dir).unwrap().pop().unwrap();
    let content = fs::read(&newest).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    File::options()
        .write(true)
        .open(&newest)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    journal::check(&dir).unwrap().settle().unwrap();
    let written = fs::metadata(&newest).unwrap().modified().unwrap();
    assert!(written > long_ago, "the journal was only read");
    assert!(fs::read(&newest).unwrap() == content);
    let again = FjallRows::open(&dir, small()).unwrap();
    assert_eq!(
        again.fence().await.unwrap(),
        Some(Bytes::copy_from_slice(&5u64.to_be_bytes()))
    );
}

#[tokio::test]
async fn compaction_without_free_space_says_how_much_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let options = FjallOptions {
        reserve_bytes: 1 << 20,
        ..small()
    };
    let mut rows = FjallRows::open(&root.path().join("rows"), options).unwrap();
    History::new(1).apply(&rows, 1).await.unwrap();
    std::sync::Arc::get_mut(&mut rows.shared).unwrap().options.reserve_bytes = 1 << 60;
    match rows.compact().await {
        Err(RowsError::Full(reason)) => assert!(reason.to_string().contains("more bytes are needed"), "{reason}"),
        other => panic!("expected full, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_compactions_that_nobody_queued() {
    let root = tempfile::tempdir().unwrap();
    let rows = FjallRows::open(&root.path().join("rows"), small()).unwrap();
    for batch in 1..=super::super::backpressure::MAX_LEVEL0_RUNS as u64 {
        History::new(1).apply(&rows, batch).await.unwrap();
        // A table that fjall's own thread knows nothing of.
        rows.shared.keyspace.tree.flush_active_memtable(0).unwrap();
    }
    let last = super::super::backpressure::MAX_LEVEL0_RUNS as u64 + 1;
    History::new(1).apply(&rows, last).await.unwrap();
    assert!(rows.shared.keyspace.tree.l0_run_count() < super::super::backpressure::MAX_LEVEL0_RUNS);
    assert_eq!(rows.fence().await.unwrap(), History::fence(last));
}

#[tokio::test]
async fn the_journal_of_idle_rows_is_retired() {
    const ROW: usize = 100 << 10;
    let root = tempfile::tempdir().unwrap();
    let rows = FjallRows::open(&root.path().join("rows"), small()).unwrap();
    for batch in 1..=250 {
        let change = laws::put("key", vec![7; ROW]);
        rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), vec![change])
            .await
            .unwrap();
    }
    let journals = || inspect::journal_bytes(&rows.shared.dir);
    let before = journals();
    assert!(before > 20 << 20, "{before} bytes of journals");
    let retired = async {
        // The journal may end while a row is in memory that it does not hold.
        let mut fence = 250;
        while inspect::newest_journal_bytes(&rows.shared.dir).unwrap() > 8 << 20 {
            let (before, after) = (History::fence(fence), History::fence(fence + 1).unwrap());
            rows.apply(before, after, Vec::new()).await.unwrap();
            fence += 1;
            // The second finds that nothing was written.
            for _ in 0..2 {
                drop(rows.snapshot().await.unwrap());
            }
        }
        // Nothing is written between the renewals.
        while journals() > 8 << 20 {
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
        fence
    };
    let retired = tokio::time::timeout(Duration::from_secs(30), retired).await;
    let fence = retired.unwrap_or_else(|_| panic!("{} of {before} bytes of journals are left", journals()));
    assert_eq!(rows.fence().await.unwrap(), History::fence(fence));
}

#[tokio::test]
async fn a_dead_thread_of_fjall_leaves_its_cause_in_the_error() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let rows = FjallRows::open(&dir, small()).unwrap();
    let history = History::new(1);
    for batch in 1..=4 {
        history.apply(&rows, batch).await.unwrap();
        rows.shared.keyspace.tree.flush_active_memtable(0).unwrap();
    }
    // No table can be made any more.
    let tables = dir.join("keyspaces/1/tables");
    fs::rename(&tables, dir.join("keyspaces/1/moved")).unwrap();
    fs::write(&tables, "").unwrap();
    let failed = async {
        for batch in 5.. {
            if let Err(error) = history.apply(&rows, batch).await {
                return error;
            }
            if let Err(error) = rows.shared.keyspace.rotate_memtable() {
                assert!(matches!(error, fjall::Error::Poisoned), "{error}");
            }
        }
        unreachable!()
    };
    let error = tokio::time::timeout(Duration::from_secs(60), failed).await.unwrap();
    let said = |error: &RowsError| match error {
        RowsError::Failed(source) => format!("{source:#}"),
        other => panic!("expected failed, got {other:?}"),
    };
    for error in [&error, &history.apply(&rows, 1 << 20).await.unwrap_err()] {
        let said = said(error);
        assert!(
            said.contains("thread for tables ended") && said.contains("os error 20"),
            "{said}"
        );
    }
    fs::remove_file(&tables).unwrap();
    fs::rename(dir.join("keyspaces/1/moved"), &tables).unwrap();
}
