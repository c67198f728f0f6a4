//! Opening directories in every state that a stop, or a user, can leave them in.

use super::*;

fn refusal(dir: &Path) -> FileLogOpenError {
    FileLog::open(dir, SMALL_SEGMENTS).expect_err("this log must not open")
}

/// A log of a few segments, closed; and what is in it.
async fn written() -> (tempfile::TempDir, Vec<(u64, Bytes)>) {
    let dir = scratch();
    let written = append_range(&open_small(dir.path()), 1..=30, 400).await;
    assert!(segments(dir.path()).len() >= 4);
    (dir, written)
}

#[tokio::test]
async fn an_idle_log_is_small_and_opening_it_again_adds_nothing() {
    let dir = scratch();
    let mut sizes = Vec::new();
    for _ in 0..3 {
        sizes.push(FileLog::open(dir.path(), FileLogOptions::default()).unwrap().size());
    }
    assert_eq!(sizes, [(4 << 20) + control::CONTROL_BYTES; 3]);
    let log = FileLog::open(dir.path(), FileLogOptions::default()).unwrap();
    append_range(&log, 1..=1, 100).await;
    drop(log);
    assert_eq!(
        FileLog::open(dir.path(), FileLogOptions::default()).unwrap().size(),
        sizes[0]
    );
}

