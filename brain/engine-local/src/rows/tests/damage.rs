//! Damage to any file leads to an error that names it, or to the rows of an earlier batch together with that batch's fence.

use std::fs;
use std::path::{Path, PathBuf};

use rand::{RngExt as _, SeedableRng as _};

use super::{History, LsmRows, RowsError, RowsOpenError, small};
use crate::rows::inspect::TREE_DIR;
use engine::rows::{Rows, laws};

pub(super) const SEED: u64 = 11;
pub(super) const BATCHES: u64 = 400;

pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Copies of the database as it was on disk after some of the batches. The last copy is taken after all of them.
async fn build(root: &Path, stops: &[u64]) -> Vec<PathBuf> {
    let dir = root.join("rows");
    let history = History::new(SEED);
    let mut copies = Vec::new();
    let mut batch = 0;
    for &stop in stops {
        let rows = LsmRows::open(&dir, small()).unwrap();
        while batch < stop {
            batch += 1;
            history.apply(&rows, batch).await.unwrap();
        }
        rows.sync().await.unwrap();
        drop(rows);
        let target = root.join(format!("after-{stop}"));
        copy(&dir, &target);
        copies.push(target);
    }
    copies
}

pub(super) enum Outcome {
    /// Refused, with a reason.
    Refused(String),
    /// The rows of a batch.
    Batch(u64),
}

/// Opens and reads everything. Fails when rows and fence are not of one batch.
pub(super) async fn look(dir: &Path, models: &[Vec<(bytes::Bytes, bytes::Bytes)>]) -> Outcome {
    let rows = match LsmRows::open(dir, small()) {
        Ok(rows) => rows,
        Err(RowsOpenError::Rows(error @ RowsError::Corrupt(_))) => return Outcome::Refused(error.to_string()),
        Err(RowsOpenError::Rows(RowsError::Failed(error))) => return Outcome::Refused(format!("{error:#}")),
        Err(RowsOpenError::Newer(dir)) => return Outcome::Refused(dir.display().to_string()),
        Err(error) => panic!("this error does not report damage: {error:?}"),
    };
    let batch = History::batch_of(rows.fence().await.unwrap().as_ref());
    let snapshot = rows.snapshot().await.unwrap();
    match snapshot.scan(laws::everything()).await {
        Ok(page) => {
            assert!(page.done);
            let wanted = usize::try_from(batch).ok().and_then(|batch| models.get(batch));
            let wanted = wanted.expect("no later fence than was written");
            assert!(
                &page.rows == wanted,
                "{}: wrong rows under the fence of batch {batch}",
                dir.display()
            );
            for (key, value) in wanted {
                match snapshot.get(key).await {
                    Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                    Err(RowsError::Corrupt(reason)) => return Outcome::Refused(reason),
                    Err(error) => panic!("this error does not report damage: {error:?}"),
                }
            }
            Outcome::Batch(batch)
        }
        Err(RowsError::Corrupt(reason)) => Outcome::Refused(reason),
        Err(error) => panic!("this error does not report damage: {error:?}"),
    }
}

/// The rows after each batch.
pub(super) async fn models() -> Vec<Vec<(bytes::Bytes, bytes::Bytes)>> {
    let history = History::new(SEED);
    let rows = engine::rows::mem::MemRows::new();
    let mut models = vec![laws::content(&rows).await];
    for batch in 1..=BATCHES {
        history.apply(&rows, batch).await.unwrap();
        models.push(laws::content(&rows).await);
    }
    models
}

