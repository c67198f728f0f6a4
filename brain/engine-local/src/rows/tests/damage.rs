//! Damage to any file leads to an error that names it, or to the rows of an earlier batch together with that batch's fence.

use std::fs;
use std::path::{Path, PathBuf};

use rand::{RngExt as _, SeedableRng as _};

use super::{FjallRows, History, RowsError, RowsOpenError, small};
use engine::rows::{Rows, laws};

const SEED: u64 = 11;
const BATCHES: u64 = 400;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            copy_sparsely(&entry.path(), &target);
        }
    }
}

/// Journals without the zeros at the end: they are 64 MiB of mostly nothing.
fn copy_sparsely(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let is_journal = from.extension().is_some_and(|extension| extension == "jnl");
    let used = if is_journal { used_of(&bytes) } else { bytes.len() };
    fs::write(to, &bytes[..used]).unwrap();
}

/// Copies of the database as it was on disk after some of the batches. The last copy is taken after all of them.
async fn build(root: &Path, stops: &[u64]) -> Vec<PathBuf> {
    let dir = root.join("rows");
    let history = History::new(SEED);
    let mut copies = Vec::new();
    let mut batch = 0;
    for &stop in stops {
        let rows = FjallRows::open(&dir, small()).unwrap();
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

enum Outcome {
    /// Refused, with a reason.
    Refused(String),
    /// The rows of a batch, and what `open` cut.
    Batch(u64),
}

/// Opens and reads everything. Fails when rows and fence are not of one batch.
async fn look(dir: &Path, models: &[Vec<(bytes::Bytes, bytes::Bytes)>]) -> Outcome {
    let rows = match FjallRows::open(dir, small()) {
        Ok(rows) => rows,
        Err(RowsOpenError::Rows(error @ RowsError::Corrupt(_))) => return Outcome::Refused(error.to_string()),
        Err(RowsOpenError::Rows(RowsError::Failed(error))) => return Outcome::Refused(format!("{error:#}")),
        Err(RowsOpenError::Newer(dir)) => return Outcome::Refused(dir.display().to_string()),
        Err(error) => panic!("not how damage is told: {error:?}"),
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
                    Err(error) => panic!("not how damage is told: {error:?}"),
                }
            }
            Outcome::Batch(batch)
        }
        Err(RowsError::Corrupt(reason)) => Outcome::Refused(reason),
        Err(error) => panic!("not how damage is told: {error:?}"),
    }
}

/// The rows after each batch.
async fn models() -> Vec<Vec<(bytes::Bytes, bytes::Bytes)>> {
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
    let (mut refused, mut earlier, mut unharmed) = (0, 0, 0);
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
                    // fjall does not say which table, or with a later version which file, is damaged.
                    let is_named = match file.file_name().unwrap().to_str().unwrap() {
                        "current" => reason.contains(target.to_str().unwrap()),
                        _ => reason.contains(scratch.to_str().unwrap()),
                    };
                    assert!(is_named, "{}: {reason:?} names no place", file.display());
                    refused += 1;
                }
                Outcome::Batch(BATCHES) => unharmed += 1,
                Outcome::Batch(_) => earlier += 1,
            }
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
    // fjall's own thread decides how much is in tables by then, where damage is detected.
    assert!(refused > 0, "{refused} refused, {earlier} earlier, {unharmed} unharmed");
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

#[test]
fn file_that_holds_no_version_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    drop(FjallRows::open(&dir, small()).unwrap());
    let version = dir.join("version");
    fs::write(&version, b"none").unwrap();
    let error = FjallRows::open(&dir, small()).unwrap_err().to_string();
    assert!(error.contains(version.to_str().unwrap()), "{error}");
}

/// Returns true if a manifest is the one that `current` names; fjall does not remove all others. `None` for other files.
fn is_manifest(file: &Path) -> Option<bool> {
    let number: u64 = file.file_name()?.to_str()?.strip_prefix('v')?.parse().ok()?;
    let current = fs::read(file.with_file_name("current")).unwrap();
    Some(current.starts_with(&number.to_le_bytes()))
}

/// Cuts the only journal in two after some batch, as if fjall had begun a second one there and not yet made tables of the first.
async fn build_with_two_journals(root: &Path) -> PathBuf {
    let dir = root.join("two");
    let options = super::FjallOptions {
        memtable_bytes: 64 << 20,
        ..small()
    };
    let rows = FjallRows::open(&dir, options).unwrap();
    let history = History::new(SEED);
    let mut border = 0;
    for batch in 1..=BATCHES {
        history.apply(&rows, batch).await.unwrap();
        if batch == BATCHES / 2 {
            rows.sync().await.unwrap();
            border = used(&dir.join("0.jnl"));
        }
    }
    drop(rows);
    let bytes = fs::read(dir.join("0.jnl")).unwrap();
    fs::write(dir.join("0.jnl"), &bytes[..border]).unwrap();
    fs::write(dir.join("1.jnl"), &bytes[border..]).unwrap();
    dir
}

