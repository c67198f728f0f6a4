//! A quota that is much smaller than the disk.

use super::merges::random_bytes;
use super::*;

const QUOTA_BYTES: u64 = 16 << 20;
const ROW_BYTES: usize = 8 << 10;

fn within(quota_bytes: u64) -> LsmOptions {
    LsmOptions {
        quota_bytes: Some(quota_bytes),
        ..LsmOptions::default()
    }
}

/// Overwrites rows that take half of the quota, and deletes what was overwritten as a compaction does.
async fn churn(rows: &LsmRows, rounds: u64) {
    const ALIVE: u64 = QUOTA_BYTES / 2 / ROW_BYTES as u64;
    const STEP: u64 = 64;
    let key = |write: u64| format!("o/{:06}/{write:08}", write % ALIVE);
    let mut batch = 0;
    for first in (0..ALIVE * rounds).step_by(STEP as usize) {
        let mut changes: Vec<_> = (first..first + STEP)
            .map(|write| laws::put(key(write), random_bytes(write, ROW_BYTES)))
            .collect();
        changes.extend((first..first + STEP).filter_map(|write| Some(laws::delete(key(write.checked_sub(ALIVE)?)))));
        batch += 1;
        rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), changes)
            .await
            .unwrap();
        // A merge that ends in between makes the size smaller.
        let (is_reclaiming, size) = (rows.is_reclaiming(), rows.size().unwrap());
        assert!(size <= QUOTA_BYTES || is_reclaiming, "{size} bytes after {first} rows");
    }
}

#[tokio::test]
async fn churn_of_half_the_quota_stays_within_it() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), within(QUOTA_BYTES)).unwrap();
    churn(&rows, 12).await;
    rows.compact().await.unwrap();
    let size = rows.size().unwrap();
    assert!(size < QUOTA_BYTES * 5 / 8, "{size} bytes are left");
}

#[tokio::test]
async fn quota_that_came_later_counts_too() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    drop(LsmRows::open(&dir, LsmOptions::default()).unwrap());
    churn(&LsmRows::open(&dir, within(QUOTA_BYTES)).unwrap(), 4).await;
}

/// Nothing is put while the alarm is raised, but compactions delete.
#[tokio::test]
async fn deletions_bring_rows_below_a_quota_that_was_exceeded() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), within(QUOTA_BYTES)).unwrap();
    let count = QUOTA_BYTES * 9 / 8 / ROW_BYTES as u64;
    let key = |row| format!("o/{row:06}");
    for row in 0..count {
        let changes = vec![laws::put(key(row), random_bytes(row, ROW_BYTES))];
        rows.apply(History::fence(row), History::fence(row + 1).unwrap(), changes)
            .await
            .unwrap();
    }
    assert!(
        rows.size().unwrap() > QUOTA_BYTES && !rows.is_reclaiming(),
        "nothing is deleted"
    );
    let deleted = (0..count / 2).map(|row| laws::delete(key(row))).collect();
    rows.apply(History::fence(count), History::fence(count + 1).unwrap(), deleted)
        .await
        .unwrap();
    let smaller = async {
        while rows.size().unwrap() > QUOTA_BYTES * 5 / 8 {
            // As the flush renews the views.
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
    };
    let deadline = Duration::from_secs(60);
    let outcome = tokio::time::timeout(deadline, smaller).await;
    assert!(outcome.is_ok(), "{} bytes are left", rows.size().unwrap());
}

/// A view that is read for long keeps what it sees, and the store knows that no merge gives it back.
#[tokio::test]
async fn rows_that_a_view_keeps_do_not_hold_writes_up() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), within(QUOTA_BYTES)).unwrap();
    let mut view = None;
    let count = QUOTA_BYTES * 3 / 2 / ROW_BYTES as u64;
    for row in 0..count {
        let mut changes = vec![laws::put(format!("o/{row:06}"), random_bytes(row, ROW_BYTES))];
        if row > count / 2 {
            view = view.or(Some(rows.snapshot().await.unwrap()));
            changes.push(laws::delete(format!("o/{:06}", row - count / 2)));
        }
        let applied = rows.apply(History::fence(row), History::fence(row + 1).unwrap(), changes);
        tokio::time::timeout(Duration::from_secs(60), applied)
            .await
            .expect("a write waits")
            .unwrap();
    }
    let settled = async {
        while rows.is_reclaiming() {
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), settled).await.unwrap();
    assert!(rows.size().unwrap() > QUOTA_BYTES);
    drop(view);
}
