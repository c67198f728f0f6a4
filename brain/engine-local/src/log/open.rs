//! Opening a log: check everything, then settle its end.
//!
//! Nothing on disk changes before every check has passed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::control::{self, Control, ControlState};
use super::disk::Disk;
use super::index::SegmentSlots;
use super::recover_tail::{LogEnd, recover_tail};
use super::scan::{self, ScannedFrames, TailBytes};
use super::segment::{self, FIRST_FRAME_OFFSET, Segment};
use super::segment_index;
use super::shared::LogShared;
use super::writer::{ActiveSegment, NextSegment};
use super::{FileLogOpenError, FileLogOptions};
use engine::log::{LogId, LogOrigin, Slot};

/// Names in the directory.
#[derive(Debug, Default)]
struct LogDirListing {
    has_control: bool,
    segments: BTreeMap<u64, PathBuf>,
    indexes: BTreeMap<u64, PathBuf>,
    /// Files that were never finished.
    unfinished: Vec<PathBuf>,
    foreign: Option<String>,
}

impl LogDirListing {
    fn read(dir: &Path) -> Result<LogDirListing, FileLogOpenError> {
        let mut listing = LogDirListing::default();
        for file in fs::read_dir(dir).map_err(FileLogOpenError::io("list", dir))? {
            let file = file.map_err(FileLogOpenError::io("list", dir))?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name == control::CONTROL_FILE {
                listing.has_control = true;
            } else if let Some(seq) = segment::seq_of(&name) {
                listing.segments.insert(seq, file.path());
            } else if let Some(seq) = segment_index::seq_of(&name) {
                listing.indexes.insert(seq, file.path());
            } else if is_unfinished(&name) {
                listing.unfinished.push(file.path());
            } else if name != "lost+found" {
                listing.foreign = Some(name);
            }
        }
        Ok(listing)
    }
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(".new")
        .is_some_and(|name| name == control::CONTROL_FILE || segment::seq_of(name).is_some())
}

/// Opens the log in `dir`, or begins one there.
pub(super) fn open(
    dir: &Path,
    options: FileLogOptions,
    disk: Disk,
    origin: Option<LogOrigin>,
) -> Result<(Arc<LogShared>, ActiveSegment, NextSegment), FileLogOpenError> {
    if !dir.exists() {
        if origin.is_some() {
            return Err(FileLogOpenError::Lost { dir: dir.to_owned() });
        }
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(dir).map_err(FileLogOpenError::io("create", dir))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent).map_err(FileLogOpenError::io("sync", parent))?;
        }
    }
    let listing = LogDirListing::read(dir)?;
    let mut control = if listing.has_control {
        Control::open(dir, &disk)?
    } else if !listing.segments.is_empty() {
        return Err(FileLogOpenError::Missing {
            file: dir.join(control::CONTROL_FILE),
        });
    } else if let Some(found) = listing.foreign {
        return Err(FileLogOpenError::NotALog {
            dir: dir.to_owned(),
            found,
        });
    } else if origin.is_some() {
        return Err(FileLogOpenError::Lost { dir: dir.to_owned() });
    } else {
        Control::create(dir, &disk)?
    };
    if origin.is_some_and(|origin| origin.id != control.id) {
        return Err(FileLogOpenError::OtherLog { dir: dir.to_owned() });
    }
    let state = control.state;
    let obsolete = obsolete(dir, &listing, &control)?;
    let mut segments = Vec::new();
    for seq in state.first.max(1)..=state.last {
        segments.push(Segment::open(dir, control.id, seq)?);
    }
    let in_rows = origin.map(|origin| origin.last);
    let (index, end) = check((dir, control.id), segments, state, in_rows)?;
    // Rows that nothing of the log has come to yet ask for no slot: the first start may have ended before its first record.
    if let Some(LogOrigin { last, .. }) = origin
        && last >= Slot::FIRST
        && index.beyond() <= last.0
    {
        return Err(FileLogOpenError::Behind {
            dir: dir.to_owned(),
            last: last.0,
        });
    }

    for path in &obsolete {
        match fs::remove_file(path) {
            // A fresh control file has taken the name of one that was not finished.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(FileLogOpenError::io("remove", path))?,
        }
    }
    if !obsolete.is_empty() {
        disk.sync_dir(dir).map_err(FileLogOpenError::io("sync", dir))?;
    }
    // The pages may be in the page cache only, so write them again: then their content is on disk.
    control
        .store(state)
        .map_err(FileLogOpenError::io("write", &dir.join(control::CONTROL_FILE)))?;
    let bytes = control::CONTROL_BYTES + index.bytes() + end.bytes();
    let shared = Arc::new(LogShared::new(dir.to_owned(), disk, options, control, index, bytes));
    let (active, next) = recover_tail(&shared, end)?;
    Ok((shared, active, next))
}

/// Files that are to go: never finished, destroyed, or made but never named in `control`.
fn obsolete(dir: &Path, listing: &LogDirListing, control: &Control) -> Result<Vec<PathBuf>, FileLogOpenError> {
    let ControlState { first, last, .. } = control.state;
    let mut obsolete = listing.unfinished.clone();
    let gone = listing.indexes.iter().filter(|(seq, _)| !(first..=last).contains(seq));
    obsolete.extend(gone.map(|(_, path)| path.clone()));
    for (seq, path) in &listing.segments {
        if *seq < first {
            obsolete.push(path.clone());
        } else if *seq > last {
            let segment = Segment::open(dir, control.id, *seq)?;
            let scanned = scan::walk(&segment, segment.capacity).map_err(FileLogOpenError::io("read", path))?;
            let is_unused = scanned.begin.is_none()
                && scan::rest(&segment, &scanned).map_err(FileLogOpenError::io("read", path))? == TailBytes::Zeros;
            if *seq != last + 1 || !is_unused {
                let what = format!("its last segment is {last}, but {} exists", path.display());
                return Err(FileLogOpenError::damaged(&dir.join(control::CONTROL_FILE), 0u64, what));
            }
            obsolete.push(path.clone());
        }
    }
    Ok(obsolete)
}

