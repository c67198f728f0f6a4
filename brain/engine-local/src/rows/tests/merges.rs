//! Tables are merged beside everything else, and views lose nothing by it.

use super::*;
use crate::rows::shape::{Levels, MergeShape};

const KEYS: u64 = 40;

fn value(batch: u64) -> Bytes {
    Bytes::from(batch.to_be_bytes().repeat(100))
}

/// Writes all keys, in a table of their own.
async fn write(rows: &LsmRows, batch: u64) {
    let changes = (0..KEYS)
        .map(|key| laws::put(format!("key/{key}"), value(batch)))
        .collect();
    rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), changes)
        .await
        .unwrap();
    rows.sync().await.unwrap();
}

/// Merges all tables of level 0, unless the thread does.
async fn merge(rows: &LsmRows) {
    let merged = async {
        while rows.shared.tree.l0_run_count() > 0 {
            rows.shared.merger.merge_level0().unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), merged).await.unwrap();
}

#[tokio::test]
async fn views_keep_their_rows_while_tables_are_merged() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
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
    let kept = rows.shared.tree.disk_space();
    // With the views go the rows that only they needed, once a merge comes by the level that they are in.
    drop(views);
    write(&rows, 61).await;
    rows.apply(History::fence(61), History::fence(62).unwrap(), Vec::new())
        .await
        .unwrap();
    while rows.shared.merger.push_down().unwrap() {}
    let left = rows.shared.tree.disk_space();
    assert!(left * 3 < kept, "{left} of {kept} bytes are left");
}

#[tokio::test]
async fn versions_that_no_view_needs_come_to_no_table() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    let put = async |batch: u64| {
        let put = vec![laws::put("key", batch.to_be_bytes())];
        rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), put)
            .await
            .unwrap();
    };
    for batch in 1..=5 {
        put(batch).await;
    }
    let view = rows.snapshot().await.unwrap();
    for batch in 6..=9 {
        put(batch).await;
    }
    rows.sync().await.unwrap();
    // The first batch, the one that the view sees, and what came after it.
    assert_eq!(versions(&rows), 2 + 2 * 5);
    let value = |batch: u64| Some(Bytes::copy_from_slice(&batch.to_be_bytes()));
    assert_eq!(view.get(b"key").await.unwrap(), value(5));
    drop(view);
    put(10).await;
    put(11).await;
    rows.sync().await.unwrap();
    assert_eq!(versions(&rows), 2 + 2 * 5 + 2);
    assert_eq!(rows.snapshot().await.unwrap().get(b"key").await.unwrap(), value(11));
}

#[tokio::test]
async fn merges_without_free_space_are_not_begun() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    drop(LsmRows::open(&dir, small()).unwrap());
    let options = LsmOptions {
        reserve_bytes: 1 << 60,
        ..small()
    };
    let rows = LsmRows::open(&dir, options).unwrap();
    for batch in 1..=8 {
        let number = rows.shared.tree.draw();
        rows.shared.tree.insert(format!("key/{batch}"), "x", number);
        rows.shared.tree.insert("key", "x", number);
        rows.sync().await.unwrap();
    }
    match rows.shared.merger.has_work() {
        Err(RowsError::Full(reason)) => assert!(reason.to_string().contains("more bytes are needed"), "{reason}"),
        other => panic!("expected full, got {other:?}"),
    }
}

/// A value that does not compress.
fn noise(batch: u64) -> Bytes {
    random_bytes(batch, 800)
}

pub(super) fn random_bytes(batch: u64, len: usize) -> Bytes {
    use rand::{RngExt as _, SeedableRng as _};
    let mut value = vec![0; len];
    rand::rngs::SmallRng::seed_from_u64(batch).fill(value.as_mut_slice());
    value.into()
}

/// Returns true if each level below level 0 is one run.
fn are_disjoint(rows: &LsmRows) -> bool {
    let version = rows.shared.tree.current_version();
    (1..version.level_count()).all(|level| version.level(level).is_some_and(|level| level.run_count() <= 1))
}

/// All tables and their bytes.
fn tables(rows: &LsmRows) -> std::collections::BTreeMap<u64, u64> {
    let version = rows.shared.tree.current_version();
    let all = version.iter_tables();
    all.map(|table| (table.metadata.id, table.metadata.file_size)).collect()
}

