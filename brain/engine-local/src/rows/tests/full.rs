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

fn options() -> LsmOptions {
    LsmOptions {
        memtable_bytes: 1 << 20,
        reserve_bytes: 4 << 20,
        ..LsmOptions::default()
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

async fn apply(rows: &LsmRows, batch: u64, changes: Vec<RowChange>) -> Result<(), RowsError> {
    let fence = History::fence(batch).unwrap();
    rows.apply(History::fence(batch - 1), fence, changes).await
}

/// Returns true if no merge can free space.
fn is_at_rest(rows: &LsmRows) -> bool {
    let merger = &rows.shared.merger;
    merger.under_way() == 0 && !matches!(merger.has_work(), Ok(true))
}

/// Writes until there is no space, and none to come; the last batch.
async fn fill(rows: &LsmRows) -> u64 {
    let mut batch = 0;
    let mut next = changes(1);
    loop {
        match apply(rows, batch + 1, next.clone()).await {
            Ok(()) => {
                batch += 1;
                next = changes(batch + 1);
            }
            Err(RowsError::Full(_)) if is_at_rest(rows) => return batch,
            Err(RowsError::Full(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("batch {}: {}", batch + 1, guard::describe(&error)),
        }
    }
}

async fn assert_holds(rows: &LsmRows, batches: std::ops::RangeInclusive<u64>) {
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
    let rows = LsmRows::open(&dir, options()).unwrap();
    let last = fill(&rows).await;
    assert!(last > 200, "full after {last} batches");
    // As many tables in level 0 as there may be, which only a merge makes fewer.
    rows.shared.merger.end();
    let mut batch = last;
    while rows.shared.tree.l0_run_count() < backpressure::MAX_LEVEL0_RUNS {
        batch += 1;
        apply(&rows, batch, Vec::new()).await.unwrap();
        rows.sync().await.unwrap();
    }
    assert_holds(&rows, 1..=last).await;
    drop(rows);
    let rows = LsmRows::open(&dir, options()).unwrap();
    batch += 1;
    apply(&rows, batch, Vec::new()).await.expect("a start moves the fence");
    assert_holds(&rows, 1..=last).await;
    std::fs::remove_file(&ballast).unwrap();
    batch += 1;
    let more = changes(batch);
    while let Err(error) = apply(&rows, batch, more.clone()).await {
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
    let options = LsmOptions {
        memtable_bytes: 1600 << 10,
        ..LsmOptions::default()
    };
    let rows = LsmRows::open(&disk.join("rows"), options).unwrap();
    let key = |batch| format!("key/{batch:06}");
    for batch in 1..=LARGE_ROWS {
        let put = laws::put(key(batch), random_bytes(batch, 400_000));
        apply(&rows, batch, vec![put]).await.unwrap();
    }
    let deletions = (1..=LARGE_ROWS).map(|batch| laws::delete(key(batch))).collect();
    apply(&rows, LARGE_ROWS + 1, deletions).await.unwrap();
    rows.compact().await.unwrap();
    let left = inspect::table_bytes(rows.shared.tree.path()).unwrap();
    assert!(left < 1 << 20, "{left} bytes");
}

/// Writes a file until nothing more fits.
fn exhaust(disk: &Path) -> std::path::PathBuf {
    use std::io::Write as _;
    let path = disk.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for len in [MIB, 4096, 1] {
        let part = vec![1; len];
        loop {
            match file.write_all(&part) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_that_becomes_full_while_a_table_is_written_loses_nothing() {
    const TEST: &str = "rows::tests::full::disk_that_becomes_full_while_a_table_is_written_loses_nothing";
    if let Some(disk) = small_disk::mounted_for(TEST, 64) {
        write_tables_without_space(&disk).await;
    }
}

async fn write_tables_without_space(disk: &Path) {
    let dir = disk.join("rows");
    let options = || LsmOptions {
        // The space is not looked for before.
        reserve_bytes: 0,
        ..options()
    };
    let rows = LsmRows::open(&dir, options()).unwrap();
    apply(&rows, 1, changes(1)).await.unwrap();
    apply(&rows, 2, changes(2)).await.unwrap();
    let view = rows.snapshot().await.unwrap();
    let filler = exhaust(disk);
    // Rows in memory, and then a batch that goes to a table.
    let refused = [rows.sync().await, rows.sync().await];
    assert!(
        refused.iter().all(|outcome| matches!(outcome, Err(RowsError::Full(_)))),
        "{refused:?}"
    );
    {
        let mut writer = rows.shared.writer.lock().await;
        let large = (3..9).flat_map(changes).collect();
        let full = rows.shared.write(&mut writer, History::fence(3).unwrap(), large);
        assert!(matches!(full, Err(RowsError::Full(_))), "{full:?}");
    }
    assert_eq!(rows.fence().await.unwrap(), History::fence(2));
    apply(&rows, 3, Vec::new())
        .await
        .expect("the fence moves without space");
    assert_holds(&rows, 1..=2).await;
    std::fs::remove_file(filler).unwrap();
    rows.sync().await.unwrap();
    apply(&rows, 4, (4..9).flat_map(changes).collect()).await.unwrap();
    drop(view);
    // The next merge removes what was begun.
    while rows.shared.merger.push_down().unwrap() {}
    rows.compact().await.unwrap();
    let version = rows.shared.tree.current_version();
    let known = version.iter_tables().map(|table| table.metadata.id.to_string());
    let files = inspect::list(&rows.shared.tree.path().join(inspect::TABLES_DIR)).unwrap();
    assert_eq!(
        known.collect::<std::collections::BTreeSet<_>>(),
        files.iter().map(|path| inspect::name(path)).collect()
    );
    drop(version);
    drop(rows);
    let rows = LsmRows::open(&dir, options()).unwrap();
    assert_eq!(rows.fence().await.unwrap(), History::fence(4));
    assert_holds(&rows, 1..=2).await;
    assert_holds(&rows, 4..=8).await;
}
