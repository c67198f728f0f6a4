//! A flipped bit and a cut at every byte: detected and named, or a torn tail. Never wrong data.

use super::*;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Outcome {
    /// Refused, with a message that names the file.
    Named,
    /// Opened with everything in it.
    Whole,
    /// Opened without the last batch.
    Cut,
}

/// Opens a copy of `dir` in which `change` was made to the segment `file`.
async fn open_changed(dir: &Path, file: &Path, written: &[(u64, Bytes)], change: impl FnOnce(&mut Vec<u8>)) -> Outcome {
    let copied = copy(dir);
    let file = copied.path().join(file.file_name().unwrap());
    let mut bytes = fs::read(&file).unwrap();
    change(&mut bytes);
    fs::write(&file, bytes).unwrap();
    let log = match FileLog::open(copied.path(), SMALL_SEGMENTS) {
        Ok(log) => log,
        Err(
            refusal @ (FileLogOpenError::Damaged { .. }
            | FileLogOpenError::Foreign { .. }
            | FileLogOpenError::Newer { .. }),
        ) => {
            let message = refusal.to_string();
            assert!(message.contains(&*file.to_string_lossy()), "{message}");
            return Outcome::Named;
        }
        Err(other) => panic!("{other}"),
    };
    let found = read_all(&log, 0).await;
    assert_eq!(found, written[..found.len()], "wrong data");
    // A log that opened once must open again, with the same records and room for more.
    log.append(Slot(1000), record(1000, 0, 50)).await.unwrap();
    drop(log);
    assert_eq!(read_all(&open_small(copied.path()), 0).await[..found.len()], found);
    if found.len() == written.len() {
        Outcome::Whole
    } else {
        Outcome::Cut
    }
}

/// Removes the mark after the last batch, as a power loss may.
fn unmark(file: &Path) -> usize {
    let mut bytes = fs::read(file).unwrap();
    let end = used(&bytes);
    bytes[end - 32..end].fill(0);
    fs::write(file, bytes).unwrap();
    end - 32
}

/// Returns the offset at which the frames of a segment end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() / 8 * 8 + 8
}

async fn one_segment() -> (tempfile::TempDir, PathBuf, Vec<(u64, Bytes)>) {
    segment_of(30).await
}

