//! A disk that is filled with rows: they refuse more of them, and serve and open as before.

use std::path::Path;

use rand::{RngExt as _, SeedableRng as _};

use super::merges::random_bytes;
use super::*;
use testkit::small_disk;

const MIB: usize = 1 << 20;

/// Rows of a batch, of 8 KB each.
const ROWS_PER_BATCH: u64 = 32;

/// Rows of 400 KB that leave no space for a merge of all of them.
const LARGE_ROWS: u64 = 320;

fn options() -> FjallOptions {
    FjallOptions {
        memtable_bytes: 1 << 20,
        reserve_bytes: 4 << 20,
        ..FjallOptions::default()
    }
}

/// Rows of one batch that do not compress.
fn changes(batch: u64) -> Vec<RowChange> {
    let mut random = rand::rngs::SmallRng::seed_from_u64(batch);
    let rows = (0..ROWS_PER_BATCH).map(|row| {
        let mut value = vec![0; 8000];
        random.fill(value.as_mut_slice());
        // Each another key, in no order.
        laws::put(
            format!("key/{:08}", (batch * ROWS_PER_BATCH + row) * 7919 % 10_000_000),
            value,
        )
    });
    rows.collect()
}

async fn apply(rows: &FjallRows, batch: u64, changes: Vec<RowChange>) -> Result<(), RowsError> {
    let fence = History::fence(batch).unwrap();
    rows.apply(History::fence(batch - 1), fence, changes).await
}

/// Returns true if neither a flush nor a merge can free space.
fn is_at_rest(rows: &FjallRows) -> bool {
    let merger = &rows.shared.merger;
    rows.shared.keyspace.sealed_memtable_count() == 0
        && merger.under_way() == 0
        && !matches!(merger.has_work(), Ok(true))
}

/// Writes until there is no space, and none to come; the last batch.
async fn fill(rows: &FjallRows) -> u64 {
    let mut batch = 0;
    loop {
        match apply(rows, batch + 1, changes(batch + 1)).await {
            Ok(()) => batch += 1,
            Err(RowsError::Full(_)) if is_at_rest(rows) => return batch,
            Err(RowsError::Full(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("batch {}: {}", batch + 1, guard::describe(&error)),
        }
    }
}

async fn assert_holds(rows: &FjallRows, batches: std::ops::RangeInclusive<u64>) {
    let view = rows.snapshot().await.unwrap();
    for batch in batches {
        for change in changes(batch) {
            let RowChange::Put(key, value) = change else {
                unreachable!("only puts")
            };
            let row = view.get(&key).await.unwrap();
            assert!(row == Some(value), "{key:?} of batch {batch}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_that_rows_fill_refuses_rows_and_nothing_else() {
    const TEST: &str = "rows::tests::full::disk_that_rows_fill_refuses_rows_and_nothing_else";
    if let Some(disk) = small_disk::mounted_for(TEST, 280) {
        let filled = tokio::time::timeout(Duration::from_secs(300), fill_a_disk(&disk));
        filled.await.expect("a batch waits for ever");
    }
}

async fn fill_a_disk(disk: &Path) {
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 64 * MIB]).unwrap();
    let dir = disk.join("rows");
    let rows = FjallRows::open(&dir, options()).unwrap();
    let last = fill(&rows).await;
    assert!(last > 200, "full after {last} batches");
    // As many tables in level 0 as there may be, which only a merge makes fewer.
    rows.shared.merger.end();
    let mut batch = last;
    while rows.shared.keyspace.tree.l0_run_count() < backpressure::MAX_LEVEL0_RUNS {
        batch += 1;
        apply(&rows, batch, Vec::new()).await.unwrap();
        rows.shared.keyspace.rotate_memtable_and_wait().unwrap();
    }
    assert_holds(&rows, 1..=last).await;
    drop(rows);
    let rows = FjallRows::open(&dir, options()).unwrap();
    batch += 1;
    apply(&rows, batch, Vec::new()).await.expect("a start moves the fence");
    assert_holds(&rows, 1..=last).await;
    std::fs::remove_file(&ballast).unwrap();
    batch += 1;
    while let Err(error) = apply(&rows, batch, changes(batch)).await {
        assert!(matches!(error, RowsError::Full(_)), "{}", guard::describe(&error));
        // A writer that is refused takes a younger view, so that tables which merges left over are deleted.
        drop(rows.snapshot().await.unwrap());
    }
    // The compaction ends, whether or not there is space for all of it.
    match rows.compact().await {
        Ok(()) | Err(RowsError::Full(_)) => {}
        Err(error) => panic!("{}", guard::describe(&error)),
    }
    assert_holds(&rows, 1..=last).await;
    assert_holds(&rows, batch..=batch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_rows_of_a_small_disk_are_given_back() {
    const TEST: &str = "rows::tests::full::deleted_rows_of_a_small_disk_are_given_back";
    if let Some(disk) = small_disk::mounted_for(TEST, 400) {
        let given_back = tokio::time::timeout(Duration::from_secs(300), delete_much(&disk));
        given_back.await.expect("a batch waits for ever");
    }
}

async fn delete_much(disk: &Path) {
    let options = FjallOptions {
        memtable_bytes: 1600 << 10,
        ..FjallOptions::default()
    };
    let rows = FjallRows::open(&disk.join("rows"), options).unwrap();
    let key = |batch| format!("key/{batch:06}");
    for batch in 1..=LARGE_ROWS {
        let put = laws::put(key(batch), random_bytes(batch, 400_000));
        apply(&rows, batch, vec![put]).await.unwrap();
    }
    let deletions = (1..=LARGE_ROWS).map(|batch| laws::delete(key(batch))).collect();
    apply(&rows, LARGE_ROWS + 1, deletions).await.unwrap();
    rows.compact().await.unwrap();
    let left = inspect::table_bytes(rows.shared.keyspace.path()).unwrap();
    assert!(left < 1 << 20, "{left} bytes");
}