#[tokio::test]
async fn merges_of_all_shapes_keep_every_row() {
    use rand::{RngExt as _, SeedableRng as _};
    for seed in 0..3 {
        let root = tempfile::tempdir().unwrap();
        // Tables are made only where the test says so.
        let options = LsmOptions {
            memtable_bytes: 8 << 20,
            ..small()
        };
        let rows = LsmRows::open(&root.path().join("rows"), options).unwrap();
        rows.shared.merger.end();
        let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
        let mut expected = std::collections::BTreeMap::new();
        let shapes = [
            MergeShape::ample(8 << 10),
            MergeShape::tight(8 << 10),
            MergeShape::down(8 << 10),
        ];
        for batch in 1..=200 {
            let mut changes = Vec::new();
            for _ in 0..random.random_range(1..30) {
                let key = format!("key/{:04}", random.random_range(0..3000));
                if random.random_bool(0.3) {
                    expected.remove(&key);
                    changes.push(laws::delete(key));
                } else {
                    expected.insert(key.clone(), batch);
                    changes.push(laws::put(key, noise(batch)));
                }
            }
            rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), changes)
                .await
                .unwrap();
            if random.random_bool(0.5) {
                rows.sync().await.unwrap();
            }
            let shape = shapes[random.random_range(0..shapes.len())];
            for _ in 0..random.random_range(0..6) {
                let (before, need) = (tables(&rows), Levels::of(&rows.shared.tree).need(shape));
                let done = rows.shared.merger.step(shape).unwrap();
                assert!(
                    need.is_some() || !done,
                    "seed {seed}, batch {batch}, {shape:?}: an unforeseen merge"
                );
                let new: Vec<u64> = tables(&rows)
                    .into_iter()
                    .filter(|(table, _)| !before.contains_key(table))
                    .map(|(_, bytes)| bytes)
                    .collect();
                let written: u64 = new.iter().sum();
                // Each table has something beside its rows.
                let need = need.unwrap_or(0) + new.len() as u64 * 2048;
                assert!(
                    written <= need + need / 4,
                    "{written} bytes, {need} were needed; seed {seed}, batch {batch}"
                );
                assert!(are_disjoint(&rows), "seed {seed}, batch {batch}, {shape:?}");
            }
        }
        let view = rows.snapshot().await.unwrap();
        for key in 0..3000 {
            let key = format!("key/{key:04}");
            let row = view.get(key.as_bytes()).await.unwrap();
            assert_eq!(row, expected.get(&key).map(|batch| noise(*batch)), "seed {seed}, {key}");
        }
    }
}

#[tokio::test]
async fn tables_that_were_made_beside_a_merge_that_failed_stay_as_long_as_views_need_them() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    let (tree, merger) = (&rows.shared.tree, &rows.shared.merger);
    for batch in 1..=3 {
        write(&rows, batch).await;
    }
    let view = rows.snapshot().await.unwrap();
    let files: Vec<_> = tables(&rows).into_keys().collect();
    let file = |number: &u64| tree.path().join(inspect::TABLES_DIR).join(number.to_string());
    let nobodys = tree.next_table_id();
    std::fs::write(file(&nobodys), "half a table").unwrap();
    tree.get_next_table_id();
    merger.note_unfinished(0);
    // Another table is being made, which may have one of the numbers.
    let made = tree.get_flush_lock();
    std::thread::scope(|threads| {
        let merge = threads.spawn(|| while merger.step(MergeShape::tight(64 << 10)).unwrap() {});
        assert!(file(&nobodys).exists() && !merge.is_finished());
        drop(made);
    });
    assert!(!tables(&rows).contains_key(files.last().unwrap()), "it was merged");
    assert!(!file(&nobodys).exists());
    assert!(files.iter().all(|number| file(number).exists()), "{files:?}");
    drop(view);
}

