//! Segment files: a header page, then frames, then zeros up to a length that never changes.
//!
//! A segment appears under its name whole: preallocated, with its header, synced. So the length in the header is the
//! length of the file, and a shorter file was cut. Only a segment that is followed by another may be shorter: the space after
//! its last batch is freed when Open leaves it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::FileLogOpenError;
use super::disk::Disk;
use super::frame::{self, FRAME_HEAD_BYTES, FrameHead};
use super::page::{self, PAGE_BYTES};
use super::record::StoredRecord;
use engine::log::LogId;
use runtime::kill_points;

const SEGMENT_MAGIC: [u8; 8] = *b"KBLOGSEG";
/// Offset of the first frame.
pub(super) const FIRST_FRAME_OFFSET: u32 = 4096;

/// An open segment file.
#[derive(Debug)]
pub(super) struct Segment {
    /// Place in the sequence of segments; the first is 1.
    pub(super) seq: u64,
    /// The mark of its frames.
    pub(super) stamp: u64,
    /// Length of the file.
    pub(super) capacity: u32,
    /// Length that the file was made with.
    pub(super) made: u32,
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// The position of a record in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) slot: u64,
    /// Offset of its frame.
    pub(super) at: u32,
    /// Length of the record.
    pub(super) len: u32,
}

impl RecordPosition {
    /// Bytes of the whole frame.
    pub(super) fn span(self) -> u32 {
        frame::span(self.len).unwrap_or(u32::MAX)
    }
}

/// Name of the segment `seq`.
pub(super) fn name(seq: u64) -> String {
    format!("{seq:020}.segment")
}

/// The sequence number in a segment's file name.
pub(super) fn seq_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".segment")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

impl Segment {
    /// Makes the segment `seq`, in place of one of that name if there is one. It holds the frames that `fill` encodes
    /// with the new stamp. Durable when it returns.
    pub(super) fn create(
        dir: &Path,
        disk: &Disk,
        id: LogId,
        seq: u64,
        capacity: u32,
        fill: impl FnOnce(u64) -> Vec<u8>,
    ) -> io::Result<Segment> {
        let path = dir.join(name(seq));
        let new = dir.join(format!("{}.new", name(seq)));
        let stamp = rand::random::<u64>().max(1);
        let make = || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            disk.allocate(&file, u64::from(capacity))?;
            disk.write(
                &file,
                &page::encode(SEGMENT_MAGIC, id, &[seq, stamp, u64::from(capacity)]),
                0,
            )?;
            disk.write(&file, &fill(stamp), u64::from(FIRST_FRAME_OFFSET))?;
            disk.sync(&file)?;
            kill_points::reach("segment-made");
            fs::rename(&new, &path)?;
            disk.sync_dir(dir)?;
            Ok(file)
        };
        match make() {
            Ok(file) => Ok(Segment {
                seq,
                stamp,
                capacity,
                made: capacity,
                file,
                path,
            }),
            Err(error) => {
                if let Err(left) = fs::remove_file(&new)
                    && left.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(file = %new.display(), error = %left, "cannot remove an unfinished segment");
                }
                Err(error)
            }
        }
    }

    /// Opens the segment `seq` and checks its header and its length.
    pub(super) fn open(dir: &Path, id: LogId, seq: u64) -> Result<Segment, FileLogOpenError> {
        Self::open_for(dir, id, seq, true)
    }

    /// The same, for a reader that writes nothing.
    pub(super) fn open_to_read(dir: &Path, id: LogId, seq: u64) -> Result<Segment, FileLogOpenError> {
        Self::open_for(dir, id, seq, false)
    }

    fn open_for(dir: &Path, id: LogId, seq: u64, is_written: bool) -> Result<Segment, FileLogOpenError> {
        let path = dir.join(name(seq));
        let file = match OpenOptions::new().read(true).write(is_written).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FileLogOpenError::Missing { file: path });
            }
            opened => opened.map_err(FileLogOpenError::io("open", &path))?,
        };
        let len = file.metadata().map_err(FileLogOpenError::io("look at", &path))?.len();
        if len < PAGE_BYTES as u64 {
            return Err(FileLogOpenError::damaged(
                &path,
                len,
                "it was truncated inside its header",
            ));
        }
        let mut header = vec![0; PAGE_BYTES];
        file.read_exact_at(&mut header, 0)
            .map_err(FileLogOpenError::io("read", &path))?;
        let (owner, [named, stamp, made]) =
            page::decode(&header, SEGMENT_MAGIC).map_err(FileLogOpenError::page(&path))?;
        if owner != id {
            return Err(FileLogOpenError::Foreign { file: path });
        }
        if named != seq {
            return Err(FileLogOpenError::damaged(
                &path,
                0u64,
                format!("its header says that it is segment {named}"),
            ));
        }
        match (u32::try_from(len), u32::try_from(made)) {
            (Ok(capacity), Ok(made)) if capacity <= made => Ok(Segment {
                seq,
                stamp,
                capacity,
                made,
                file,
                path,
            }),
            _ => Err(FileLogOpenError::damaged(
                &path,
                len.min(made),
                format!("it has {len} bytes instead of {made}"),
            )),
        }
    }

    /// Checks that nothing was cut off.
    pub(super) fn check_whole(&self) -> Result<(), FileLogOpenError> {
        if self.capacity == self.made {
            return Ok(());
        }
        let what = format!("it has {} bytes instead of {}", self.capacity, self.made);
        Err(FileLogOpenError::damaged(&self.path, self.capacity, what))
    }

    /// Returns the same segment without the bytes after `end`, whose space is freed.
    pub(super) fn shorten(&self, disk: &Disk, end: u32) -> io::Result<Segment> {
        let capacity = end.next_multiple_of(FIRST_FRAME_OFFSET).min(self.capacity);
        let file = self.file.try_clone()?;
        disk.cut(&file, u64::from(capacity))?;
        Ok(Segment {
            capacity,
            file,
            path: self.path.clone(),
            ..*self
        })
    }

    /// Returns the record of `entry` as `frame` holds it. The error describes the damage.
    pub(super) fn stored_record(&self, entry: RecordPosition, frame: &Bytes) -> Result<StoredRecord, String> {
        let head = FrameHead::parse(frame, self.stamp).filter(|head| head.slot == entry.slot && head.len == entry.len);
        let stored = head.map(|head| StoredRecord {
            kind: head.kind,
            payload: frame.slice(FRAME_HEAD_BYTES as usize..FRAME_HEAD_BYTES as usize + entry.len as usize),
        });
        match stored.filter(|stored| frame::is_intact(frame) && stored.len().is_some()) {
            Some(stored) => Ok(stored),
            None => Err(self.damaged_record(entry)),
        }
    }

    /// Describes a record that is not what was written.
    pub(super) fn damaged_record(&self, entry: RecordPosition) -> String {
        let file = self.path.display();
        format!(
            "{file} at offset {}: the record of slot {} fails its checksum",
            entry.at, entry.slot
        )
    }
}
