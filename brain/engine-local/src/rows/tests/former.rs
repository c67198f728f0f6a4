//! Directories as fjall wrote them are converted, or refused as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use rand::{RngExt as _, SeedableRng as _};

use super::damage::{BATCHES, Outcome, SEED, copy, files, look, models};
use super::{History, LsmRows, RowsOpenError, small};
use crate::rows::former::Journals;
use crate::rows::inspect::{LOCK_FILE, TREE_DIR, name};
use crate::rows::layout::{FENCE_ROW, stored};
use crate::rows::tree::RowsTree;
use crate::rows::{StoredRows, inspect};
use engine::rows::{RowChange, Rows, Snapshot as _, laws};

fn open(dir: &Path, memtable_bytes: u64) -> (Database, Keyspace) {
    let database = Database::builder(dir)
        .manual_journal_persist(true)
        .journal_compression(CompressionType::None)
        .worker_threads(1)
        .open()
        .unwrap();
    let options = KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(memtable_bytes)
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::new([true, false]))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        .compaction_strategy(Arc::new(
            fjall::compaction::Leveled::default().with_l0_threshold(u8::MAX),
        ))
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::BitsPerKey(10.0),
        )));
    let keyspace = database.keyspace("rows", || options).unwrap();
    (database, keyspace)
}

/// Applies a batch as the former version did: its fence row begins with its number.
fn apply((database, keyspace): &(Database, Keyspace), batch: u64) {
    let mut rows = fjall::OwnedWriteBatch::with_capacity(database.clone(), 20);
    for change in History::new(SEED).changes(batch) {
        match change {
            RowChange::Put(key, value) => rows.insert(keyspace, stored(&key), value.as_ref()),
            RowChange::Delete(key) => rows.remove(keyspace, stored(&key)),
        }
    }
    let mut fence = batch.to_be_bytes().to_vec();
    fence.extend_from_slice(&8u32.to_be_bytes());
    fence.extend_from_slice(&batch.to_be_bytes());
    // As the former version padded a journal.
    fence.resize(fence.len() + usize::try_from(batch % 3).unwrap() * 7, 0);
    rows.insert(keyspace, FENCE_ROW, fence);
    rows.commit().unwrap();
}

/// A directory with the first half of all batches in tables and in the journal, and the rest in the journal alone; that journal, and where
/// the first batch begins in it that is in no table.
fn built(root: &Path) -> (PathBuf, Vec<u8>, usize) {
    let dir = root.join("built");
    let rows = open(&dir, 64 << 20);
    let mut border = 0;
    for batch in 1..=BATCHES {
        apply(&rows, batch);
        if batch % 100 == 0 && batch <= BATCHES / 2 {
            rows.1.rotate_memtable_and_wait().unwrap();
            rows.0.persist(PersistMode::SyncAll).unwrap();
            border = used(&dir.join("0.jnl")).len();
        }
    }
    rows.0.persist(PersistMode::SyncAll).unwrap();
    drop(rows);
    let journal = used(&dir.join("0.jnl"));
    // Not 64 MiB of mostly nothing in each copy.
    fs::write(dir.join("0.jnl"), &journal).unwrap();
    (dir, journal, border)
}

/// The bytes of a file before the zeros at its end.
fn used(file: &Path) -> Vec<u8> {
    const BLOCK: usize = 4096;
    let mut bytes = fs::read(file).unwrap();
    // A journal has 64 MiB: whole blocks are compared first.
    let blocks = bytes
        .chunks(BLOCK)
        .rposition(|block| block != &[0; BLOCK][..block.len()]);
    bytes.truncate(blocks.map_or(0, |last| (last + 1) * BLOCK));
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(end);
    bytes
}

/// Divides the journal at `border`, as if fjall had begun a second one there.
fn divide(dir: &Path, journal: &[u8], border: usize) {
    fs::write(dir.join("0.jnl"), &journal[..border]).unwrap();
    fs::write(dir.join("1.jnl"), &journal[border..]).unwrap();
}

/// The same without tables: all batches are in the journal alone.
fn without_tables(root: &Path) -> (PathBuf, Vec<u8>, usize) {
    let dir = root.join("journals");
    let rows = open(&dir, 64 << 20);
    let mut border = 0;
    for batch in 1..=BATCHES {
        apply(&rows, batch);
        if batch == BATCHES / 2 {
            rows.0.persist(PersistMode::SyncAll).unwrap();
            border = used(&dir.join("0.jnl")).len();
        }
    }
    rows.0.persist(PersistMode::SyncAll).unwrap();
    drop(rows);
    let journal = used(&dir.join("0.jnl"));
    divide(&dir, &journal, border);
    (dir, journal, border)
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files(dir).into_iter();
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = inspect::list(dir).unwrap().iter().map(|path| name(path)).collect();
    names.sort();
    names
}