/// Reads all segments: batches that are certain go into the index, and those that must be recovered into the end. Of segments whose
/// slots are all `in_rows`, up to that one, nothing is recovered: their index files are enough, and records are checked when they are
/// read.
pub(super) fn check(
    (dir, id): (&Path, LogId),
    mut segments: Vec<Segment>,
    state: ControlState,
    in_rows: Option<Slot>,
) -> Result<(SegmentSlots, LogEnd), FileLogOpenError> {
    let mut begins = Vec::with_capacity(segments.len());
    for segment in &segments {
        let begin = scan::begin(segment).map_err(FileLogOpenError::io("read", &segment.path))?;
        begins.push(begin);
    }
    let written = begins.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let mut unused = segments.split_off(written).into_iter();
    let next = unused.next().map(unwritten).transpose()?;
    if let Some(more) = unused.next() {
        let file = more.path.with_file_name(segment::name(more.seq - 1));
        return Err(FileLogOpenError::damaged(
            &file,
            FIRST_FRAME_OFFSET,
            "it was written to, but its first frame is not valid",
        ));
    }
    let Some(last) = segments.pop() else {
        if state.last > 1 || state.synced.1 > FIRST_FRAME_OFFSET {
            let file = dir.join(segment::name(state.first));
            return Err(FileLogOpenError::damaged(
                &file,
                FIRST_FRAME_OFFSET,
                "it was written to, but its first frame is not valid",
            ));
        }
        return Ok((SegmentSlots::default(), LogEnd { last: None, next }));
    };
    let mut index = SegmentSlots::default();
    for (n, segment) in segments.into_iter().enumerate() {
        let Some(limit) = begins[n + 1].filter(|limit| (FIRST_FRAME_OFFSET..=segment.capacity).contains(limit)) else {
            let file = segment.path.with_file_name(segment::name(segment.seq + 1));
            return Err(FileLogOpenError::damaged(
                &file,
                FIRST_FRAME_OFFSET,
                "its first frame is not valid",
            ));
        };
        let known = in_rows.filter(|_| begins[n].is_some()).and_then(|last| {
            let entries = segment_index::read(dir, id, &segment, limit)?;
            entries
                .last()
                .is_none_or(|entry| entry.slot <= last.0)
                .then_some(entries)
        });
        if let Some(entries) = known {
            index.push_indexed(Arc::new(segment), entries, limit);
            continue;
        }
        let scanned = scan::walk(&segment, limit).map_err(FileLogOpenError::io("read", &segment.path))?;
        if scanned.end != limit || scanned.begin.is_none() {
            let what = format!("a record is not valid, but the segment continues up to offset {limit}");
            return Err(FileLogOpenError::damaged(&segment.path, scanned.end, what));
        }
        index.push(Arc::new(segment), scanned.entries, limit);
    }
    let last = written_last(last, state)?;
    index.push(Arc::clone(&last.0), last.1.entries.clone(), last.1.end);
    if let Some((segment, entry)) = index.duplicate() {
        let what = format!("slot {} is in the log twice", entry.slot);
        return Err(FileLogOpenError::damaged(&segment.path, entry.at, what));
    }
    Ok((index, LogEnd { last: Some(last), next }))
}

/// The last segment that was written to, up to its last valid frame.
fn written_last(
    segment: Segment,
    state: ControlState,
) -> Result<(Arc<Segment>, ScannedFrames, TailBytes), FileLogOpenError> {
    segment.check_whole()?;
    let mut scanned = scan::walk(&segment, segment.capacity).map_err(FileLogOpenError::io("read", &segment.path))?;
    let rest = scan::rest(&segment, &scanned).map_err(FileLogOpenError::io("read", &segment.path))?;
    if let TailBytes::Damaged { proof } = rest {
        let what = format!("a record is not valid, but one at offset {proof} was written later");
        return Err(FileLogOpenError::damaged(&segment.path, scanned.end, what));
    }
    let (synced_in, synced_to) = state.synced;
    if segment.seq < synced_in || (segment.seq == synced_in && scanned.end < synced_to) {
        let what = format!("it ends here, but segment {synced_in} was synced up to offset {synced_to}");
        return Err(FileLogOpenError::damaged(&segment.path, scanned.end, what));
    }
    // As good a proof as a mark after the batch.
    scanned.is_synced |= (segment.seq, scanned.end) == state.synced;
    Ok((Arc::new(segment), scanned, rest))
}

/// The segment after the last one: prepared, or its first batch was never finished.
fn unwritten(segment: Segment) -> Result<(Segment, TailBytes), FileLogOpenError> {
    segment.check_whole()?;
    let scanned = ScannedFrames {
        batch: FIRST_FRAME_OFFSET,
        end: FIRST_FRAME_OFFSET,
        ..ScannedFrames::default()
    };
    let rest = scan::rest(&segment, &scanned).map_err(FileLogOpenError::io("read", &segment.path))?;
    match rest {
        TailBytes::Damaged { proof } => {
            let what = format!("its first frame is not valid, but one at offset {proof} was written later");
            Err(FileLogOpenError::damaged(&segment.path, FIRST_FRAME_OFFSET, what))
        }
        rest => Ok((segment, rest)),
    }
}
