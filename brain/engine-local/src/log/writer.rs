//! The one thread that writes records.
//!
//! It takes every append that is queued, writes them as one batch, syncs once and then answers them all. An append whose
//! caller has gone is carried out like any other.
//!
//! Invariants: a batch is written only after everything before it is synced; it is answered `Ok` or shown to readers only
//! after it is synced itself. Space for a segment is taken before the first record goes into it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::disk::is_full;
use super::frame::{self, FRAME_HEAD_BYTES, FrameKind};
use super::record::StoredRecord;
use super::segment::{FIRST_FRAME_OFFSET, RecordPosition, Segment};
use super::shared::{LogShared, capacity_after, room_for};
use engine::log::{AppendError, Slot};
use runtime::kill_points;

/// A batch ends with the record that takes it to this many bytes.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Buffers that have grown beyond this are given back.
const MAX_KEPT_BUFFER_BYTES: usize = 8 << 20;

/// One append.
#[derive(Debug)]
pub(super) struct AppendRequest {
    pub(super) slot: Slot,
    pub(super) record: Bytes,
    pub(super) stored: StoredRecord,
    pub(super) reply: oneshot::Sender<Result<(), AppendError>>,
}

/// Requests of the log's handles to its writer.
#[derive(Debug)]
pub(super) enum WriterCommand {
    Append(AppendRequest),
    /// Go on in a new, short segment.
    Shrink(oneshot::Sender<Result<(), String>>),
}

impl AppendRequest {
    /// Compresses the record: the writer would do so between two syncs.
    pub(super) fn new(slot: Slot, record: Bytes, reply: oneshot::Sender<Result<(), AppendError>>) -> Self {
        Self {
            slot,
            stored: StoredRecord::of(&record),
            record,
            reply,
        }
    }

    fn answer(self, answer: Result<(), AppendError>) {
        if self.reply.send(answer).is_err() {
            tracing::debug!(slot = %self.slot, "no caller waits for this append any more");
        }
    }
}

/// The segment written to.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) segment: Arc<Segment>,
    /// Offset of the next batch.
    pub(super) end: u32,
    /// Set until the first batch is in: the offset at which the segment before this one ends.
    pub(super) begin: Option<u32>,
    /// True if bytes of a failed batch may follow `end`: no other batch may be written there.
    pub(super) is_spoiled: bool,
}

/// The segment to write to next.
#[derive(Debug)]
pub(super) enum NextSegment {
    None,
    Ready(Segment),
    UnderWay(JoinHandle<io::Result<Segment>>),
}

/// The reason why a batch did not become durable.
enum BatchError {
    Full(String),
    Failed(String),
}

impl BatchError {
    fn error(&self) -> AppendError {
        match self {
            BatchError::Full(reason) => AppendError::Full(anyhow::anyhow!("{reason}")),
            BatchError::Failed(reason) => AppendError::Failed(anyhow::anyhow!("{reason}")),
        }
    }
}

/// There was no room for a segment. Holds for the appends that were queued by then, so that a long queue does not retry
/// again and again, but not for appends that came after the first of them was answered.
struct FullDisk {
    reason: String,
    queued: usize,
}

/// State of the thread.
pub(super) struct LogWriter {
    shared: Arc<LogShared>,
    inbox: mpsc::Receiver<WriterCommand>,
    active: ActiveSegment,
    next: NextSegment,
    /// Frames of the batch under construction.
    buffer: Vec<u8>,
    entries: Vec<RecordPosition>,
    staged: Vec<AppendRequest>,
    /// Appends to slots of the batch, with the number of the request that takes the slot.
    duplicates: Vec<(usize, AppendRequest)>,
    is_marked: bool,
    full: Option<FullDisk>,
    /// Writes index files. Nothing waits for it but the end.
    indexing: Option<JoinHandle<()>>,
}

impl LogWriter {
    pub(super) fn new(
        shared: Arc<LogShared>,
        inbox: mpsc::Receiver<WriterCommand>,
        active: ActiveSegment,
        next: NextSegment,
    ) -> Self {
        Self {
            shared,
            inbox,
            active,
            next,
            buffer: Vec::new(),
            entries: Vec::new(),
            staged: Vec::new(),
            duplicates: Vec::new(),
            is_marked: true,
            full: None,
            indexing: None,
        }
    }