#[tokio::test]
async fn former_directory_comes_back_and_is_of_the_layout_of_today() {
    let root = tempfile::tempdir().unwrap();
    let models = models().await;
    for (dir, ..) in [built(root.path()), without_tables(root.path())] {
        for _ in 0..2 {
            assert!(matches!(look(&dir, &models).await, Outcome::Batch(BATCHES)));
            assert_eq!(names(&dir), [LOCK_FILE, TREE_DIR]);
        }
        let rows = LsmRows::open(&dir, small()).unwrap();
        let view = rows.snapshot().await.unwrap();
        History::new(SEED).apply(&rows, BATCHES + 1).await.unwrap();
        rows.compact().await.unwrap();
        assert_eq!(
            view.scan(laws::everything()).await.unwrap().rows,
            models[BATCHES as usize]
        );
        assert_eq!(rows.fence().await.unwrap(), History::fence(BATCHES + 1));
    }
}

#[tokio::test]
async fn conversion_that_was_cut_short_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let models = models().await;
    let (dir, journal, _) = built(root.path());
    // All batches were written to tables of a small size; and only the first table.
    for batches in [BATCHES, BATCHES / 2 + 20] {
        let scratch = root.path().join(format!("converting-{batches}"));
        copy(&dir, &scratch);
        let tree = RowsTree::open(&scratch.join("keyspaces/1"), &small()).unwrap();
        let mut journals = Journals::check(&scratch).unwrap();
        journals.forget_after(batches);
        journals.replay(&tree, 16 << 10).unwrap();
        drop(tree);
        assert!(
            matches!(look(&scratch, &models).await, Outcome::Batch(BATCHES)),
            "{batches}"
        );
    }
    // The tree was moved, and nothing was removed yet.
    let scratch = root.path().join("moved");
    copy(&dir, &scratch);
    drop(LsmRows::open(&scratch, small()).unwrap());
    fs::create_dir_all(scratch.join("keyspaces/0/tables")).unwrap();
    for rest in ["0.jnl", "0.jnl.cut", "version"] {
        fs::write(scratch.join(rest), &journal[..99]).unwrap();
    }
    assert!(matches!(look(&scratch, &models).await, Outcome::Batch(BATCHES)));
    assert_eq!(names(&scratch), [LOCK_FILE, TREE_DIR]);
}

#[tokio::test]
async fn damaged_or_missing_older_journal_is_told_before_anything_is_changed() {
    let root = tempfile::tempdir().unwrap();
    let (built, journal, border) = without_tables(root.path());
    let (models, old) = (models().await, &journal[..border]);
    let scratch = root.path().join("scratch");
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    for round in 0..60 {
        copy(&built, &scratch);
        let mut bytes = old.to_vec();
        match round {
            0 => fs::remove_file(scratch.join("0.jnl")).unwrap(),
            1..20 => bytes.truncate(random.random_range(1..old.len())),
            20 => bytes.clear(),
            _ => bytes[random.random_range(0..old.len())] ^= 1 << random.random_range(0..8),
        }
        if round > 0 {
            fs::write(scratch.join("0.jnl"), &bytes).unwrap();
        }
        let before = contents(&scratch);
        match look(&scratch, &models).await {
            Outcome::Refused(reason) => {
                assert!(reason.contains(scratch.to_str().unwrap()), "{reason:?} names no place")
            }
            Outcome::Batch(batch) => panic!("round {round}: batch {batch} came back"),
        }
        assert!(before == contents(&scratch), "round {round}: files were changed");
        fs::remove_dir_all(&scratch).unwrap();
    }
}

