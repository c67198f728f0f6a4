use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;

use super::*;
use engine::log::laws::{read_all, record};

mod crash;
mod damage;
mod laws;
mod opening;
pub(crate) mod power;
mod property;
mod segment_index;
mod space;

/// Segments that a few records fill.
const SMALL_SEGMENTS: FileLogOptions = FileLogOptions {
    first_segment_bytes: 8 << 10,
    segment_bytes: 8 << 10,
    unsafe_no_fsync: false,
};

/// A directory in memory where there is one: these tests sync thousands of times.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

fn open_small(dir: &Path) -> FileLog {
    FileLog::open(dir, SMALL_SEGMENTS).unwrap()
}

async fn append_range(log: &FileLog, slots: std::ops::RangeInclusive<u64>, len: usize) -> Vec<(u64, Bytes)> {
    let mut written = Vec::new();
    for slot in slots {
        let record = record(slot, 0, len);
        log.append(Slot(slot), record.clone()).await.unwrap();
        written.push((slot, record));
    }
    written
}

/// The segment files of `dir`, oldest first.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
        .collect();
    found.sort();
    found
}

/// A copy of `from` in a directory of its own.
fn copy(from: &Path) -> tempfile::TempDir {
    let to = scratch();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    to
}

#[tokio::test]
async fn appends_that_wait_together_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), FileLogOptions::default(), disk.clone(), None).unwrap();
    let before = disk.faults.syncs.load(SeqCst);
    let appends = (1..=500).map(|slot| log.append(Slot(slot), record(slot, 0, 100)));
    for answer in futures::future::join_all(appends).await {
        answer.unwrap();
    }
    let syncs = disk.faults.syncs.load(SeqCst) - before;
    assert!((1..=50).contains(&syncs), "{syncs} syncs for 500 appends");
    assert_eq!(read_all(&log, 0).await.len(), 500);
}

#[tokio::test]
async fn an_append_whose_caller_leaves_is_whole() {
    let dir = scratch();
    let log = open_small(dir.path());
    for slot in 1..=50 {
        let mut append = Box::pin(log.append(Slot(slot), record(slot, 0, 300)));
        if let std::task::Poll::Ready(answer) = futures::poll!(append.as_mut()) {
            answer.unwrap();
        }
        drop(append);
    }
    append_range(&log, 51..=51, 300).await;
    drop(log);
    let found = read_all(&open_small(dir.path()), 0).await;
    let expected: Vec<_> = (1..=51).map(|slot| (slot, record(slot, 0, 300))).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn destroyed_segments_give_their_bytes_back() {
    let dir = scratch();
    let log = open_small(dir.path());
    append_range(&log, 1..=200, 500).await;
    let full = log.size();
    assert!(full > 200 * 500);
    log.raise_watermark(Slot(201)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    assert!(
        log.size() <= 3 * 8192 + control::CONTROL_BYTES,
        "{} of {full} bytes are left",
        log.size()
    );
    drop(log);
    let on_disk: u64 = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(open_small(dir.path()).size(), on_disk);
}

#[tokio::test]
async fn a_failed_write_or_sync_ends_the_service() {
    for fail in [
        |disk: &Disk| disk.faults.failed_write.store(true, SeqCst),
        |disk: &Disk| {
            disk.faults.failed_sync.store(true, SeqCst);
        },
    ] {
        let dir = scratch();
        let disk = Disk::default();
        let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
        let written = append_range(&log, 1..=3, 100).await;
        fail(&disk);
        for slot in [4, 4, 5] {
            let answer = log.append(Slot(slot), record(slot, 0, 100)).await;
            assert!(matches!(answer, Err(AppendError::Failed(_))), "slot {slot}: {answer:?}");
        }
        assert!(log.read(Slot(0), usize::MAX).await.is_err());
        assert!(log.raise_watermark(Slot(2)).await.is_err());
        assert!(log.destroy_below_watermark().await.is_err());
        drop(log);
        let found = read_all(&open_small(dir.path()), 0).await;
        assert_eq!(found[..3], written, "what was answered is there");
    }
}

#[tokio::test]
async fn a_failed_sync_of_the_control_file_ends_the_service() {
    let dir = scratch();
    let disk = Disk::default();
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
    append_range(&log, 1..=3, 100).await;
    disk.faults.failed_sync.store(true, SeqCst);
    assert!(log.raise_watermark(Slot(2)).await.is_err());
    let answer = log.append(Slot(4), record(4, 0, 100)).await;
    assert!(matches!(answer, Err(AppendError::Failed(_))), "{answer:?}");
}

#[tokio::test]
async fn a_record_that_rots_is_named_when_it_is_read() {
    let dir = scratch();
    let log = open_small(dir.path());
    append_range(&log, 1..=3, 100).await;
    let file = segments(dir.path()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let second = segment::FIRST_FRAME_OFFSET as usize + 32 + 136 + 32;
    bytes[second + 50] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(log.read(Slot(1), 1).await.unwrap().len(), 1);
    let message = log.read(Slot(1), usize::MAX).await.unwrap_err().to_string();
    assert!(
        message.contains(&format!("{} at offset 4264", file.display())),
        "{message}"
    );
    let answer = log.append(Slot(2), record(2, 0, 100)).await;
    assert!(matches!(answer, Err(AppendError::Failed(_))), "{answer:?}");
}

#[tokio::test]
async fn without_preallocation_zeros_are_written() {
    let dir = scratch();
    let disk = Disk::default();
    disk.faults.no_fallocate.store(true, SeqCst);
    let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk, None).unwrap();
    let written = append_range(&log, 1..=40, 500).await;
    drop(log);
    assert_eq!(read_all(&open_small(dir.path()), 0).await, written);
}