#[tokio::test]
async fn deletions_beside_a_row_beyond_all_others_are_pushed_down() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    write(&rows, 1).await;
    while rows.shared.merger.push_down().unwrap() {}
    let mut changes: Vec<_> = (0..KEYS).map(|key| laws::delete(format!("key/{key}"))).collect();
    changes.push(laws::put("key/a", value(2)));
    rows.apply(History::fence(1), History::fence(2).unwrap(), changes)
        .await
        .unwrap();
    rows.sync().await.unwrap();
    // Views are younger than what was deleted.
    let last = History::fence(3).unwrap();
    rows.apply(History::fence(2), last, Vec::new()).await.unwrap();
    while rows.shared.merger.push_down().unwrap() {}
    let levels = Levels::of(&rows.shared.tree);
    assert!(!levels.is_spread(), "{levels:?}");
    assert_eq!(versions(&rows), 2, "the row and the fence");
}

/// Waits until tables that occupied `before` bytes occupy little. It renews views while it waits, as a brain does.
async fn until_given_back(rows: &LsmRows, before: u64) {
    let occupied = || inspect::table_bytes(rows.shared.tree.path()).unwrap();
    let given_back = async {
        while occupied() > 3 * MAX_LEFT_OVER_BYTES / 2 {
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
    };
    let given_back = tokio::time::timeout(Duration::from_secs(60), given_back).await;
    assert!(given_back.is_ok(), "{} of {before} bytes are left", occupied());
}

#[tokio::test]
async fn space_of_deleted_rows_comes_back_though_nothing_is_written_any_more() {
    const ROWS: u64 = 300;
    let root = tempfile::tempdir().unwrap();
    let options = LsmOptions {
        memtable_bytes: 1 << 20,
        ..small()
    };
    let rows = LsmRows::open(&root.path().join("rows"), options).unwrap();
    for batch in 1..=2 * ROWS {
        let key = format!("key/{:04}", (batch - 1) % ROWS);
        let change = match batch <= ROWS {
            true => laws::put(key, random_bytes(batch, 100 << 10)),
            false => laws::delete(key),
        };
        rows.apply(History::fence(batch - 1), History::fence(batch).unwrap(), vec![change])
            .await
            .unwrap();
    }
    let before = inspect::table_bytes(rows.shared.tree.path()).unwrap();
    assert!(before > 3 * MAX_LEFT_OVER_BYTES, "{before} bytes");
    until_given_back(&rows, before).await;
}

const LARGE_ROWS: u64 = 300;
const LARGE_ROW_BYTES: usize = 100 << 10;

/// Rows that are all in the last level; a sixth of them is then deleted: too few for a merge while others work.
async fn with_a_sixth_deleted(dir: &std::path::Path) -> LsmRows {
    let options = LsmOptions {
        memtable_bytes: 1 << 20,
        ..small()
    };
    let rows = LsmRows::open(dir, options).unwrap();
    let key = |row| format!("key/{row:04}");
    let puts = (0..LARGE_ROWS).map(|row| laws::put(key(row), random_bytes(row, LARGE_ROW_BYTES)));
    rows.apply(None, History::fence(1).unwrap(), puts.collect())
        .await
        .unwrap();
    while Levels::of(&rows.shared.tree).is_spread() {
        rows.shared.merger.push_down().unwrap();
        tokio::task::yield_now().await;
    }
    let deletions = (0..LARGE_ROWS).step_by(6).map(|row| laws::delete(key(row)));
    rows.apply(History::fence(1), History::fence(2).unwrap(), deletions.collect())
        .await
        .unwrap();
    rows
}

fn bytes_left() -> u64 {
    (LARGE_ROWS - LARGE_ROWS / 6) * LARGE_ROW_BYTES as u64
}

/// Waits until table files have little more than live rows. It renews views when it is asked, and then as often as the rows want, as a
/// brain does.
async fn until_nothing_dead_is_left(rows: &LsmRows) {
    let occupied = || inspect::table_bytes(rows.shared.tree.path()).unwrap();
    let gone = async {
        let mut view = rows.snapshot().await.unwrap();
        while occupied() > bytes_left() * 21 / 20 {
            let is_awaited = rows.renew_after() == Some(MAX_VIEW_AGE_AWAITED);
            tokio::select! {
            () = rows.renewal_asked() => {}
            () = tokio::time::sleep(MAX_VIEW_AGE_AWAITED), if is_awaited => {}
            }
            view = rows.snapshot().await.unwrap();
        }
        drop(view);
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), gone).await;
    assert!(gone.is_ok(), "{} bytes for {}", occupied(), bytes_left());
}

