//! Index files are believed where they are right, and nowhere else.

use super::*;
use engine::log::LogOrigin;

const WRITTEN_SLOTS: u64 = 60;

/// Opens a log whose records up to `last` are all in rows.
fn open_behind_rows(dir: &Path, id: LogId, last: u64) -> Result<FileLog, FileLogOpenError> {
    let last = Slot(last);
    FileLog::open_for(
        dir,
        SMALL_SEGMENTS,
        LogObserver::new(|_| {}),
        Some(LogOrigin { id, last }),
    )
}

async fn written() -> (tempfile::TempDir, LogId, Vec<(u64, Bytes)>) {
    let dir = scratch();
    let log = open_small(dir.path());
    let (id, written) = (log.inner.shared.id, append_range(&log, 1..=WRITTEN_SLOTS, 400).await);
    drop(log);
    (dir, id, written)
}

fn index_of(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

/// Flips a bit in the third record of a segment.
fn damage(segment: &Path) {
    let mut bytes = fs::read(segment).unwrap();
    bytes[4096 + 32 + 2 * 432 + 100] ^= 1;
    fs::write(segment, bytes).unwrap();
}

#[tokio::test]
async fn segments_that_rows_hold_are_not_read_when_the_log_is_opened() {
    let (dir, id, written) = written().await;
    let first = segments(dir.path()).remove(0);
    assert!(index_of(&first).exists());
    damage(&first);
    let log = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap();
    assert_eq!(read_all(&log, 20).await, written[19..]);
    assert_eq!(log.read(Slot(2), 1).await.unwrap(), [(Slot(2), written[1].1.clone())]);
    let error = log.read(Slot(3), 1).await.unwrap_err();
    assert!(
        matches!(&error, LogError::Corrupt(text) if text.contains("00001.segment")),
        "{error}"
    );
    drop(log);
    // Rows hold a part of it: the rest may be needed.
    let error = open_behind_rows(dir.path(), id, 3).unwrap_err().to_string();
    assert!(error.contains("00001.segment"), "{error}");
    let error = FileLog::open(dir.path(), SMALL_SEGMENTS).unwrap_err().to_string();
    assert!(error.contains("00001.segment"), "{error}");
}

#[tokio::test]
async fn damaged_index_file_is_not_believed() {
    let (dir, id, written) = written().await;
    let (first, second) = (segments(dir.path()).remove(0), segments(dir.path()).remove(1));
    let right = fs::read(index_of(&first)).unwrap();
    let flipped = (0..right.len()).step_by(13).map(|at| {
        let mut bytes = right.clone();
        bytes[at] ^= 4;
        bytes
    });
    let cut = [0, 1, 4095, 4096, 4097, right.len() - 16, right.len() - 1].map(|len| right[..len].to_vec());
    let longer = [&right[..], &[0; 16]].concat();
    let of_another = fs::read(index_of(&second)).unwrap();
    let wrong: Vec<_> = flipped.chain(cut).chain([longer, of_another]).collect();
    for bytes in &wrong {
        fs::write(index_of(&first), bytes).unwrap();
        let log = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap();
        assert_eq!(read_all(&log, 0).await, written);
    }
    damage(&first);
    for bytes in &wrong {
        fs::write(index_of(&first), bytes).unwrap();
        let error = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap_err().to_string();
        assert!(error.contains("00001.segment"), "{error}");
    }
    fs::remove_file(index_of(&first)).unwrap();
    assert!(open_behind_rows(dir.path(), id, WRITTEN_SLOTS).is_err());
}

#[tokio::test]
async fn index_files_go_with_their_segments() {
    let (dir, id, written) = written().await;
    let first = segments(dir.path()).remove(0);
    let old = fs::read(index_of(&first)).unwrap();
    let log = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap();
    log.raise_watermark(Slot(40)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    assert!(!first.exists() && !index_of(&first).exists());
    drop(log);
    // One whose removal was interrupted.
    fs::write(index_of(&first), old).unwrap();
    let log = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap();
    assert_eq!(read_all(&log, 40).await, written[39..]);
    assert!(!index_of(&first).exists());
}

#[tokio::test]
async fn index_files_are_written_for_segments_that_had_none() {
    let (dir, id, mut written) = written().await;
    // Those that are full.
    let mut files = segments(dir.path());
    files.truncate(5);
    for file in &files {
        fs::remove_file(index_of(file)).unwrap();
    }
    let log = open_behind_rows(dir.path(), id, WRITTEN_SLOTS).unwrap();
    log.shrink().await.unwrap();
    written.extend(append_range(&log, WRITTEN_SLOTS + 1..=2 * WRITTEN_SLOTS, 400).await);
    drop(log);
    for file in &files {
        assert!(index_of(file).exists(), "{}", file.display());
        damage(file);
    }
    let log = open_behind_rows(dir.path(), id, 2 * WRITTEN_SLOTS).unwrap();
    let from = WRITTEN_SLOTS + 1;
    assert_eq!(read_all(&log, from).await, written[WRITTEN_SLOTS as usize..]);
}