fn used(file: &Path) -> usize {
    used_of(&fs::read(file).unwrap())
}

/// Bytes before the zeros at the end. The last byte of a journal's last batch is a 3.
fn used_of(bytes: &[u8]) -> usize {
    let zeros: &[u8] = &[0; 1 << 16];
    let mut end = bytes.len();
    while end >= zeros.len() && bytes[end - zeros.len()..end] == *zeros {
        end -= zeros.len();
    }
    bytes[..end]
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1)
}

/// fjall alone would leave batches out here and show later ones.
#[tokio::test]
async fn a_damaged_or_missing_older_journal_is_told_before_anything_is_changed() {
    let root = tempfile::tempdir().unwrap();
    let built = build_with_two_journals(root.path()).await;
    let models = models().await;
    let scratch = root.path().join("scratch");
    copy(&built, &scratch);
    assert!(matches!(look(&scratch, &models).await, Outcome::Batch(BATCHES)));
    fs::remove_dir_all(&scratch).unwrap();
    let old = fs::read(built.join("0.jnl")).unwrap();
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    for round in 0..60 {
        copy(&built, &scratch);
        let mut bytes = old.clone();
        match round {
            0 => fs::remove_file(scratch.join("0.jnl")).unwrap(),
            1..20 => bytes.truncate(random.random_range(1..old.len())),
            20 => bytes.clear(),
            _ => bytes[random.random_range(0..old.len())] ^= 1 << random.random_range(0..8),
        }
        if round > 0 {
            fs::write(scratch.join("0.jnl"), &bytes).unwrap();
        }
        let before: Vec<Vec<u8>> = files(&scratch).iter().map(|file| fs::read(file).unwrap()).collect();
        match look(&scratch, &models).await {
            Outcome::Refused(reason) => {
                assert!(reason.contains(scratch.to_str().unwrap()), "{reason:?} names no place")
            }
            Outcome::Batch(batch) => panic!("round {round}: batch {batch} came back"),
        }
        let after: Vec<Vec<u8>> = files(&scratch).iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(
            round == 0 || round == 20 || before == after,
            "round {round}: files were changed"
        );
        fs::remove_dir_all(&scratch).unwrap();
    }
}