/// The sequence number of a batch is in no checksum, and a batch whose number is low is left out.
#[tokio::test]
async fn batch_with_another_sequence_number_is_told() {
    let root = tempfile::tempdir().unwrap();
    let models = models().await;
    let (dir, journal, first) = built(root.path());
    let scratch = root.path().join("scratch");
    for sequence in [0u64, 1, 1 << 50, u64::MAX] {
        copy(&dir, &scratch);
        // As if the journal began there, and the batch had another number.
        let mut journal = journal[first..].to_vec();
        journal[5..13].copy_from_slice(&sequence.to_le_bytes());
        fs::write(scratch.join("0.jnl"), journal).unwrap();
        match look(&scratch, &models).await {
            Outcome::Refused(reason) => {
                assert!(reason.contains(scratch.to_str().unwrap()), "{reason:?} names no place")
            }
            Outcome::Batch(batch) => panic!("sequence number {sequence}: batch {batch} came back"),
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}

/// After a power failure any page that was not synced may be missing, the first as well as the last.
#[tokio::test]
async fn holes_in_the_newest_journal_are_an_incomplete_end() {
    let root = tempfile::tempdir().unwrap();
    let (built, journal, border) = without_tables(root.path());
    let (models, newest) = (models().await, &journal[border..]);
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    for _ in 0..30 {
        let scratch = root.path().join("scratch");
        copy(&built, &scratch);
        let mut bytes = newest.to_vec();
        let from = random.random_range(0..bytes.len());
        // Small enough to be within one value, too.
        let to = (from + random.random_range(1..4096)).min(bytes.len());
        bytes[from..to].fill(0);
        fs::write(scratch.join("1.jnl"), bytes).unwrap();
        let Outcome::Batch(batch) = look(&scratch, &models).await else {
            panic!("refused")
        };
        assert!((BATCHES / 2..BATCHES).contains(&batch), "batch {batch} came back");
        let rows = LsmRows::open(&scratch, small()).unwrap();
        History::new(SEED).apply(&rows, batch + 1).await.unwrap();
        rows.sync().await.unwrap();
        drop(rows);
        assert!(matches!(look(&scratch, &models).await, Outcome::Batch(found) if found == batch + 1));
        fs::remove_dir_all(&scratch).unwrap();
    }
}

#[tokio::test]
async fn incomplete_end_that_the_log_does_not_cover_leaves_the_directory_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let (dir, journal, first) = built(root.path());
    // With a flaw at byte 0 no batch is left in the journal: then only tables have the fence.
    for at in [0, first] {
        let scratch = root.path().join(format!("at-{at}"));
        copy(&dir, &scratch);
        let mut damaged = journal.clone();
        damaged[at] ^= 0x40;
        fs::write(scratch.join("0.jnl"), &damaged).unwrap();
        let before = contents(&scratch);
        let refused = LsmRows::open_for(&scratch, small(), |fence| {
            let batch = History::batch_of(fence.as_ref());
            anyhow::bail!("the log begins behind batch {batch}")
        });
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, RowsOpenError::Uncovered { .. }), "{refused}");
        assert!(refused.to_string().contains("behind batch 200;"), "{refused}");
        let is_listed = |(path, _): &&(PathBuf, Vec<u8>)| !name(path).starts_with('v');
        let after = contents(&scratch);
        // lsm-tree removes manifests that are not needed.
        assert!(before.iter().filter(is_listed).eq(after.iter().filter(is_listed)));
        let rows = LsmRows::open_for(&scratch, small(), |_| Ok(())).unwrap();
        assert_eq!(rows.fence().await.unwrap(), History::fence(200));
    }
}

#[test]
fn version_of_a_former_directory_is_looked_at() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let rows = open(&dir, 64 << 20);
    apply(&rows, 1);
    rows.0.persist(PersistMode::SyncAll).unwrap();
    drop(rows);
    let version = dir.join("version");
    let refused = || LsmRows::open(&dir, small()).unwrap_err();
    fs::write(&version, b"none").unwrap();
    let error = refused().to_string();
    assert!(error.contains(version.to_str().unwrap()), "{error}");
    fs::write(&version, b"FJL\x04").unwrap();
    assert!(matches!(refused(), RowsOpenError::Newer(path) if path == version));
    fs::remove_file(&version).unwrap();
    let error = refused().to_string();
    assert!(error.contains(version.to_str().unwrap()), "{error}");
}

#[test]
fn file_that_only_looks_like_a_journal_is_damage() {
    let root = tempfile::tempdir().unwrap();
    let (dir, ..) = built(root.path());
    for make in [
        |path: &Path| fs::create_dir(path.join("8.jnl")),
        |path: &Path| fs::write(path.join("old.jnl"), ""),
        |path: &Path| std::os::unix::fs::symlink("nowhere", path.join("8.jnl")),
    ] {
        let scratch = root.path().join("scratch");
        copy(&dir, &scratch);
        make(&scratch).unwrap();
        let refused = LsmRows::open(&scratch, small()).unwrap_err().to_string();
        assert!(refused.contains("is not the name of a journal"), "{refused}");
        fs::remove_dir_all(&scratch).unwrap();
    }
}

#[tokio::test]
async fn former_directory_that_is_only_looked_at_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let (dir, ..) = built(root.path());
    let before = contents(&dir);
    let rows = StoredRows::open(&dir).unwrap();
    let page = rows.snapshot().scan(laws::everything()).await.unwrap();
    assert_eq!(page.rows, models().await[BATCHES as usize]);
    assert_eq!(rows.snapshot().fence().await.unwrap(), History::fence(BATCHES));
    drop(rows);
    assert!(before == contents(&dir));
}