#[tokio::test]
async fn few_dead_rows_leave_the_disk_when_the_rows_are_idle() {
    let root = tempfile::tempdir().unwrap();
    let rows = with_a_sixth_deleted(&root.path().join("rows")).await;
    rows.set_in_use(bytes_left());
    rows.sync().await.unwrap();
    until_nothing_dead_is_left(&rows).await;
    // Files go a little later than their tables.
    let settled = async {
        while rows.shared.merger.is_renewal_due() {
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), settled).await;
    settled.expect("nothing is awaited any more");
}

#[tokio::test]
async fn deletions_in_memory_come_to_a_table_when_the_rows_are_idle() {
    let root = tempfile::tempdir().unwrap();
    let rows = with_a_sixth_deleted(&root.path().join("rows")).await;
    rows.set_in_use(bytes_left());
    let written = async {
        while rows.shared.tree.in_memory() > 0 {
            drop(rows.snapshot().await.unwrap());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), written).await.unwrap();
    until_nothing_dead_is_left(&rows).await;
}

/// A store that counts too little would have everything written again with every table.
#[tokio::test]
async fn bytes_that_no_merge_removes_are_not_taken_for_dead() {
    let root = tempfile::tempdir().unwrap();
    let rows = with_a_sixth_deleted(&root.path().join("rows")).await;
    let merger = &rows.shared.merger;
    merger.end();
    assert!(!merger.is_dead_mergeable(), "deletions are in memory");
    rows.set_in_use(bytes_left() / 2);
    rows.sync().await.unwrap();
    assert!(merger.is_dead_mergeable());
    while merger.push_down().unwrap() {}
    assert!(!merger.is_dead_mergeable(), "all is in the last level");
    rows.apply(
        History::fence(2),
        History::fence(3).unwrap(),
        vec![laws::put("key/a", "value")],
    )
    .await
    .unwrap();
    rows.sync().await.unwrap();
    assert!(Levels::of(&rows.shared.tree).is_spread() && !merger.is_dead_mergeable());
}

/// Deletes what batch 1 has written.
async fn delete_all(rows: &LsmRows) {
    let changes = (0..KEYS).map(|key| laws::delete(format!("key/{key}"))).collect();
    let fence = History::fence(2).unwrap();
    rows.apply(History::fence(1), fence, changes).await.unwrap();
}

/// Versions of rows in tables.
fn versions(rows: &LsmRows) -> u64 {
    let version = rows.shared.tree.current_version();
    version.iter_tables().map(|table| table.metadata.item_count).sum()
}

#[tokio::test]
async fn rows_that_a_view_kept_in_the_last_level_leave_it_after_the_view() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    let fence = |batch| History::fence(batch).unwrap();
    let all = |change: &dyn Fn(String) -> RowChange| (0..KEYS).map(|key| change(format!("key/{key}"))).collect();
    rows.apply(None, fence(1), Vec::new()).await.unwrap();
    // In memory: what is in a table before the view is taken, the view reads there.
    let put = all(&|key| laws::put(key, "value"));
    rows.apply(History::fence(1), fence(2), put).await.unwrap();
    let view = rows.snapshot().await.unwrap();
    let delete = all(&|key| laws::delete(key));
    rows.apply(History::fence(2), fence(3), delete).await.unwrap();
    rows.sync().await.unwrap();
    while rows.shared.merger.push_down().unwrap() {}
    assert!(versions(&rows) > 2 * KEYS, "the view needs them");
    assert_eq!(view.get(b"key/7").await.unwrap(), Some(Bytes::from("value")));
    drop(view);
    rows.shared.renew_view(&*rows.shared.writer.lock().await);
    assert!(!rows.shared.merger.push_down().unwrap(), "all is in the last level");
    assert!(rows.shared.merger.rewrite_last().unwrap());
    assert_eq!(versions(&rows), 1, "the fence");
}