    /// Serves until every handle is gone and the queue is empty.
    pub(super) fn run(mut self) {
        while let Some(ask) = self.inbox.blocking_recv() {
            self.serve(ask);
            while self.buffer.len() < MAX_BATCH_BYTES
                && let Ok(ask) = self.inbox.try_recv()
            {
                self.serve(ask);
            }
            self.commit();
            if self.inbox.is_empty() {
                self.mark();
            }
        }
        if let NextSegment::UnderWay(thread) = self.next
            && !matches!(thread.join(), Ok(Ok(_)))
        {
            tracing::debug!("could not finish the prepared segment");
        }
        if let Some(thread) = self.indexing
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes index files panicked");
        }
    }

    fn serve(&mut self, ask: WriterCommand) {
        self.full = self.full.take().filter(|full| full.queued > 0);
        if let Some(full) = &mut self.full {
            full.queued -= 1;
        }
        match ask {
            WriterCommand::Append(request) => self.take(request),
            WriterCommand::Shrink(reply) => {
                self.commit();
                let shrunk = match self.shared.failure() {
                    Some(reason) => Err(reason.to_owned()),
                    None => self.shrink(),
                };
                if reply.send(shrunk).is_err() {
                    tracing::debug!("no caller waits for the log to shrink any more");
                }
            }
        }
    }

    /// Continues in a segment of the first length, and frees the rest of the one before and of one made ahead.
    fn shrink(&mut self) -> Result<(), String> {
        self.is_marked = true;
        if let NextSegment::UnderWay(thread) = std::mem::replace(&mut self.next, NextSegment::None)
            && let Ok(Ok(made)) = thread.join()
        {
            self.next = NextSegment::Ready(made);
        }
        let ActiveSegment {
            segment, end, begin, ..
        } = &self.active;
        if begin.is_some() || self.active.is_spoiled {
            return Ok(()); // it holds nothing yet
        }
        let (seq, before, last) = (segment.seq + 1, *end, Arc::clone(segment));
        let fail = |error: io::Error| {
            let reason = format!("cannot create a segment in {}: {error}", self.shared.dir.display());
            if is_full(&error) {
                reason
            } else {
                self.shared.fail(reason)
            }
        };
        // `control` names the new segment before anything is in it.
        let capacity = capacity_after(self.shared.options, 0, 0);
        let made_ahead = match std::mem::replace(&mut self.next, NextSegment::None) {
            NextSegment::Ready(made) => made,
            _ => self.shared.create_segment(seq, capacity).map_err(fail)?,
        };
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
            frame::encode(
                &mut frames,
                stamp,
                FrameKind::Synced,
                0,
                FIRST_FRAME_OFFSET + FRAME_HEAD_BYTES,
                &[],
            );
            frames
        };
        let shared = &self.shared;
        let next = match Segment::create(&shared.dir, &shared.disk, shared.id, seq, capacity, fill) {
            Ok(next) => next,
            Err(error) => {
                let reason = fail(error);
                self.next = NextSegment::Ready(made_ahead);
                return Err(reason);
            }
        };
        shared.forget_bytes(&made_ahead);
        shared.count_bytes(&next);
        // Now that another segment follows, it may be shorter than it was made. From here on nothing may be written to it:
        // the new segment says where it ends.
        let shorter = match last.shorten(&shared.disk, before) {
            Ok(shorter) => Some(shorter),
            Err(error) => {
                tracing::warn!(file = %last.path.display(), %error, "cannot truncate a segment; its space is freed when it is destroyed");
                None
            }
        };
        let next = Arc::new(next);
        let mut index = shared.index_mut();
        if let Some(shorter) = shorter {
            shared.forget_bytes(&last);
            shared.count_bytes(&shorter);
            index.cut_last(shorter, before);
        }
        index.push(Arc::clone(&next), Vec::new(), FIRST_FRAME_OFFSET + FRAME_HEAD_BYTES);
        drop(index);
        self.active = ActiveSegment {
            segment: next,
            end: FIRST_FRAME_OFFSET + FRAME_HEAD_BYTES,
            begin: None,
            is_spoiled: false,
        };
        Ok(())
    }

    /// Answers a request, or puts it into the batch.
    fn take(&mut self, request: AppendRequest) {
        if let Some(reason) = self.shared.failure() {
            let reason = reason.to_owned();
            return request.answer(Err(BatchError::Failed(reason).error()));
        }
        if let Some(n) = self.entries.iter().rposition(|entry| entry.slot == request.slot.0) {
            return self.duplicates.push((n, request));
        }
        if let Some(answer) = self.stored(&request) {
            return request.answer(answer);
        }
        let len = u32::try_from(request.stored.payload.len()).expect("append bounds records far below 4 GiB");
        if !self.fits(len) {
            self.commit();
            let rolled = match &self.full {
                Some(full) => Err(BatchError::Full(full.reason.clone())),
                None => self.roll(len),
            };
            if let Err(refusal) = rolled {
                if let (BatchError::Full(reason), None) = (&refusal, &self.full) {
                    self.full = Some(FullDisk {
                        reason: reason.clone(),
                        queued: self.inbox.len(),
                    });
                }
                return request.answer(Err(refusal.error()));
            }
        }
        self.stage(request, len);
    }

    /// The answer to an append whose slot is taken.
    fn stored(&self, request: &AppendRequest) -> Option<Result<(), AppendError>> {
        let (segment, entry) = self.shared.index().find(request.slot.0)?;
        Some(match super::read::record(&segment, entry) {
            Ok(record) if record == request.record => Ok(()),
            Ok(record) => Err(AppendError::Taken(request.slot, record)),
            Err(error) => Err(AppendError::Failed(error.into())),
        })
    }

    fn fits(&self, len: u32) -> bool {
        let staged = u32::try_from(self.buffer.len()).unwrap_or(u32::MAX);
        let begin = if self.active.begin.is_some() {
            FRAME_HEAD_BYTES
        } else {
            0
        };
        let end = frame::span(len).and_then(|span| {
            span.checked_add(self.active.end)?
                .checked_add(staged)?
                .checked_add(begin)
        });
        !self.active.is_spoiled && end.is_some_and(|end| end <= self.active.segment.capacity)
    }

    fn stage(&mut self, request: AppendRequest, len: u32) {
        let (stamp, batch) = (self.active.segment.stamp, self.active.end);
        if self.buffer.is_empty()
            && let Some(before) = self.active.begin
        {
            frame::encode(&mut self.buffer, stamp, FrameKind::Begin, u64::from(before), batch, &[]);
        }
        let at = batch + u32::try_from(self.buffer.len()).expect("a batch fits into its segment");
        let (slot, stored) = (request.slot.0, &request.stored);
        frame::encode(&mut self.buffer, stamp, stored.kind, slot, batch, &stored.payload);
        self.entries.push(RecordPosition { slot, at, len });
        self.staged.push(request);
    }

    /// Writes and syncs the batch, shows it to readers, and answers.
    fn commit(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let outcome = self.write();
        kill_points::reach("log-synced");
        if outcome.is_ok() {
            self.active.end += u32::try_from(self.buffer.len()).expect("a batch fits into its segment");
            self.active.begin = None;
            self.is_marked = false;
            self.shared.index_mut().extend(&self.entries, self.active.end);
        }
        for (n, rival) in self.duplicates.drain(..) {
            let winner = &self.staged[n];
            let answer = match &outcome {
                Err(refusal) => Err(refusal.error()),
                Ok(()) if rival.record == winner.record => Ok(()),
                Ok(()) => Err(AppendError::Taken(winner.slot, winner.record.clone())),
            };
            rival.answer(answer);
        }
        for request in self.staged.drain(..) {
            request.answer(outcome.as_ref().copied().map_err(BatchError::error));
        }
        self.entries.clear();
        self.buffer.clear();
        self.buffer.shrink_to(MAX_KEPT_BUFFER_BYTES);
        if outcome.is_ok() {
            self.prepare();
        }
    }

    fn write(&mut self) -> Result<(), BatchError> {
        let ActiveSegment {
            segment,
            end,
            is_spoiled,
            ..
        } = &mut self.active;
        let path = segment.path.display();
        kill_points::reach("log-unwritten");
        match self
            .shared
            .disk
            .write_batch(&segment.file, &self.buffer, u64::from(*end))
        {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                *is_spoiled = true;
                return Err(BatchError::Full(format!("cannot write to {path}: {error}")));
            }
            Err(error) => {
                return Err(BatchError::Failed(
                    self.shared.fail(format!("cannot write to {path}: {error}")),
                ));
            }
        }
        kill_points::reach("log-written");
        if self.shared.options.unsafe_no_fsync {
            return Ok(());
        }
        self.shared
            .disk
            .sync_batch(&segment.file)
            .map_err(|error| BatchError::Failed(self.shared.fail(format!("{path}: {error}"))))
    }

    /// Writes a mark after the last batch. It shows the next opener that the batch is synced. The mark itself is not synced.
    fn mark(&mut self) {
        let ActiveSegment {
            segment,
            end,
            begin,
            is_spoiled,
        } = &self.active;
        let has_room = end
            .checked_add(FRAME_HEAD_BYTES)
            .is_some_and(|end| end <= segment.capacity);
        if self.is_marked || begin.is_some() || *is_spoiled || !has_room || self.shared.failure().is_some() {
            return;
        }
        let mut mark = Vec::with_capacity(FRAME_HEAD_BYTES as usize);
        frame::encode(&mut mark, segment.stamp, FrameKind::Synced, 0, *end, &[]);
        match self.shared.disk.write(&segment.file, &mark, u64::from(*end)) {
            Ok(()) => self.is_marked = true,
            Err(error) if is_full(&error) => self.active.is_spoiled = true,
            Err(error) => {
                self.shared
                    .fail(format!("cannot write to {}: {error}", segment.path.display()));
            }
        }
    }

    /// Has the next segment made in the background once this one is half full, but not before this one holds anything: Open
    /// takes a segment after it as proof of that.
    fn prepare(&mut self) {
        let ActiveSegment { segment, end, .. } = &self.active;
        let half = FIRST_FRAME_OFFSET + (segment.capacity - FIRST_FRAME_OFFSET) / 2;
        if !matches!(self.next, NextSegment::None) || *end < half || self.shared.failure().is_some() {
            return;
        }
        let (seq, capacity) = (
            segment.seq + 1,
            capacity_after(self.shared.options, segment.capacity, 0),
        );
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("log-prepare".into());
        let make = move || {
            let made = shared.create_segment(seq, capacity);
            if let Err(error) = &made
                && !is_full(error)
            {
                shared.fail(format!("cannot create a segment in {}: {error}", shared.dir.display()));
            }
            made
        };
        match thread.spawn(make) {
            Ok(thread) => self.next = NextSegment::UnderWay(thread),
            Err(error) => tracing::debug!(%error, "cannot prepare a segment in the background"),
        }
        self.write_indexes();
    }

    fn write_indexes(&mut self) {
        if self.indexing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("log-index".into());
        match thread.spawn(move || shared.write_indexes()) {
            Ok(thread) => self.indexing = Some(thread),
            Err(error) => tracing::debug!(%error, "cannot write index files in the background"),
        }
    }

    /// Continues in a new segment with room for a record of `len` bytes. Changes nothing if there is no space for it.
    fn roll(&mut self, len: u32) -> Result<(), BatchError> {
        let ActiveSegment {
            segment, end, begin, ..
        } = &self.active;
        // A segment whose first batch failed is made anew.
        let (seq, begin) = begin.map_or((segment.seq + 1, *end), |begin| (segment.seq, begin));
        let prepared = match std::mem::replace(&mut self.next, NextSegment::None) {
            NextSegment::None => None,
            NextSegment::Ready(next) => Some(next),
            NextSegment::UnderWay(thread) => thread.join().ok().and_then(Result::ok),
        };
        let next = match prepared {
            Some(next) if next.seq == seq && next.capacity >= room_for(len) => next,
            other => {
                let capacity = capacity_after(self.shared.options, segment.capacity, len);
                let made = self.shared.create_segment(seq, capacity);
                match other {
                    Some(other) if made.is_ok() && other.seq == seq => self.shared.forget_bytes(&other),
                    Some(other) => self.next = NextSegment::Ready(other),
                    None => {}
                }
                made.map_err(|error| self.refuse(&error))?
            }
        };
        kill_points::reach("log-segment");
        let next = Arc::new(next);
        if seq == self.active.segment.seq {
            self.shared.forget_bytes(&self.active.segment);
            self.shared.index_mut().replace_last(Arc::clone(&next));
        } else {
            self.shared
                .index_mut()
                .push(Arc::clone(&next), Vec::new(), FIRST_FRAME_OFFSET);
        }
        self.active = ActiveSegment {
            segment: next,
            end: FIRST_FRAME_OFFSET,
            begin: Some(begin),
            is_spoiled: false,
        };
        self.is_marked = true;
        Ok(())
    }

    fn refuse(&self, error: &io::Error) -> BatchError {
        let reason = format!("cannot create a segment in {}: {error}", self.shared.dir.display());
        if is_full(error) {
            BatchError::Full(reason)
        } else {
            BatchError::Failed(self.shared.fail(reason))
        }
    }
}
