//! Recovery of the end of a log that was just opened: cuts a torn batch, and writes again a batch that may not be on disk.
//!
//! The last batch may be in the page cache only, even after a sync that seems to succeed. So no reader sees it before it
//! has been written a second time, into a new file, and synced there. Everything before it is proved synced by the batch
//! itself, and so is the batch if a mark follows it: then, as after every ordinary stop, nothing needs to be done.

use std::io;
use std::sync::Arc;

use super::FileLogOpenError;
use super::disk::is_full;
use super::frame::{self, FrameKind};
use super::read;
use super::scan::{ScannedFrames, TailBytes};
use super::segment::{FIRST_FRAME_OFFSET, RecordPosition, Segment};
use super::shared::{LogShared, capacity_after, room_for};
use super::writer::{ActiveSegment, NextSegment};

/// The state of the end of the log.
#[derive(Debug)]
pub(super) struct LogEnd {
    /// The last segment with a batch in it; the log is empty without one.
    pub(super) last: Option<(Arc<Segment>, ScannedFrames, TailBytes)>,
    /// The segment after that one.
    pub(super) next: Option<(Segment, TailBytes)>,
}

impl LogEnd {
    /// Bytes of the segment that is not in the index.
    pub(super) fn bytes(&self) -> u64 {
        self.next.as_ref().map_or(0, |(segment, _)| u64::from(segment.capacity))
    }
}

/// Makes the end of the log certain, and returns where writing continues.
pub(super) fn recover_tail(shared: &LogShared, end: LogEnd) -> Result<(ActiveSegment, NextSegment), FileLogOpenError> {
    let Some((last, scanned, rest)) = end.last else {
        return begin(shared, end.next);
    };
    warn_torn(&last, &rest, scanned.end);
    let next = match end.next {
        Some((torn, rest @ TailBytes::Torn { .. })) => {
            warn_torn(&torn, &rest, FIRST_FRAME_OFFSET);
            shared.forget_bytes(&torn);
            Some(create(shared, torn.seq, last.capacity)?)
        }
        next => next.map(|(segment, _)| segment),
    };
    if scanned.is_synced && rest == TailBytes::Zeros {
        let active = ActiveSegment {
            segment: last,
            end: scanned.end,
            begin: None,
            is_spoiled: false,
        };
        return Ok((active, next.map_or(NextSegment::None, NextSegment::Ready)));
    }
    let doubtful: Vec<RecordPosition> = if scanned.is_synced {
        Vec::new()
    } else {
        scanned
            .entries
            .iter()
            .filter(|entry| entry.at >= scanned.batch)
            .copied()
            .collect()
    };
    let keeps_last = scanned.is_synced || scanned.batch > FIRST_FRAME_OFFSET;
    let (seq, before, next) = if keeps_last {
        let before = if scanned.is_synced { scanned.end } else { scanned.batch };
        // `control` must name the segment before it holds anything.
        let place = match next {
            Some(next) => next,
            None => create(shared, last.seq + 1, last.capacity)?,
        };
        shared.forget_bytes(&place);
        (place.seq, before, NextSegment::None)
    } else {
        shared.forget_bytes(&last);
        (
            last.seq,
            scanned.begin.unwrap_or(FIRST_FRAME_OFFSET),
            next.map_or(NextSegment::None, NextSegment::Ready),
        )
    };
    let (segment, entries, end) = rewrite(shared, &last, &doubtful, seq, before)?;
    let mut index = shared.index_mut();
    if keeps_last {
        let shorter = last
            .shorten(&shared.disk, before)
            .map_err(FileLogOpenError::io("shorten", &last.path))?;
        shared.forget_bytes(&last);
        shared.count_bytes(&shorter);
        index.cut_last(shorter, before);
    } else {
        index.drop_last();
    }
    index.push(Arc::clone(&segment), entries, end);
    let active = ActiveSegment {
        segment,
        end,
        begin: None,
        is_spoiled: false,
    };
    Ok((active, next))
}