/// With four records of this length.
async fn segment_of(len: usize) -> (tempfile::TempDir, PathBuf, Vec<(u64, Bytes)>) {
    let dir = scratch();
    let written = append_range(&open_small(dir.path()), 1..=4, len).await;
    let file = segments(dir.path()).remove(0);
    (dir, file, written)
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_named_after_an_ordinary_stop() {
    for len in [30, COMPRESSED_LEN] {
        let (dir, file, written) = segment_of(len).await;
        let end = used(&fs::read(&file).unwrap());
        let mark = end - 32;
        for at in (0..4096).step_by(61).chain([4095]).chain(4096..end) {
            let outcome = open_changed(dir.path(), &file, &written, |bytes| bytes[at] ^= 1 << (at % 8)).await;
            let expected = if at < mark { Outcome::Named } else { Outcome::Whole };
            assert_eq!(outcome, expected, "byte {at} of records of {len} bytes");
        }
    }
}

/// Length of a record that is compressed to less than a tenth.
const COMPRESSED_LEN: usize = 2_000;

/// A frame whose checksum is right and whose content is no record: another program wrote it, or this one has a defect.
#[tokio::test]
async fn compressed_record_that_does_not_decompress_is_named() {
    let (dir, file, written) = segment_of(COMPRESSED_LEN).await;
    let mut bytes = fs::read(&file).unwrap();
    let stamp = frame::number(&bytes, 40);
    let first = 4096 + frame::FRAME_HEAD_BYTES as usize;
    let head = frame::FrameHead::parse(&bytes[first..], stamp).unwrap();
    assert_eq!(head.kind, frame::FrameKind::CompressedRecord);
    let payload = first + 32..first + 32 + head.len as usize;
    for at in [payload.start, payload.end - 1] {
        let mut damaged = bytes[payload.clone()].to_vec();
        damaged[at - payload.start] ^= 0xff;
        let mut frames = Vec::new();
        frame::encode(&mut frames, stamp, head.kind, head.slot, head.batch, &damaged);
        bytes[first..first + frames.len()].copy_from_slice(&frames);
        let copied = copy(dir.path());
        let file = copied.path().join(file.file_name().unwrap());
        fs::write(&file, &bytes).unwrap();
        let log = open_small(copied.path());
        let message = log.read(Slot(1), usize::MAX).await.unwrap_err().to_string();
        let expected = format!("{} at offset {first}", file.display());
        assert!(message.contains(&expected), "{message}");
        let answer = log.append(Slot(1), written[0].1.clone()).await;
        assert!(matches!(answer, Err(AppendError::Failed(_))), "{answer:?}");
        assert_eq!(log.read(Slot(2), usize::MAX).await.unwrap().len(), written.len() - 1);
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_last_batch_without_a_mark_cuts_only_that() {
    let (dir, file, written) = one_segment().await;
    let end = unmark(&file);
    let last = end - 64;
    for at in 4096..end {
        let outcome = open_changed(dir.path(), &file, &written, |bytes| bytes[at] ^= 1 << (at % 8)).await;
        let expected = if at < last { Outcome::Named } else { Outcome::Cut };
        assert_eq!(outcome, expected, "byte {at}");
    }
}

#[tokio::test]
async fn a_file_cut_anywhere_is_named() {
    let (dir, file, written) = one_segment().await;
    let end = used(&fs::read(&file).unwrap());
    for len in (0..4096).step_by(61).chain(4096..=end).chain([8191]) {
        let outcome = open_changed(dir.path(), &file, &written, |bytes| bytes.truncate(len)).await;
        assert_eq!(outcome, Outcome::Named, "cut to {len} bytes");
    }
}

#[tokio::test]
async fn a_batch_torn_anywhere_is_cut_and_what_came_before_stays() {
    let (dir, file, written) = one_segment().await;
    let end = unmark(&file);
    let last = end - 64;
    for from in last..end {
        let outcome = open_changed(dir.path(), &file, &written, |bytes| bytes[from..].fill(0)).await;
        let all_zeros_anyway = fs::read(&file).unwrap()[from..end].iter().all(|byte| *byte == 0);
        assert_eq!(
            outcome,
            if all_zeros_anyway { Outcome::Whole } else { Outcome::Cut },
            "zeros from {from}"
        );
    }
}

/// Appends all of `slots` in one batch.
fn append_batch(
    dir: &Path,
    options: FileLogOptions,
    slots: std::ops::RangeInclusive<u64>,
    len: usize,
) -> Vec<(u64, Bytes)> {
    let (shared, active, next) = open::open(dir, options, Disk::default(), None).unwrap();
    let (queue, inbox) = mpsc::channel(APPEND_QUEUE_CAPACITY);
    let mut written = Vec::new();
    for slot in slots {
        let (reply, _) = oneshot::channel();
        let record = record(slot, 0, len);
        queue
            .try_send(WriterCommand::Append(AppendRequest::new(
                Slot(slot),
                record.clone(),
                reply,
            )))
            .unwrap();
        written.push((slot, record));
    }
    drop(queue);
    std::thread::spawn(|| LogWriter::new(shared, inbox, active, next).run())
        .join()
        .unwrap();
    written
}

#[tokio::test]
async fn a_batch_of_many_records_is_torn_in_any_order() {
    let dir = scratch();
    let mut written = append_range(&open_small(dir.path()), 1..=2, 30).await;
    written.extend(append_batch(dir.path(), SMALL_SEGMENTS, 3..=12, 30));
    let file = segments(dir.path()).remove(0);
    let end = unmark(&file);
    for lost in 0..10 {
        let (from, to) = (end - 64 * (10 - lost), end - 64 * (9 - lost));
        let outcome = open_changed(dir.path(), &file, &written, |bytes| bytes[from..to].fill(0)).await;
        assert_eq!(
            outcome,
            Outcome::Cut,
            "record at {from} never reached the disk, later ones did"
        );
    }
}

#[tokio::test]
async fn damage_in_a_full_segment_is_named() {
    let dir = scratch();
    let written = append_range(&open_small(dir.path()), 1..=30, 400).await;
    let files = segments(dir.path());
    for file in &files[..2] {
        // The last frame is a mark that the next segment has made superfluous.
        let end = used(&fs::read(file).unwrap()) - 32;
        for at in (4096..end).step_by(37) {
            let outcome = open_changed(dir.path(), file, &written, |bytes| bytes[at] ^= 0x10).await;
            assert_eq!(outcome, Outcome::Named, "byte {at} of {}", file.display());
        }
    }
}

#[tokio::test]
async fn a_torn_first_batch_of_a_segment_is_cut() {
    let options = FileLogOptions {
        first_segment_bytes: 16 << 10,
        segment_bytes: 16 << 10,
        unsafe_no_fsync: false,
    };
    let dir = scratch();
    // Fills the first segment but for a rest that the batch of four after it does not fit into.
    let log = FileLog::open(dir.path(), options).unwrap();
    let written = append_range(&log, 1..=28, 400).await;
    drop(log);
    append_batch(dir.path(), options, 29..=32, 400);
    let second = segments(dir.path()).remove(1);
    let end = unmark(&second);
    assert_eq!((segments(dir.path()).len(), end), (2, 4096 + 32 + 4 * 432));
    for from in [4096, 4100, 4128, 4140, 4500, 5000, 5500] {
        let copied = copy(dir.path());
        let file = copied.path().join(second.file_name().unwrap());
        let mut bytes = fs::read(&file).unwrap();
        bytes[from] ^= 1;
        fs::write(&file, &bytes).unwrap();
        for _ in 0..2 {
            let found = read_all(&FileLog::open(copied.path(), options).unwrap(), 0).await;
            let kept = 28 + from.saturating_sub(4096 + 32) / 432;
            assert_eq!(found.len(), kept, "flipped byte {from}");
            assert_eq!(found[..28], written, "flipped byte {from}");
        }
    }
}

#[tokio::test]
async fn frames_of_another_life_of_the_file_are_not_valid() {
    let (dir, file, written) = one_segment().await;
    let end = unmark(&file);
    let mut bytes = fs::read(&file).unwrap();
    for other in [0, 1] {
        let stamp = frame::number(&bytes, 40) ^ other;
        let mut frames = Vec::new();
        frame::encode(
            &mut frames,
            stamp,
            frame::FrameKind::Record,
            99,
            u32::try_from(end).unwrap(),
            b"old",
        );
        bytes[end..end + frames.len()].copy_from_slice(&frames);
        let copied = copy(dir.path());
        fs::write(copied.path().join(file.file_name().unwrap()), &bytes).unwrap();
        let found = read_all(&open_small(copied.path()), 0).await;
        assert_eq!(
            found.len(),
            written.len() + usize::from(other == 0),
            "the stamp decides"
        );
    }
}
