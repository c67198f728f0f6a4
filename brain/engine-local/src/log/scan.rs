//! Reads the contents of a segment from its bytes alone.
//!
//! Frames follow each other from [`FIRST_FRAME_OFFSET`] on. The segment ends at the first one that is not valid, either because the last
//! batch is torn or because of damage. Proof of damage is a later valid frame whose batch begins after that place: it
//! was written when everything before it was synced. Without such a frame the last batch was torn, and never acknowledged.

use std::io;
use std::os::unix::fs::FileExt;

use super::frame::{self, FRAME_HEAD_BYTES, FrameHead, FrameKind};
use super::segment::{FIRST_FRAME_OFFSET, RecordPosition, Segment};

const SCAN_STEP_BYTES: u32 = 1 << 20;
/// Bytes that are read of a segment if only its first frame matters.
const FIRST_FRAME_BYTES: u32 = 4096;

/// The frames from the beginning of a segment up to the first that is not valid.
#[derive(Debug, Default)]
pub(super) struct ScannedFrames {
    /// Offset at which the segment before this one ends; `None` when this one was never written to.
    pub(super) begin: Option<u32>,
    /// Records in the order of writing.
    pub(super) entries: Vec<RecordPosition>,
    /// Offset at which the last batch begins.
    pub(super) batch: u32,
    /// Offset at which the last batch ends.
    pub(super) end: u32,
    /// True if the last batch is known to be synced.
    pub(super) is_synced: bool,
}

/// The bytes after the last valid frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TailBytes {
    Zeros,
    /// Bytes of a batch that was never finished.
    Torn {
        bytes: u32,
    },
    /// Bytes that were synced once and are not valid any more: a later frame, at this offset, proves it.
    Damaged {
        proof: u32,
    },
}

/// A buffered look at a segment.
struct ScanWindow<'a> {
    segment: &'a Segment,
    step: u32,
    start: u32,
    bytes: Vec<u8>,
}

impl<'a> ScanWindow<'a> {
    fn new(segment: &'a Segment, step: u32) -> Self {
        Self {
            segment,
            step,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// The `len` bytes at `at`, or `None` where the file ends before.
    fn get(&mut self, at: u32, len: u32) -> io::Result<Option<&[u8]>> {
        let Some(end) = at.checked_add(len).filter(|end| *end <= self.segment.capacity) else {
            return Ok(None);
        };
        let held = self.start + u32::try_from(self.bytes.len()).expect("a window is part of a segment");
        if at < self.start || end > held {
            let take = len.max(self.step).min(self.segment.capacity - at);
            self.bytes.resize(take as usize, 0);
            self.start = at;
            self.segment.file.read_exact_at(&mut self.bytes, u64::from(at))?;
        }
        let from = (at - self.start) as usize;
        Ok(Some(&self.bytes[from..from + len as usize]))
    }

    /// The frame at `at`, if there is a valid one.
    fn frame(&mut self, at: u32) -> io::Result<Option<(FrameHead, u32)>> {
        let stamp = self.segment.stamp;
        let Some(head) = self
            .get(at, FRAME_HEAD_BYTES)?
            .and_then(|bytes| FrameHead::parse(bytes, stamp))
        else {
            return Ok(None);
        };
        let Some(span) = frame::span(head.len) else {
            return Ok(None);
        };
        let intact = self.get(at, span)?.is_some_and(frame::is_intact);
        Ok(intact.then_some((head, span)))
    }
}

/// Follows the frames of `segment` up to `limit` (exclusive) or to the first that is not valid.
pub(super) fn walk(segment: &Segment, limit: u32) -> io::Result<ScannedFrames> {
    walk_in(ScanWindow::new(segment, SCAN_STEP_BYTES), limit)
}

/// Returns the offset at which the segment before this one ends; `None` if this one was never written to.
pub(super) fn begin(segment: &Segment) -> io::Result<Option<u32>> {
    Ok(walk_in(ScanWindow::new(segment, FIRST_FRAME_BYTES), FIRST_FRAME_OFFSET + 1)?.begin)
}

fn walk_in(mut window: ScanWindow<'_>, limit: u32) -> io::Result<ScannedFrames> {
    let mut scanned = ScannedFrames {
        batch: FIRST_FRAME_OFFSET,
        end: FIRST_FRAME_OFFSET,
        ..ScannedFrames::default()
    };
    while scanned.end < limit {
        let at = scanned.end;
        let Some((head, span)) = window.frame(at)? else { break };
        let continues = head.batch == scanned.batch || head.batch == at;
        let fits = match head.kind {
            FrameKind::Begin => at == FIRST_FRAME_OFFSET && head.slot <= u64::from(u32::MAX),
            FrameKind::Record | FrameKind::CompressedRecord => scanned.begin.is_some(),
            FrameKind::Synced => scanned.begin.is_some() && head.batch == at,
        };
        if !continues || !fits {
            break;
        }
        match head.kind {
            FrameKind::Begin => scanned.begin = u32::try_from(head.slot).ok(),
            FrameKind::Record | FrameKind::CompressedRecord => scanned.entries.push(RecordPosition {
                slot: head.slot,
                at,
                len: head.len,
            }),
            FrameKind::Synced => {
                scanned.is_synced = true;
                break;
            }
        }
        scanned.batch = head.batch;
        scanned.end = at + span;
    }
    Ok(scanned)
}

/// Examines everything after the last valid frame.
pub(super) fn rest(segment: &Segment, scanned: &ScannedFrames) -> io::Result<TailBytes> {
    let end = scanned.end;
    let from = if scanned.is_synced { end + FRAME_HEAD_BYTES } else { end };
    let mut window = ScanWindow::new(segment, SCAN_STEP_BYTES);
    let mut chunk = vec![0; SCAN_STEP_BYTES as usize];
    let zeros = vec![0; SCAN_STEP_BYTES as usize];
    let mut used = from;
    let mut at = from;
    while at < segment.capacity {
        let len = SCAN_STEP_BYTES.min(segment.capacity - at);
        let bytes = &mut chunk[..len as usize];
        segment.file.read_exact_at(bytes, u64::from(at))?;
        if *bytes != zeros[..len as usize] {
            let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            used = at + u32::try_from(last).expect("a chunk is part of a segment") + 1;
            if let Some(proof) = proof(&mut window, bytes, at, end)? {
                return Ok(TailBytes::Damaged { proof });
            }
        }
        at += len;
    }
    Ok(if used > from {
        TailBytes::Torn { bytes: used - from }
    } else {
        TailBytes::Zeros
    })
}

/// Returns the offset of a valid frame that begins in `bytes`, which begin at `at`, and whose batch begins after `end`.
fn proof(window: &mut ScanWindow<'_>, bytes: &[u8], at: u32, end: u32) -> io::Result<Option<u32>> {
    let stamp = window.segment.stamp.to_le_bytes();
    // The stamp is the second word of a frame: one whose first word ends the chunk before is found by its offset too.
    for (n, word) in bytes.chunks_exact(8).enumerate() {
        if word != stamp {
            continue;
        }
        let word_at = at + u32::try_from(8 * n).expect("a chunk is part of a segment");
        let Some(frame_at) = word_at.checked_sub(8) else {
            continue;
        };
        if let Some((head, _)) = window.frame(frame_at)?
            && head.batch > end
        {
            return Ok(Some(frame_at));
        }
    }
    Ok(None)
}
