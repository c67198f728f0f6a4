//! Data directories that a brain must not work in.

use super::disk::run;
use super::*;
use std::process::Command;

#[test]
fn a_directory_in_use_is_refused_and_its_user_goes_on() {
    let _deadline = deadline();
    let mut user = brain(&[]);
    let attempt = Attempt::new();
    let flag = format!("--data-dir={}", user.dir().display());
    attempt.refused(&[&flag], &["in use", user.dir().to_str().unwrap()]);
    assert_eq!(user.ended().unwrap(), None);
    user.stop().unwrap();
}

#[test]
fn what_is_no_brains_directory_is_left_alone() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    fs::create_dir(attempt.data()).unwrap();
    fs::write(attempt.data().join("diary"), "dear diary").unwrap();
    attempt.refused(&[], &[attempt.data().to_str().unwrap()]);
    let file = attempt.home.path().join("file");
    fs::write(&file, "a file").unwrap();
    attempt.refused(&[&format!("--data-dir={}", file.display())], &[file.to_str().unwrap()]);
    // where nothing can be made: not even root makes directories in /proc
    attempt.refused(&["--data-dir=/proc/brain"], &["/proc/brain"]);
}

/// A directory that a brain has worked in and left.
fn used(attempt: &Attempt) {
    let server = Server::start_in(&Program::kubebrain().unwrap(), &attempt.data(), &[]).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut kv = kv(&server).await;
        for n in 0..200 {
            kv.put(put(format!("key{n}"), vec![b'v'; 1_000])).await.unwrap();
        }
    });
    server.stop().unwrap();
}

/// Checks that the directory still works, and that all keys exist.
fn is_whole(attempt: &Attempt) {
    let server = Server::start_in(&Program::kubebrain().unwrap(), &attempt.data(), &[]).unwrap();
    let count = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let all = pb::RangeRequest {
            key: b"key".to_vec().into(),
            range_end: b"kez".to_vec().into(),
            ..get("")
        };
        kv(&server).await.range(all).await.unwrap().into_inner().count
    });
    assert_eq!(count, 200);
    server.stop().unwrap();
}

/// Starts the brain while a file is other than it was left: it must be named.
fn refused_with(attempt: &Attempt, path: &Path, change: impl FnOnce(&mut Vec<u8>), words: &[&str]) {
    let bytes = fs::read(path).unwrap();
    let mut changed = bytes.clone();
    change(&mut changed);
    assert_ne!(bytes, changed);
    fs::write(path, changed).unwrap();
    attempt.refused(&[], words);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_directory_of_a_newer_version_is_left_alone() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    used(&attempt);
    let newer = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let format = text.lines().find(|line| line.starts_with("format ")).unwrap();
        *bytes = text.replacen(format, "format 999", 1).into_bytes();
    };
    let data = attempt.data();
    let words = ["format 999", "newer", data.to_str().unwrap()];
    refused_with(&attempt, &data.join("IDENTITY"), newer, &words);
    is_whole(&attempt);
}

/// A directory that cannot be written, not even by root, until this is dropped.
struct ReadOnly<'a>(&'a Path);

impl<'a> ReadOnly<'a> {
    fn mount(dir: &'a Path) -> Self {
        run(Command::new("mount").arg("--bind").args([dir, dir]));
        let mounted = Self(dir);
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(dir));
        mounted
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0));
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_left_alone() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    used(&attempt);
    let data = attempt.data();
    let read_only = ReadOnly::mount(&data);
    attempt.refused(&[], &["not writable", data.to_str().unwrap()]);
    drop(read_only);
    is_whole(&attempt);
}

#[test]
fn damage_in_every_part_of_a_directory_is_named_and_left_alone() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    used(&attempt);
    let data = attempt.data();
    let flip = |bytes: &mut Vec<u8>| {
        // in the middle of the written bytes, with more after it
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[written / 2] ^= 1;
    };
    let segment = largest(&data.join("log"), "segment");
    let manifest = only_manifest(&data.join("rows/tree"));
    for path in [data.join("IDENTITY"), segment, manifest] {
        refused_with(&attempt, &path, flip, &[path.file_name().unwrap().to_str().unwrap()]);
    }
    // a file is gone
    let (current, aside) = (data.join("rows/tree/current"), attempt.home.path().join("aside"));
    fs::rename(&current, &aside).unwrap();
    attempt.refused(&[], &["current"]);
    fs::rename(&aside, &current).unwrap();
    is_whole(&attempt);
}

/// The manifest in use. Removes the others, as the first start would.
fn only_manifest(tree: &Path) -> PathBuf {
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix('v')?.parse::<u64>().ok()
    };
    let files = fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().path());
    let mut manifests: Vec<PathBuf> = files.filter(|path| number(path).is_some()).collect();
    manifests.sort_by_key(number);
    let newest = manifests.pop().unwrap();
    for older in manifests {
        fs::remove_file(older).unwrap();
    }
    newest
}

/// The file with most written in it, of those whose name ends with this.
fn largest(dir: &Path, end: &str) -> PathBuf {
    let written = |path: &PathBuf| fs::read(path).unwrap().iter().filter(|byte| **byte != 0).count();
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        path.is_file() && name.ends_with(end)
    };
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(named).max_by_key(written).expect("such a file")
}
