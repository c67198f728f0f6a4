//! Records out of segments, each checked against its checksum.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::record::StoredRecord;
use super::segment::{RecordPosition, Segment};
use super::segment_index;
use engine::log::{LogError, Slot};

/// Adjacent records that are read in one go, in bytes of their frames, but for the last one. More would be read for nothing if they are
/// compressed well.
const MAX_READ_BYTES: u32 = 256 << 10;

/// One record.
pub(super) fn record(segment: &Segment, entry: RecordPosition) -> Result<Bytes, LogError> {
    decompressed(segment, entry, &stored(segment, entry)?)
}

/// One record as it is stored.
pub(super) fn stored(segment: &Segment, entry: RecordPosition) -> Result<StoredRecord, LogError> {
    let frame = bytes(segment, entry.at, entry.span())?;
    cut(segment, entry, &frame, entry.at)
}

/// Returns records in the order of `places`: the first, and then as many as fit into `max_bytes`. Adjacent records of a segment are read in
/// one go; those that are not compressed share a buffer.
pub(super) fn records(
    places: &[(Arc<Segment>, RecordPosition)],
    max_bytes: usize,
) -> Result<Vec<(Slot, Bytes)>, LogError> {
    let mut found = Vec::with_capacity(places.len());
    let (mut found_bytes, mut rest) = (0usize, places);
    while let Some((segment, first)) = rest.first() {
        let mut len = first.span();
        let adjacent = rest.iter().skip(1).take_while(|(other, entry)| {
            let is_next = other.seq == segment.seq && entry.at == first.at + len && len < MAX_READ_BYTES;
            len = len.saturating_add(if is_next { entry.span() } else { 0 });
            is_next
        });
        let (run, others) = rest.split_at(1 + adjacent.count());
        rest = others;
        let frames = bytes(segment, first.at, len)?;
        for (_, entry) in run {
            let stored = cut(segment, *entry, &frames, first.at)?;
            found_bytes = found_bytes.saturating_add(stored.len().unwrap_or(0));
            if !found.is_empty() && found_bytes > max_bytes {
                return Ok(found);
            }
            found.push((Slot(entry.slot), decompressed(segment, *entry, &stored)?));
        }
    }
    Ok(found)
}

fn bytes(segment: &Segment, at: u32, len: u32) -> Result<Bytes, LogError> {
    let mut bytes = vec![0; len as usize];
    match segment.file.read_exact_at(&mut bytes, u64::from(at)) {
        Ok(()) => Ok(bytes.into()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            segment_index::forget(segment);
            Err(LogError::Corrupt(format!(
                "{} was truncated after offset {at}",
                segment.path.display()
            )))
        }
        Err(error) => Err(LogError::Failed(error.into())),
    }
}

/// Returns the record of `entry` from `frames`, which begin at offset `start`.
fn cut(segment: &Segment, entry: RecordPosition, frames: &Bytes, start: u32) -> Result<StoredRecord, LogError> {
    let from = (entry.at - start) as usize;
    let frame = frames.slice(from..from + entry.span() as usize);
    segment
        .stored_record(entry, &frame)
        .map_err(|damage| corrupt(segment, damage))
}

fn decompressed(segment: &Segment, entry: RecordPosition, stored: &StoredRecord) -> Result<Bytes, LogError> {
    let record = stored.record();
    record.ok_or_else(|| corrupt(segment, segment.damaged_record(entry)))
}

fn corrupt(segment: &Segment, damage: String) -> LogError {
    segment_index::forget(segment);
    LogError::Corrupt(damage)
}