/// The sequence number of a batch is in no checksum, and fjall skips a batch whose number is low.
#[tokio::test]
async fn a_batch_with_another_sequence_number_is_told() {
    let models = models().await;
    let (root, dir, bytes, first) = partly_in_tables().await;
    let scratch = root.path().join("scratch");
    for sequence in [0u64, 1, 1 << 50, u64::MAX] {
        copy(&dir, &scratch);
        // As if the journal began there, and the batch had another number.
        let mut journal = bytes[first..].to_vec();
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

/// A directory with some batches in tables and some in the journal alone, that journal, and where the first of these begins in
/// it. fjall's own thread decides which batches get into tables, and when: it is tried until there are both.
async fn partly_in_tables() -> (tempfile::TempDir, PathBuf, Vec<u8>, usize) {
    for _ in 0..20 {
        let root = tempfile::tempdir().unwrap();
        let dir = build(root.path(), &[BATCHES / 2, BATCHES]).await.remove(1);
        let journal = fs::read(dir.join("0.jnl")).unwrap();
        if let Some(first) = first_unflushed(&dir, &journal).await {
            return (root, dir, journal, first);
        }
    }
    panic!("fjall never wrote a part of the batches");
}

/// Returns the offset of the first batch that is in no table; `None` if no batch is in a table, or all are.
async fn first_unflushed(dir: &Path, journal: &[u8]) -> Option<usize> {
    let scratch = dir.with_extension("tables");
    copy(dir, &scratch);
    fs::write(scratch.join("0.jnl"), []).unwrap();
    let rows = FjallRows::open(&scratch, small()).unwrap();
    let in_tables = History::batch_of(rows.fence().await.unwrap().as_ref());
    if !(1..BATCHES).contains(&in_tables) {
        return None;
    }
    let mut fence = vec![0u8];
    fence.extend_from_slice(&in_tables.to_be_bytes());
    let trailer = b"FJL\x03";
    let at = journal.windows(9).position(|window| window == fence)?;
    Some(at + journal[at..].windows(4).position(|window| window == trailer)? + 4)
}

/// After a power failure any page that was not synced may be missing, the first as well as the last.
#[tokio::test]
async fn holes_in_the_newest_journal_are_a_torn_tail() {
    let root = tempfile::tempdir().unwrap();
    let built = build_with_two_journals(root.path()).await;
    let models = models().await;
    let length = used(&built.join("1.jnl"));
    let mut random = rand::rngs::SmallRng::seed_from_u64(SEED);
    for _ in 0..30 {
        let scratch = root.path().join("scratch");
        copy(&built, &scratch);
        let mut bytes = fs::read(scratch.join("1.jnl")).unwrap();
        let from = random.random_range(0..length);
        // Small enough to be within one value, too.
        let hole = random.random_range(1..4096);
        bytes[from..(from + hole).min(length)].fill(0);
        fs::write(scratch.join("1.jnl"), bytes).unwrap();
        match look(&scratch, &models).await {
            Outcome::Batch(batch) => assert!((BATCHES / 2..BATCHES).contains(&batch), "batch {batch} came back"),
            Outcome::Refused(reason) => panic!("{reason}"),
        }
        // The cut is final: the next batch is written right after it.
        let rows = FjallRows::open(&scratch, small()).unwrap();
        let batch = History::batch_of(rows.fence().await.unwrap().as_ref());
        History::new(SEED).apply(&rows, batch + 1).await.unwrap();
        drop(rows);
        assert!(matches!(look(&scratch, &models).await, Outcome::Batch(found) if found == batch + 1));
        fs::remove_dir_all(&scratch).unwrap();
    }
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
            copy_sparsely(&file, &scratch.join(name));
            look(&scratch, &models).await;
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
}

#[tokio::test]
async fn cut_tail_of_the_newest_journal_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let dir = build(root.path(), &[5]).await.remove(0);
    let journal = dir.join("0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let at = bytes.windows(11).position(|window| window == b"once/000003").unwrap();
    bytes[at] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let rows = FjallRows::open(&dir, small()).unwrap();
    assert_eq!(History::batch_of(rows.fence().await.unwrap().as_ref()), 2);
    assert!(rows.cut().is_some());
    drop(rows);
    let kept = fs::read(dir.join("0.jnl.cut")).unwrap();
    assert!(bytes.ends_with(&kept) && kept.windows(11).any(|window| window == b"once/000005"));
    FjallRows::open(&dir, small()).unwrap();
}

#[tokio::test]
async fn stray_files_are_named_and_temporary_ones_are_swept() {
    let root = tempfile::tempdir().unwrap();
    let dir = build(root.path(), &[BATCHES]).await.remove(0);
    let keyspace = dir.join("keyspaces/1");
    fs::write(keyspace.join(".tmpAb12Cd"), "half").unwrap();
    fs::write(keyspace.join("tables/.tmpAb12Cd"), "half").unwrap();
    FjallRows::open(&dir, small()).unwrap();
    assert!(!keyspace.join(".tmpAb12Cd").exists());
    assert!(!keyspace.join("tables/.tmpAb12Cd").exists());
    let stray = keyspace.join("tables/12.bak");
    fs::write(&stray, "mine").unwrap();
    let refused = FjallRows::open(&dir, small()).unwrap_err().to_string();
    assert!(refused.contains(stray.to_str().unwrap()), "{refused}");
    fs::remove_file(stray).unwrap();
    FjallRows::open(&dir, small()).unwrap();
}

#[tokio::test]
async fn a_cut_that_the_log_does_not_cover_leaves_the_journal_as_it_was() {
    let (_root, dir, journal, first) = partly_in_tables().await;
    // With a flaw at byte 0 the cut leaves no batch: then only tables have the fence.
    for at in [0, first] {
        let scratch = dir.with_extension(format!("at-{at}"));
        copy(&dir, &scratch);
        let mut damaged = journal.clone();
        damaged[at] ^= 0x40;
        fs::write(scratch.join("0.jnl"), &damaged).unwrap();
        let refused = FjallRows::open_for(&scratch, small(), |fence| {
            let batch = History::batch_of(fence.as_ref());
            anyhow::bail!("the log begins behind batch {batch}")
        });
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, RowsOpenError::Uncovered { .. }), "{refused}");
        assert!(!refused.to_string().contains("batch 0"), "{refused}");
        assert!(
            fs::read(scratch.join("0.jnl")).unwrap() == damaged,
            "the journal was changed"
        );
        assert!(!scratch.join("0.jnl.cut").exists());
        let rows = FjallRows::open_for(&scratch, small(), |_| Ok(())).unwrap();
        assert!(rows.cut().is_some());
    }
}
