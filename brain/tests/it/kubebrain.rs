//! The program against the model.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::program::{Kubebrain, refusal};
use crate::script::Run;
use crate::wire::{Request, Target as _, pb};
use crate::{number, watch};

/// Random requests, killed without a word every so often: every answer, and every event that a watch replays, is the model's.
#[tokio::test]
async fn answers_and_events_are_the_models_also_after_kills() {
    let (seed, rounds) = (number("SEED", 11), number("ROUNDS", 6));
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(seed);
    for _ in 0..rounds {
        let mut server = Kubebrain::start(dir.path()).await;
        watch::sees_what_happened(&mut server.client, &run.model).await;
        run.go(&mut server.client, 500).await;
        watch::sees_what_happened(&mut server.client, &run.model).await;
        server.kill().await;
    }
    run.was_worth_it();
}

/// Killed while a request is in flight: the write is found completely or not at all, and it is found if it was acknowledged.
#[tokio::test]
async fn a_write_that_is_killed_happened_or_did_not() {
    let (seed, rounds) = (number("SEED", 12), number("ROUNDS", 12));
    let dir = tempfile::tempdir().unwrap();
    let (mut run, mut rng) = (Run::new(seed), StdRng::seed_from_u64(seed));
    let (mut acknowledged, mut done, mut undone) = (0, 0, 0);
    let mut server = Kubebrain::start(dir.path()).await;
    for round in 0..rounds {
        run.go(&mut server.client, 20).await;
        let request = run.next_write();
        // Every third before it can have arrived.
        let after = (round % 3 > 0).then(|| Duration::from_micros(rng.random_range(0..2_500)));
        let answer = server.kill_during(request.clone(), after).await;
        server = Kubebrain::start(dir.path()).await;
        acknowledged += usize::from(answer.is_some());
        let there = run.settle(&mut server.client, request, answer).await;
        (done, undone) = (done + usize::from(there), undone + usize::from(!there));
        watch::sees_what_happened(&mut server.client, &run.model).await;
    }
    eprintln!("{acknowledged} acknowledged, {done} done, {undone} undone");
    assert!(acknowledged <= done);
    assert!(undone > 0, "no request was killed early enough");
    server.kill().await;
}

/// Starts it on `dir`, puts `keys` keys, and stops it in order.
async fn put(dir: &Path, keys: usize) {
    let mut server = Kubebrain::start(dir).await;
    for key in 0..keys {
        let put = pb::PutRequest {
            key: format!("key/{key}").into(),
            value: vec![b'v'; 100].into(),
            ..Default::default()
        };
        server.client.call(Request::Put(put)).await.unwrap();
    }
    server.stop().await;
}

/// All files and directories below `dir`, `dir` included.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        if path.is_dir() {
            found.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        next += 1;
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for path in tree(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        if path.is_dir() {
            fs::create_dir_all(target).unwrap();
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

#[tokio::test]
async fn stored_files_are_readable_by_their_owner_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    put(&dir, 1).await;
    for path in tree(&dir) {
        let metadata = fs::metadata(&path).unwrap();
        let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
        let mode = metadata.permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{} has mode {mode:o}", path.display());
    }
}

#[tokio::test]
async fn a_log_that_the_rows_do_not_come_from_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let (log, kept) = (dir.join("log"), root.path().join("kept"));
    put(&dir, 3).await;
    copy(&log, &kept);
    put(&dir, 3).await;
    fs::rename(&log, root.path().join("newest")).unwrap();

    let missing = refusal(&dir).await;
    assert!(
        missing.contains("the log is missing") && missing.contains("restore"),
        "{missing}"
    );
    assert!(!log.exists(), "a new log was begun");

    copy(&kept, &log);
    let before = tree(&log);
    let older = refusal(&dir).await;
    assert!(
        older.contains("ends before slot") && older.contains("restore"),
        "{older}"
    );
    assert_eq!(tree(&log), before);

    fs::remove_dir_all(&log).unwrap();
    let other = root.path().join("other");
    put(&other, 9).await;
    copy(&other.join("log"), &log);
    let foreign = refusal(&dir).await;
    assert!(
        foreign.contains("another log") && foreign.contains("restore"),
        "{foreign}"
    );

    fs::remove_dir_all(&log).unwrap();
    fs::rename(root.path().join("newest"), &log).unwrap();
    put(&dir, 1).await;
}

#[tokio::test]
async fn a_store_without_its_rows_or_its_log_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (dir, kept) = (root.path().join("data"), root.path().join("kept"));
    put(&dir, 3).await;
    copy(&dir, &kept);
    for missing in [&["rows"][..], &["log"], &["log", "rows"]] {
        for part in missing {
            fs::remove_dir_all(dir.join(part)).unwrap();
        }
        let refused = refusal(&dir).await;
        assert!(
            refused.contains(missing[0]) && refused.contains("restore the whole data directory"),
            "{missing:?}: {refused}"
        );
        for part in missing {
            assert!(!dir.join(part).exists(), "{part} was begun anew");
        }
        fs::remove_dir_all(&dir).unwrap();
        copy(&kept, &dir);
    }
    put(&dir, 1).await;
}

#[tokio::test]
async fn a_young_store_that_was_killed_knows_its_log() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let mut server = Kubebrain::start(&dir).await;
    for key in ["a", "b", "c"] {
        let put = pb::PutRequest {
            key: key.into(),
            ..Default::default()
        };
        server.client.call(Request::Put(put)).await.unwrap();
    }
    server.kill().await;
    fs::remove_dir_all(dir.join("log")).unwrap();
    let refused = refusal(&dir).await;
    assert!(
        refused.contains("the log is missing") || refused.contains("log is not there"),
        "{refused}"
    );
}
