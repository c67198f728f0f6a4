//! Index files: the places of the records of a segment that is no longer written to, so that opening a long log does not read
//! all of it.
//!
//! An index file is a copy, and never synced. If it is missing, damaged, or belongs to another segment of that name, the
//! segment is read instead.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::frame::{number, short};
use super::page::{self, PAGE_BYTES};
use super::segment::{FIRST_FRAME_OFFSET, RecordPosition, Segment};
use engine::log::LogId;

const INDEX_MAGIC: [u8; 8] = *b"KBLOGIDX";
/// Bytes of an entry: slot, offset and length.
const ENTRY_BYTES: usize = 16;

/// Path of the index file of the segment `seq`.
pub(super) fn path(dir: &Path, seq: u64) -> PathBuf {
    dir.join(format!("{seq:020}.index"))
}

/// The sequence number in the name of an index file.
pub(super) fn seq_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".index")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// Writes the index file of a segment whose last batch ends at `end`; `entries` in the order of slots. A failure leaves no file.
pub(super) fn write(
    dir: &Path,
    id: LogId,
    segment: &Segment,
    (entries, end): (&[RecordPosition], u32),
) -> io::Result<()> {
    let mut encoded = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        encoded.extend_from_slice(&entry.slot.to_le_bytes());
        encoded.extend_from_slice(&entry.at.to_le_bytes());
        encoded.extend_from_slice(&entry.len.to_le_bytes());
    }
    let sum = crc32c::crc32c(&encoded);
    let fields = [
        segment.seq,
        segment.stamp,
        u64::from(end),
        entries.len() as u64,
        u64::from(sum),
    ];
    let path = path(dir, segment.seq);
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path)?;
        file.write_all(&page::encode(INDEX_MAGIC, id, &fields))?;
        file.write_all(&encoded)
    };
    write().inspect_err(|_| {
        // A partly written file is not valid.
        fs::remove_file(&path).ok();
    })
}

/// Removes the index file of a damaged segment: then the next open reads that segment, and is refused.
pub(super) fn forget(segment: &Segment) {
    let path = segment.path.with_extension("index");
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "cannot remove the index file of a damaged segment");
    }
}

/// Returns the entries of a segment whose last batch ends at `end`, in the order of slots; `None` if no index file tells.
pub(super) fn read(dir: &Path, id: LogId, segment: &Segment, end: u32) -> Option<Vec<RecordPosition>> {
    let bytes = fs::read(path(dir, segment.seq)).ok()?;
    let (head, encoded) = bytes.split_at_checked(PAGE_BYTES)?;
    let (owner, [seq, stamp, to, count, sum]) = page::decode(head, INDEX_MAGIC).ok()?;
    let is_of_segment = owner == id && (seq, stamp, to) == (segment.seq, segment.stamp, u64::from(end));
    if !is_of_segment
        || encoded.len() as u64 != count.checked_mul(ENTRY_BYTES as u64)?
        || sum != u64::from(crc32c::crc32c(encoded))
    {
        return None;
    }
    let entries: Vec<RecordPosition> = encoded
        .chunks_exact(ENTRY_BYTES)
        .map(|bytes| RecordPosition {
            slot: number(bytes, 0),
            at: short(bytes, 8),
            len: short(bytes, 12),
        })
        .collect();
    let is_inside = |entry: &RecordPosition| {
        entry.at >= FIRST_FRAME_OFFSET && entry.at.checked_add(entry.span()).is_some_and(|to| to <= end)
    };
    (entries.iter().all(is_inside) && entries.is_sorted_by(|a, b| a.slot < b.slot)).then_some(entries)
}