/// Returns the write position of a log without records.
fn begin(
    shared: &LogShared,
    next: Option<(Segment, TailBytes)>,
) -> Result<(ActiveSegment, NextSegment), FileLogOpenError> {
    let segment = match next {
        Some((segment, TailBytes::Zeros)) => segment,
        Some((torn, rest)) => {
            warn_torn(&torn, &rest, FIRST_FRAME_OFFSET);
            shared.forget_bytes(&torn);
            create(shared, torn.seq, 0)?
        }
        None => create(shared, 1, 0)?,
    };
    let segment = Arc::new(segment);
    shared
        .index_mut()
        .push(Arc::clone(&segment), Vec::new(), FIRST_FRAME_OFFSET);
    let active = ActiveSegment {
        segment,
        end: FIRST_FRAME_OFFSET,
        begin: Some(0),
        is_spoiled: false,
    };
    Ok((active, NextSegment::None))
}

fn warn_torn(segment: &Segment, rest: &TailBytes, offset: u32) {
    if let TailBytes::Torn { bytes } = rest {
        tracing::warn!(file = %segment.path.display(), offset, bytes, "truncated an incomplete, unacknowledged batch");
    }
}

/// Calls `make` with the usual length for a segment, and with the minimum length if there is no space for that.
fn spare<T>(
    shared: &LogShared,
    before: u32,
    len: u32,
    make: impl Fn(u32) -> io::Result<T>,
) -> Result<T, FileLogOpenError> {
    let made = match make(capacity_after(shared.options, before, len)) {
        Err(error) if is_full(&error) => make(room_for(len)),
        made => made,
    };
    made.map_err(FileLogOpenError::io("make a segment in", &shared.dir.join("segments")))
}

fn create(shared: &LogShared, seq: u64, before: u32) -> Result<Segment, FileLogOpenError> {
    spare(shared, before, 0, |capacity| shared.create_segment(seq, capacity))
}

/// Writes `doubtful`, records of `last`, into a new segment `seq`, which takes the place of any of that name.
fn rewrite(
    shared: &LogShared,
    last: &Segment,
    doubtful: &[RecordPosition],
    seq: u64,
    before: u32,
) -> Result<(Arc<Segment>, Vec<RecordPosition>, u32), FileLogOpenError> {
    let mut records = Vec::with_capacity(doubtful.len());
    let mut entries = Vec::with_capacity(doubtful.len());
    let mut end = FIRST_FRAME_OFFSET + frame::FRAME_HEAD_BYTES;
    for entry in doubtful {
        let record = read::stored(last, *entry)
            .map_err(|error| FileLogOpenError::damaged(&last.path, entry.at, error.to_string()))?;
        entries.push(RecordPosition { at: end, ..*entry });
        records.push((entry.slot, record));
        end = end.saturating_add(entry.span());
    }
    let fill = |stamp| {
        let mut frames = Vec::new();
        frame::encode(
            &mut frames,
            stamp,
            FrameKind::Begin,
            u64::from(before),
            FIRST_FRAME_OFFSET,
            &[],
        );
        for (slot, record) in &records {
            frame::encode(
                &mut frames,
                stamp,
                record.kind,
                *slot,
                FIRST_FRAME_OFFSET,
                &record.payload,
            );
        }
        frame::encode(&mut frames, stamp, FrameKind::Synced, 0, end, &[]);
        frames
    };
    // `room_for` adds a frame to its argument, which is the first one here.
    let len = end - FIRST_FRAME_OFFSET;
    // A segment that takes the place of one with the same name need not be longer.
    let longer_than = if seq == last.seq {
        last.capacity / 2
    } else {
        last.capacity
    };
    let segment = spare(shared, longer_than, len, |capacity| {
        Segment::create(&shared.dir, &shared.disk, shared.id, seq, capacity, fill)
    })?;
    shared.count_bytes(&segment);
    Ok((Arc::new(segment), entries, end))
}