#[tokio::test]
async fn a_flipped_bit_is_told_or_leaves_an_earlier_batch() {
    let root = tempfile::tempdir().unwrap();
    let copies = build(root.path(), &[BATCHES]).await;
    let models = models().await;
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    let (mut refused, mut unharmed) = (0, 0);
    for file in files(&copies[0]) {
        let used = fs::read(&file)
            .unwrap()
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        for _ in 0..used.min(12) {
            let (byte, bit) = (random.random_range(0..used), random.random_range(0..8));
            let scratch = root.path().join("scratch");
            copy(&copies[0], &scratch);
            let target = scratch.join(file.strip_prefix(&copies[0]).unwrap());
            let mut bytes = fs::read(&target).unwrap();
            bytes[byte] ^= 1 << bit;
            fs::write(&target, bytes).unwrap();
            let outcome = look(&scratch, &models).await;
            if let Some(current) = is_manifest(&file) {
                match outcome {
                    Outcome::Refused(reason) => {
                        assert!(current && reason.contains(target.to_str().unwrap()), "{reason}")
                    }
                    Outcome::Batch(batch) => assert!(!current && batch == BATCHES, "{}: {batch}", file.display()),
                }
                fs::remove_dir_all(&scratch).unwrap();
                continue;
            }
            match outcome {
                Outcome::Refused(reason) => {
                    // lsm-tree does not say which table is damaged.
                    let is_named = match file.file_name().unwrap().to_str().unwrap() {
                        "current" => reason.contains(target.to_str().unwrap()),
                        _ => reason.contains(scratch.to_str().unwrap()),
                    };
                    assert!(is_named, "{}: {reason:?} names no place", file.display());
                    refused += 1;
                }
                // Not every bit of a table is read.
                Outcome::Batch(BATCHES) => unharmed += 1,
                Outcome::Batch(batch) => panic!("batch {batch} came back"),
            }
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
    assert!(refused > unharmed, "{refused} refused, {unharmed} unharmed");
}

#[tokio::test]
async fn a_missing_file_is_told_or_leaves_an_earlier_batch() {
    let root = tempfile::tempdir().unwrap();
    let copies = build(root.path(), &[BATCHES]).await;
    let models = models().await;
    for file in files(&copies[0]) {
        let scratch = root.path().join("scratch");
        copy(&copies[0], &scratch);
        fs::remove_file(scratch.join(file.strip_prefix(&copies[0]).unwrap())).unwrap();
        match look(&scratch, &models).await {
            Outcome::Refused(reason) => {
                assert!(reason.contains(scratch.to_str().unwrap()), "{reason:?} names no place")
            }
            Outcome::Batch(batch) => {
                assert_eq!(
                    is_manifest(&file),
                    Some(false),
                    "without {} batch {batch} came back",
                    file.display()
                );
                assert_eq!(batch, BATCHES);
            }
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}

/// Returns true if a manifest is the one that `current` names; lsm-tree does not remove all others. `None` for other files.
fn is_manifest(file: &Path) -> Option<bool> {
    let number: u64 = file.file_name()?.to_str()?.strip_prefix('v')?.parse().ok()?;
    let current = fs::read(file.with_file_name("current")).unwrap();
    Some(current.starts_with(&number.to_le_bytes()))
}

#[tokio::test]
async fn a_directory_or_a_file_rolled_back_is_told_or_leaves_an_earlier_batch() {
    let root = tempfile::tempdir().unwrap();
    let copies = build(root.path(), &[BATCHES / 4, BATCHES / 2, BATCHES]).await;
    let models = models().await;
    let [oldest, older, newest] = copies.as_slice() else {
        panic!("three copies")
    };
    for (old, batch) in [(oldest, BATCHES / 4), (older, BATCHES / 2)] {
        let whole = root.path().join("whole");
        copy(old, &whole);
        assert!(matches!(look(&whole, &models).await, Outcome::Batch(found) if found == batch));
        fs::remove_dir_all(&whole).unwrap();
        for file in files(old) {
            let name = file.strip_prefix(old).unwrap();
            let scratch = root.path().join("scratch");
            copy(newest, &scratch);
            fs::copy(&file, scratch.join(name)).unwrap();
            look(&scratch, &models).await;
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
}

#[tokio::test]
async fn stray_files_are_named_and_temporary_ones_are_swept() {
    let root = tempfile::tempdir().unwrap();
    let dir = build(root.path(), &[BATCHES]).await.remove(0);
    let tree = dir.join(TREE_DIR);
    // The last two are of a batch whose process ended before the pointer named its manifest.
    let begun = [".tmpAb12Cd", "tables/.tmpAb12Cd", "tables/9999", "v9999"].map(|name| tree.join(name));
    for file in &begun {
        fs::write(file, "half").unwrap();
    }
    LsmRows::open(&dir, small()).unwrap();
    assert!(begun.iter().all(|file| !file.exists()), "{:?}", files(&dir));
    let stray = tree.join("tables/12.bak");
    fs::write(&stray, "mine").unwrap();
    let refused = LsmRows::open(&dir, small()).unwrap_err().to_string();
    assert!(refused.contains(stray.to_str().unwrap()), "{refused}");
    fs::remove_file(stray).unwrap();
    LsmRows::open(&dir, small()).unwrap();
}

#[tokio::test]
async fn directory_without_its_tree_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = build(root.path(), &[1]).await.remove(0);
    fs::remove_dir_all(dir.join(TREE_DIR)).unwrap();
    let refused = LsmRows::open(&dir, small()).unwrap_err().to_string();
    assert!(refused.contains(dir.join(TREE_DIR).to_str().unwrap()), "{refused}");
}