#[tokio::test]
async fn space_of_rows_that_a_view_kept_in_the_last_level_comes_back_by_itself() {
    const ROWS: u64 = 250;
    let root = tempfile::tempdir().unwrap();
    let options = LsmOptions {
        memtable_bytes: 1 << 20,
        ..small()
    };
    let rows = LsmRows::open(&root.path().join("rows"), options).unwrap();
    let put = |key| laws::put(format!("key/{key:04}"), random_bytes(key, 100 << 10));
    let puts = (0..ROWS).map(put).collect();
    let fence = |batch| History::fence(batch).unwrap();
    rows.apply(None, fence(1), puts).await.unwrap();
    let view = rows.snapshot().await.unwrap();
    let deletions = (0..ROWS).map(|key| laws::delete(format!("key/{key:04}"))).collect();
    rows.apply(History::fence(1), fence(2), deletions).await.unwrap();
    rows.sync().await.unwrap();
    while Levels::of(&rows.shared.tree).is_spread() {
        rows.shared.merger.push_down().unwrap();
        tokio::task::yield_now().await;
    }
    let before = inspect::table_bytes(rows.shared.tree.path()).unwrap();
    assert!(before > 2 * MAX_LEFT_OVER_BYTES, "{before} bytes");
    drop(view);
    until_given_back(&rows, before).await;
}

#[tokio::test]
async fn compaction_has_views_renewed_first() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    write(&rows, 1).await;
    let mut view = rows.snapshot().await.unwrap();
    delete_all(&rows).await;
    // As a brain does.
    let renewals = async {
        loop {
            rows.renewal_asked().await;
            view = rows.snapshot().await.unwrap();
            assert_eq!(view.fence().await.unwrap(), History::fence(2));
        }
    };
    tokio::select! {
    () = renewals => {}
    done = rows.compact() => done.unwrap(),
    }
    assert_eq!(versions(&rows), 1, "the fence");
}

#[tokio::test]
async fn bytes_that_a_merge_of_everything_leaves_are_those_of_the_rows_that_stay() {
    const LARGE: u64 = 10;
    const SMALL: u64 = 2_000;
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    let mut puts: Vec<_> = (0..LARGE)
        .map(|key| laws::put(format!("large/{key}"), random_bytes(key, 50_000)))
        .collect();
    puts.extend((0..SMALL).map(|key| laws::put(format!("small/{key}"), random_bytes(key, 50))));
    // Deletions of existing rows, and of others that never came to a table.
    let deletions = (0..2 * SMALL).map(|key| laws::delete(format!("small/{key}"))).collect();
    for (batch, changes) in [(1, puts), (2, deletions), (3, Vec::new())] {
        let last = History::fence(batch).unwrap();
        rows.apply(History::fence(batch - 1), last, changes).await.unwrap();
        rows.sync().await.unwrap();
    }
    let left = rows.shared.merger.live_bytes().unwrap();
    assert!((LARGE * 50_000..LARGE * 51_000).contains(&left), "{left} bytes");
    // It is not read again for a few rows more: those are counted as they are.
    rows.apply(
        History::fence(3),
        History::fence(4).unwrap(),
        vec![laws::put("large/x", random_bytes(LARGE, 30_000))],
    )
    .await
    .unwrap();
    rows.sync().await.unwrap();
    let more = rows.shared.merger.live_bytes().unwrap();
    assert!(
        (left + 30_000..left + 40_000).contains(&more),
        "{left} and {more} bytes"
    );
}

/// A compaction writes the fence to have views renewed, and merges, before it looks how much is left.
#[tokio::test]
async fn bytes_that_are_left_are_known_though_every_view_is_younger_than_the_tables() {
    let root = tempfile::tempdir().unwrap();
    let rows = LsmRows::open(&root.path().join("rows"), small()).unwrap();
    rows.shared.merger.end();
    for batch in 1..=6 {
        let changes = match batch {
            1 | 2 => vec![laws::put(format!("key/{batch}"), random_bytes(batch, 50_000))],
            _ => Vec::new(),
        };
        let last = History::fence(batch).unwrap();
        rows.apply(History::fence(batch - 1), last, changes).await.unwrap();
        if batch <= 2 {
            rows.sync().await.unwrap();
        }
    }
    rows.shared.compact(super::super::CompactionWork::Tables).unwrap();
    let watermark = rows.shared.live.watermark();
    let path = rows.shared.tree.path().to_owned();
    let mut versions = rows.shared.tree.get_version_history_lock();
    versions.maintenance(&path, watermark).unwrap();
    drop(versions);
    let left = rows.shared.merger.live_bytes().unwrap();
    assert!((100_000..102_000).contains(&left), "{left} bytes");
}
