//! Frames: how records are stored in a segment file.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C of everything after it, padding included |
//! | 4 | 4 | length of the payload |
//! | 8 | 8 | stamp of the segment |
//! | 16 | 8 | slot |
//! | 24 | 4 | offset in the segment at which the batch of this frame begins |
//! | 28 | 4 | kind |
//! | 32 | | payload, then zeros up to a multiple of 8 |
//!
//! Numbers are little-endian. The stamp is drawn anew for every life of a segment file, so that neither zeros nor
//! bytes of another segment can pass for a frame of this one.
//!
//! Invariant: a batch is written only when everything before it is known to be on disk. A valid frame whose batch begins
//! after some offset is therefore proof that everything before that offset was synced once.

/// Bytes before the payload.
pub(super) const FRAME_HEAD_BYTES: u32 = 32;
const FRAME_ALIGNMENT: u32 = 8;

/// The contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A record of the log.
    Record,
    /// A record, compressed.
    CompressedRecord,
    /// First frame of a segment: its slot field is the offset at which the segment before it ends.
    Begin,
    /// Everything before this frame is synced. The next batch overwrites it.
    Synced,
}

/// The fields of a frame without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: FrameKind,
    pub(super) slot: u64,
    pub(super) batch: u32,
    pub(super) len: u32,
}

/// Bytes that a frame with `len` bytes of payload occupies; `None` when no segment can hold it.
pub(super) fn span(len: u32) -> Option<u32> {
    len.checked_next_multiple_of(FRAME_ALIGNMENT)?
        .checked_add(FRAME_HEAD_BYTES)
}

impl FrameHead {
    /// Reads the fields at the start of `bytes`, if the stamp and the kind are right. The checksum is not looked at.
    pub(super) fn parse(bytes: &[u8], stamp: u64) -> Option<FrameHead> {
        let (head, _) = bytes.split_first_chunk::<{ FRAME_HEAD_BYTES as usize }>()?;
        if number(head, 8) != stamp {
            return None;
        }
        let kind = match short(head, 28) {
            1 => FrameKind::Record,
            2 => FrameKind::Begin,
            3 => FrameKind::Synced,
            4 => FrameKind::CompressedRecord,
            _ => return None,
        };
        Some(FrameHead {
            kind,
            slot: number(head, 16),
            batch: short(head, 24),
            len: short(head, 4),
        })
    }
}

/// Returns true if `frame`, in its full span, is what was written.
pub(super) fn is_intact(frame: &[u8]) -> bool {
    frame.len() >= FRAME_HEAD_BYTES as usize && short(frame, 0) == crc32c::crc32c(&frame[4..])
}

/// Appends a frame to `buffer`.
pub(super) fn encode(buffer: &mut Vec<u8>, stamp: u64, kind: FrameKind, slot: u64, batch: u32, payload: &[u8]) {
    let start = buffer.len();
    let len = u32::try_from(payload.len()).expect("callers bound records far below 4 GiB");
    let kind: u32 = match kind {
        FrameKind::Record => 1,
        FrameKind::Begin => 2,
        FrameKind::Synced => 3,
        FrameKind::CompressedRecord => 4,
    };
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&len.to_le_bytes());
    buffer.extend_from_slice(&stamp.to_le_bytes());
    buffer.extend_from_slice(&slot.to_le_bytes());
    buffer.extend_from_slice(&batch.to_le_bytes());
    buffer.extend_from_slice(&kind.to_le_bytes());
    buffer.extend_from_slice(payload);
    buffer.resize(buffer.len().next_multiple_of(FRAME_ALIGNMENT as usize), 0);
    let crc = crc32c::crc32c(&buffer[start + 4..]);
    buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The 8 bytes at `at` as a number; callers have checked the length.
pub(super) fn number(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// The 4 bytes at `at` as a number; callers have checked the length.
pub(super) fn short(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}
