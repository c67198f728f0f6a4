//! Records out of segments, each checked against its checksum.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::frame::FRAME_HEAD_BYTES;
use super::segment::{RecordPosition, Segment};
use super::segment_index;
use engine::log::{LogError, Slot};

/// One record.
pub(super) fn record(segment: &Segment, entry: RecordPosition) -> Result<Bytes, LogError> {
    let frames = bytes(segment, entry.at, entry.span())?;
    cut(segment, entry, &frames, entry.at)
}

/// Returns records in the order of `places`. Adjacent records of a segment are read in one go, and share a buffer.
pub(super) fn records(places: &[(Arc<Segment>, RecordPosition)]) -> Result<Vec<(Slot, Bytes)>, LogError> {
    let mut found = Vec::with_capacity(places.len());
    for run in places.chunk_by(|(a, one), (b, two)| a.seq == b.seq && one.at + one.span() == two.at) {
        let [(segment, first), ..] = run else { continue };
        let len = run
            .iter()
            .fold(0u32, |len, (_, entry)| len.saturating_add(entry.span()));
        let frames = bytes(segment, first.at, len)?;
        for (_, entry) in run {
            found.push((Slot(entry.slot), cut(segment, *entry, &frames, first.at)?));
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
fn cut(segment: &Segment, entry: RecordPosition, frames: &Bytes, start: u32) -> Result<Bytes, LogError> {
    let from = (entry.at - start) as usize;
    let frame = frames.slice(from..from + entry.span() as usize);
    if let Err(damage) = segment.check(entry, &frame) {
        segment_index::forget(segment);
        return Err(LogError::Corrupt(damage));
    }
    Ok(frame.slice(FRAME_HEAD_BYTES as usize..FRAME_HEAD_BYTES as usize + entry.len as usize))
}