#[tokio::test]
async fn a_missing_segment_is_named() {
    let (dir, _) = written().await;
    for missing in segments(dir.path()) {
        let copied = copy(dir.path());
        let file = copied.path().join(missing.file_name().unwrap());
        fs::remove_file(&file).unwrap();
        match refusal(copied.path()) {
            FileLogOpenError::Missing { file: named } => assert_eq!(named, file),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_missing_or_foreign_control_file_is_named() {
    let (dir, _) = written().await;
    let control = dir.path().join("control");
    fs::remove_file(&control).unwrap();
    assert!(matches!(refusal(dir.path()), FileLogOpenError::Missing { file } if file == control));
    let (other, _) = written().await;
    fs::copy(other.path().join("control"), &control).unwrap();
    assert!(matches!(refusal(dir.path()), FileLogOpenError::Foreign { .. }));
}

#[tokio::test]
async fn an_older_control_file_is_refused() {
    let dir = scratch();
    drop(open_small(dir.path()));
    let control = dir.path().join("control");
    let old = fs::read(&control).unwrap();
    append_range(&open_small(dir.path()), 1..=30, 400).await;
    fs::write(&control, old).unwrap();
    let message = refusal(dir.path()).to_string();
    assert!(message.contains("its last segment is 1"), "{message}");
}

#[tokio::test]
async fn an_end_that_went_back_is_refused() {
    let dir = scratch();
    let log = open_small(dir.path());
    append_range(&log, 1..=2, 100).await;
    drop(log);
    let file = segments(dir.path()).remove(0);
    let old = fs::read(&file).unwrap();
    let log = open_small(dir.path());
    append_range(&log, 3..=4, 100).await;
    log.raise_watermark(Slot(3)).await.unwrap();
    drop(log);
    fs::write(&file, old).unwrap();
    let message = refusal(dir.path()).to_string();
    assert!(message.contains("was synced up to offset"), "{message}");
}

#[tokio::test]
async fn files_of_others_and_newer_formats_are_refused() {
    let foreign = scratch();
    fs::write(foreign.path().join("photo.jpg"), "x").unwrap();
    assert!(matches!(refusal(foreign.path()), FileLogOpenError::NotALog { .. }));
    assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1, "nothing was changed");

    let (dir, _) = written().await;
    for file in [dir.path().join("control"), segments(dir.path()).remove(1)] {
        let copied = copy(dir.path());
        let file = copied.path().join(file.file_name().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        bytes[8] = 2;
        let crc = crc32c::crc32c(&bytes[..4092]);
        bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        match refusal(copied.path()) {
            FileLogOpenError::Newer {
                file: named,
                version: 2,
            } => assert_eq!(named, file),
            other => panic!("{other}"),
        }
    }
    let (one, two) = (segments(dir.path()).remove(0), segments(dir.path()).remove(1));
    fs::copy(one, two).unwrap();
    let message = refusal(dir.path()).to_string();
    assert!(message.contains("says that it is segment 1"), "{message}");
}

#[tokio::test]
async fn leftovers_of_an_interrupted_step_are_removed() {
    let (dir, written) = written().await;
    let log = open_small(dir.path());
    let (last, id) = (log.inner.shared.state().last, log.inner.shared.id);
    drop(log);
    // A segment that was made, but not yet named; one and a control file that were not finished.
    let disk = Disk::default();
    drop(segment::Segment::create(dir.path(), &disk, id, last + 1, 8192, |_| Vec::new()).unwrap());
    fs::write(dir.path().join(format!("{}.new", segment::name(last + 2))), "half").unwrap();
    fs::write(dir.path().join("control.new"), "half").unwrap();
    let log = open_small(dir.path());
    assert_eq!(read_all(&log, 0).await, written);
    assert_eq!(segments(dir.path()).len() as u64, last);
    // A destroyed segment whose file is still there.
    let oldest = segments(dir.path()).remove(0);
    let bytes = fs::read(&oldest).unwrap();
    log.raise_watermark(Slot(20)).await.unwrap();
    log.destroy_below_watermark().await.unwrap();
    drop(log);
    assert!(!oldest.exists());
    fs::write(&oldest, bytes).unwrap();
    assert_eq!(read_all(&open_small(dir.path()), 20).await, written[19..]);
    assert!(!oldest.exists());
}

#[tokio::test]
async fn a_torn_control_page_is_outlived_and_two_are_not() {
    let dir = scratch();
    open_small(dir.path()).raise_watermark(Slot(7)).await.unwrap();
    let control = dir.path().join("control");
    let good = fs::read(&control).unwrap();
    for page in [0, 4096] {
        let mut bytes = good.clone();
        bytes[page + 40] ^= 1;
        fs::write(&control, &bytes).unwrap();
        assert_eq!(open_small(dir.path()).watermark().await.unwrap(), Slot(7));
    }
    let mut bytes = good;
    bytes[40] ^= 1;
    bytes[4096 + 40] ^= 1;
    fs::write(&control, &bytes).unwrap();
    assert!(matches!(refusal(dir.path()), FileLogOpenError::Damaged { .. }));
}

/// The newest segment with frames in it.
fn last_written(dir: &Path) -> PathBuf {
    let has_frames = |file: &PathBuf| fs::read(file).unwrap()[4096..].iter().any(|byte| *byte != 0);
    segments(dir).into_iter().rfind(has_frames).unwrap()
}

#[tokio::test]
async fn an_unmarked_last_batch_is_written_anew_before_it_is_shown() {
    let dir = scratch();
    let log = open_small(dir.path());
    let written = append_range(&log, 1..=3, 100).await;
    drop(log);
    for restart in 0..5 {
        let file = last_written(dir.path());
        let mut bytes = fs::read(&file).unwrap();
        // Without its mark the last batch is in doubt.
        let mark = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 + 8 - 32;
        bytes[mark..mark + 32].fill(0);
        fs::write(&file, &bytes).unwrap();
        let (stamp, count) = (bytes[40..48].to_vec(), segments(dir.path()).len());
        assert_eq!(read_all(&open_small(dir.path()), 0).await, written, "restart {restart}");
        let newest = segments(dir.path()).pop().unwrap();
        assert_ne!(
            fs::read(newest).unwrap()[40..48],
            stamp,
            "the batch stands in a new file"
        );
        assert!(
            segments(dir.path()).len() <= 2,
            "{count} segments: doubtful ends do not pile up"
        );
    }
}

#[tokio::test]
async fn log_that_nothing_was_appended_to_opens_for_rows_without_anything_of_it() {
    let dir = scratch();
    let log = open_small(dir.path());
    let id = log.inner.shared.id;
    drop(log);
    let open = |last| {
        let origin = engine::log::LogOrigin { id, last: Slot(last) };
        FileLog::open_for(dir.path(), SMALL_SEGMENTS, LogObserver::new(|_| {}), Some(origin))
    };
    drop(open(0).unwrap());
    let error = open(1).unwrap_err().to_string();
    assert!(error.contains("ends before slot 1"), "{error}");
}
