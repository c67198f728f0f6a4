//! Recovery of the end of a log that was just opened: cuts a torn batch, and writes again a batch that may not be on disk.
//!
//! The last batch may be in the page cache only, even after a sync that seems to succeed. So no reader sees it before it
//! has been written a second time, into a new file, and synced there. Everything before it is proved synced by the batch
//! itself, and so is the batch if a mark follows it: then, as after every ordinary stop, nothing needs to be done.

use std::io;
use std::sync::Arc;

use super::OpenError;
use super::disk::is_full;
use super::frame::{self, Kind};
use super::read;
use super::scan::{Rest, Scanned};
use super::segment::{Entry, FRAMES, Segment};
use super::shared::{Shared, capacity_after, room_for};
use super::writer::{Active, Next};

/// The state of the end of the log.
#[derive(Debug)]
pub(super) struct End {
    /// The last segment with a batch in it; the log is empty without one.
    pub(super) last: Option<(Arc<Segment>, Scanned, Rest)>,
    /// The segment after that one.
    pub(super) next: Option<(Segment, Rest)>,
}

impl End {
    /// Bytes of the segment that is not in the index.
    pub(super) fn bytes(&self) -> u64 {
        self.next.as_ref().map_or(0, |(segment, _)| u64::from(segment.capacity))
    }
}

/// Makes the end of the log certain, and returns where writing continues.
pub(super) fn recover_tail(shared: &Shared, end: End) -> Result<(Active, Next), OpenError> {
    let Some((last, scanned, rest)) = end.last else {
        return begin(shared, end.next);
    };
    warn_torn(&last, &rest, scanned.end);
    let next = match end.next {
        Some((torn, rest @ Rest::Torn { .. })) => {
            warn_torn(&torn, &rest, FRAMES);
            shared.forget_bytes(&torn);
            Some(create(shared, torn.seq, last.capacity)?)
        }
        next => next.map(|(segment, _)| segment),
    };
    if scanned.is_synced && rest == Rest::Zeros {
        let active = Active {
            segment: last,
            end: scanned.end,
            begin: None,
            is_spoiled: false,
        };
        return Ok((active, next.map_or(Next::None, Next::Ready)));
    }
    let doubtful: Vec<Entry> = if scanned.is_synced {
        Vec::new()
    } else {
        scanned
            .entries
            .iter()
            .filter(|entry| entry.at >= scanned.batch)
            .copied()
            .collect()
    };
    let keeps_last = scanned.is_synced || scanned.batch > FRAMES;
    let (seq, before, next) = if keeps_last {
        let before = if scanned.is_synced { scanned.end } else { scanned.batch };
        // `control` must name the segment before it holds anything.
        let place = match next {
            Some(next) => next,
            None => create(shared, last.seq + 1, last.capacity)?,
        };
        shared.forget_bytes(&place);
        (place.seq, before, Next::None)
    } else {
        shared.forget_bytes(&last);
        (
            last.seq,
            scanned.begin.unwrap_or(FRAMES),
            next.map_or(Next::None, Next::Ready),
        )
    };
    let (segment, entries, end) = rewrite(shared, &last, &doubtful, seq, before)?;
    let mut index = shared.index_mut();
    if keeps_last {
        let shorter = last
            .shorten(&shared.disk, before)
            .map_err(OpenError::io("shorten", &last.path))?;
        shared.forget_bytes(&last);
        shared.count_bytes(&shorter);
        index.cut_last(shorter, before);
    } else {
        index.drop_last();
    }
    index.push(Arc::clone(&segment), entries, end);
    let active = Active {
        segment,
        end,
        begin: None,
        is_spoiled: false,
    };
    Ok((active, next))
}

/// Returns the write position of a log without records.
fn begin(shared: &Shared, next: Option<(Segment, Rest)>) -> Result<(Active, Next), OpenError> {
    let segment = match next {
        Some((segment, Rest::Zeros)) => segment,
        Some((torn, rest)) => {
            warn_torn(&torn, &rest, FRAMES);
            shared.forget_bytes(&torn);
            create(shared, torn.seq, 0)?
        }
        None => create(shared, 1, 0)?,
    };
    let segment = Arc::new(segment);
    shared.index_mut().push(Arc::clone(&segment), Vec::new(), FRAMES);
    let active = Active {
        segment,
        end: FRAMES,
        begin: Some(0),
        is_spoiled: false,
    };
    Ok((active, Next::None))
}

fn warn_torn(segment: &Segment, rest: &Rest, offset: u32) {
    if let Rest::Torn { bytes } = rest {
        tracing::warn!(file = %segment.path.display(), offset, bytes, "truncated an incomplete, unacknowledged batch");
    }
}

/// Calls `make` with the usual length for a segment, and with the minimum length if there is no space for that.
fn spare<T>(shared: &Shared, before: u32, len: u32, make: impl Fn(u32) -> io::Result<T>) -> Result<T, OpenError> {
    let made = match make(capacity_after(shared.options, before, len)) {
        Err(error) if is_full(&error) => make(room_for(len)),
        made => made,
    };
    made.map_err(OpenError::io("make a segment in", &shared.dir.join("segments")))
}

fn create(shared: &Shared, seq: u64, before: u32) -> Result<Segment, OpenError> {
    spare(shared, before, 0, |capacity| shared.create_segment(seq, capacity))
}

/// Writes `doubtful`, records of `last`, into a new segment `seq`, which takes the place of any of that name.
fn rewrite(
    shared: &Shared,
    last: &Segment,
    doubtful: &[Entry],
    seq: u64,
    before: u32,
) -> Result<(Arc<Segment>, Vec<Entry>, u32), OpenError> {
    let mut records = Vec::with_capacity(doubtful.len());
    let mut entries = Vec::with_capacity(doubtful.len());
    let mut end = FRAMES + frame::HEAD;
    for entry in doubtful {
        let record =
            read::record(last, *entry).map_err(|error| OpenError::damaged(&last.path, entry.at, error.to_string()))?;
        entries.push(Entry { at: end, ..*entry });
        records.push((entry.slot, record));
        end = end.saturating_add(entry.span());
    }
    let fill = |stamp| {
        let mut frames = Vec::new();
        frame::encode(&mut frames, stamp, Kind::Begin, u64::from(before), FRAMES, &[]);
        for (slot, record) in &records {
            frame::encode(&mut frames, stamp, Kind::Record, *slot, FRAMES, record);
        }
        frame::encode(&mut frames, stamp, Kind::Synced, 0, end, &[]);
        frames
    };
    // `room_for` adds a frame to its argument, which is the first one here.
    let len = end - FRAMES;
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
