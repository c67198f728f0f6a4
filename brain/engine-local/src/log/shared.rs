//! State shared by the handles of a log, its writer and its helpers.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::FileLogOptions;
use super::control::{Control, ControlState};
use super::disk::{Disk, is_full};
use super::frame;
use super::index::SegmentSlots;
use super::page::PAGE_BYTES;
use super::segment::{FIRST_FRAME_OFFSET, Segment};
use super::segment_index;
use engine::log::LogId;

/// Lock order: `destroying`, `control`, `index`.
#[derive(Debug)]
pub(super) struct LogShared {
    pub(super) dir: PathBuf,
    pub(super) disk: Disk,
    pub(super) options: FileLogOptions,
    pub(super) id: LogId,
    index: RwLock<SegmentSlots>,
    control: Mutex<Control>,
    destroying: Mutex<()>,
    failed: OnceLock<String>,
    bytes: AtomicU64,
}

impl LogShared {
    pub(super) fn new(
        dir: PathBuf,
        disk: Disk,
        options: FileLogOptions,
        control: Control,
        index: SegmentSlots,
        bytes: u64,
    ) -> Self {
        Self {
            dir,
            disk,
            options,
            id: control.id,
            index: RwLock::new(index),
            control: Mutex::new(control),
            destroying: Mutex::new(()),
            failed: OnceLock::new(),
            bytes: AtomicU64::new(bytes),
        }
    }

    pub(super) fn index(&self) -> RwLockReadGuard<'_, SegmentSlots> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn index_mut(&self) -> RwLockWriteGuard<'_, SegmentSlots> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count_bytes(&self, segment: &Segment) {
        self.bytes.fetch_add(u64::from(segment.capacity), Ordering::Relaxed);
    }

    pub(super) fn forget_bytes(&self, segment: &Segment) {
        self.bytes.fetch_sub(u64::from(segment.capacity), Ordering::Relaxed);
    }

    /// The reason why the log may not write or answer any more.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Ends the log's service: from now on every call fails.
    pub(super) fn fail(&self, reason: String) -> String {
        if self.failed.set(reason.clone()).is_ok() {
            tracing::error!(reason, "the log failed");
        }
        reason
    }

    /// The present contents of `control`.
    pub(super) fn state(&self) -> ControlState {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).state
    }

    /// Changes `control` durably, if `change` returns another state. Does nothing when the log has failed.
    pub(super) fn change(&self, change: impl FnOnce(ControlState) -> ControlState) -> io::Result<()> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = self.failure() {
            return Err(io::Error::other(format!("the log failed earlier: {reason}")));
        }
        let old = control.state;
        let new = change(old);
        if new == old {
            return Ok(());
        }
        let synced = self.index().synced();
        control.store(ControlState { synced, ..new }).map_err(|error| {
            if is_full(&error) {
                return error;
            }
            io::Error::other(self.fail(format!("cannot write the control file: {error}")))
        })
    }

    /// Removes the oldest segments that hold nothing at or above the watermark.
    pub(super) fn destroy(&self) -> io::Result<()> {
        let _one_at_a_time = self.destroying.lock().unwrap_or_else(PoisonError::into_inner);
        let watermark = self.state().watermark;
        let dead = self.index().destroyable(watermark);
        let Some(newest) = dead.last() else { return Ok(()) };
        // From here on the files are garbage, whether or not they are removed: the next open removes the rest.
        self.change(|state| ControlState {
            first: newest.seq + 1,
            ..state
        })?;
        self.index_mut().drop_oldest(dead.len());
        for segment in &dead {
            self.forget_bytes(segment);
            fs::remove_file(&segment.path)?;
            match fs::remove_file(segment_index::path(&self.dir, segment.seq)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.disk.sync_dir(&self.dir)
    }

    /// Writes the missing index files of segments that are no longer written to.
    pub(super) fn write_indexes(&self) {
        let mut from = 0;
        while let Some(next) = self.write_index(from) {
            from = next;
        }
    }

    /// Writes the first missing index file from the segment `seq` on. Returns the segment at which to continue.
    fn write_index(&self, seq: u64) -> Option<u64> {
        // The segment must not be destroyed at the same time: its index file would remain.
        let _no_other = self.destroying.lock().unwrap_or_else(PoisonError::into_inner);
        let (segment, entries, end) = self.index().unindexed(seq)?;
        match segment_index::write(&self.dir, self.id, &segment, (&entries, end)) {
            Ok(()) => self.index_mut().set_indexed(segment.seq),
            Err(error) => {
                tracing::debug!(segment = segment.seq, %error, "no index file; the next start reads the whole segment");
            }
        }
        Some(segment.seq + 1)
    }

    /// Makes the segment `seq`, or makes it anew, and names it in `control`.
    pub(super) fn create_segment(&self, seq: u64, capacity: u32) -> io::Result<Segment> {
        let segment = Segment::create(&self.dir, &self.disk, self.id, seq, capacity, |_| Vec::new())?;
        self.change(|state| ControlState {
            last: state.last.max(seq),
            ..state
        })?;
        self.count_bytes(&segment);
        Ok(segment)
    }
}

/// Length of the segment after one of `before` bytes. It must have room for a record of `len` bytes at least.
pub(super) fn capacity_after(options: FileLogOptions, before: u32, len: u32) -> u32 {
    let grown = before.saturating_mul(2).clamp(
        options.first_segment_bytes,
        options.segment_bytes.max(options.first_segment_bytes),
    );
    grown.max(room_for(len))
}

/// Length of a segment that has room for one record of `len` bytes, and little more.
pub(super) fn room_for(len: u32) -> u32 {
    // The record, the frame that begins the segment and the mark that it is synced.
    let frames = [len, 0, 0]
        .into_iter()
        .filter_map(frame::span)
        .fold(FIRST_FRAME_OFFSET, u32::saturating_add);
    frames
        .checked_next_multiple_of(PAGE_BYTES as u32)
        .unwrap_or(u32::MAX - u32::MAX % PAGE_BYTES as u32)
}
