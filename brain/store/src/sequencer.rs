//! The only writer: takes queued requests, evaluates them in order, appends them as one record, publishes committed batches.
//!
//! A single task owns all mutable state of the write path. While one record is in flight the next batch is evaluated on top of it,
//! so throughput comes from the size of batches, and revisions are dense by construction. The rows that a request needs were read
//! before it was queued: the caller waits for storage, never the writer.
//!
//! Invariant: nothing of a batch is visible before its record and all earlier ones are durable; then the view is published first,
//! events follow in order, replies come last.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::alarm::{CORRUPT, NOSPACE};
use crate::commit_feed::{CommitEvent, CommittedBatch};
use crate::replica::{FlushResult, ImmutableMemtable, Replica};
use crate::state::StoreState;
use batch::{BatchBuilder, BatchReply, BatchRoom, EvaluatedBatch};
use command::{ChangeAnswer, Command, Outcome, QueuedCommand, Reply};
use engine::LogAndRows;
use engine::log::frame::PART_HEADER_BYTES;
use engine::log::writer::{WriteError, Writer};
use engine::log::{DynLog, Slot};
use engine::rows::DynRows;
use lease::limit::LeaseRoom;
use lease::permission::PermittedLeases;
use lease::revoke_expired::LeaseEnds;
use mvcc::auth::Auth;
use mvcc::overlay::{Delta, Head};
use mvcc::record::{Change, Record};
use runtime::kill_points;
use telemetry::metrics::Metrics;

use options::MIN_BATCH_REQUESTS;
pub use options::SequencerOptions;
pub use quota::{DynSpaceQuota, SpaceLevel, SpaceQuota};

pub mod command;

mod alarm;
pub mod auto_compact;
mod batch;
mod fetch;
mod lease;
mod options;
mod quota;
mod rotate;
mod tick;

/// The interval at which leases are checked, as in etcd.
const TICK_INTERVAL: Duration = Duration::from_millis(500);

/// The timeout of the last record of a term, which checkpoints leases. They are not worth a longer wait.
const FINAL_CHECKPOINT_TIMEOUT: Duration = Duration::from_millis(100);

/// The bytes of requests after which space is checked again; a tick checks it, too.
const BYTES_PER_SPACE_CHECK: usize = 1 << 20;

/// Rows are no longer written. The flush has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the flush ended")]
pub struct FlushEnded;

struct UnderWay {
    batch: EvaluatedBatch,
    first: Slot,
    next: Slot,
    /// The record, if it is in one slot.
    payload: Option<Bytes>,
}

/// Called with every committed batch once, in order.
pub type Publish = Box<dyn FnMut(CommitEvent) + Send>;

/// The task that owns the write path.
pub struct Sequencer {
    log: DynLog,
    rows: DynRows,
    state: Arc<StoreState>,
    replica: Replica,
    writer: Writer,
    commands: mpsc::Receiver<QueuedCommand>,
    pending: VecDeque<QueuedCommand>,
    /// Alarms to raise or to disarm. They go before the requests that are refused because of them: as on etcd, a client that was refused finds the
    /// alarm raised.
    alarms: Vec<QueuedCommand>,
    lease_ends: LeaseEnds,
    immutable: mpsc::Sender<Arc<ImmutableMemtable>>,
    flushed: mpsc::Receiver<FlushResult>,
    /// True if the flush had no room for the active memtable when it was due.
    is_rotation_due: bool,
    publish: Publish,
    space: DynSpaceQuota,
    metrics: Arc<Metrics>,
    options: SequencerOptions,
    under_way: FuturesOrdered<BoxFuture<'static, Result<UnderWay, WriteError>>>,
    deltas: VecDeque<Arc<Delta>>,
    head: Head,
    /// The newest users and roles, published or not.
    auth: Arc<Auth>,
    permitted: PermittedLeases,
    /// The bytes of requests since space was last checked.
    unchecked: usize,
    /// The time since which space has been ample while the NOSPACE alarm is raised.
    ample_since: Option<Instant>,
    lease_room: LeaseRoom,
    /// Leases that may expire in one tick.
    expire_limit: usize,
    /// True if the NOSPACE alarm is being raised: it already counts.
    is_raising: bool,
    /// True if the CORRUPT alarm is being raised.
    is_raising_corrupt: bool,
}

/// The channels of a sequencer.
pub struct SequencerChannels {
    /// Requests.
    pub commands: mpsc::Receiver<QueuedCommand>,
    /// Sends memtables to flush.
    pub immutable: mpsc::Sender<Arc<ImmutableMemtable>>,
    /// Receives flushed ones.
    pub flushed: mpsc::Receiver<FlushResult>,
}

impl Sequencer {
    /// Creates the writer of an epoch. `publish` is called with every committed batch once, in order.
    pub fn new(
        LogAndRows { log, rows }: LogAndRows,
        (replica, writer): (Replica, Writer),
        channels: SequencerChannels,
        publish: Publish,
        space: DynSpaceQuota,
        (options, metrics): (SequencerOptions, Arc<Metrics>),
    ) -> Self {
        let head = Head {
            revision: replica.revision(),
            compacted: replica.compacted(),
        };
        Self {
            log,
            rows,
            auth: replica.state().auth().load(),
            state: replica.state().clone(),
            replica,
            writer,
            commands: channels.commands,
            pending: VecDeque::new(),
            alarms: Vec::new(),
            lease_ends: LeaseEnds::default(),
            immutable: channels.immutable,
            flushed: channels.flushed,
            is_rotation_due: false,
            publish,
            space,
            metrics,
            options,
            under_way: FuturesOrdered::new(),
            deltas: VecDeque::new(),
            head,
            permitted: PermittedLeases::default(),
            unchecked: 0,
            ample_since: None,
            lease_room: LeaseRoom::Ample,
            expire_limit: tick::EXPIRES_PER_TICK,
            is_raising: false,
            is_raising_corrupt: false,
        }
    }

    /// Runs until `stop`, then finishes queued requests, checkpoints the remaining time of leases, and passes the last memtable to
    /// the flush. When `lost` is cancelled it stops at once: batches that are not published yet will not be, and are not answered.
    ///
    /// Returns the member's state in memory, whatever the end of the epoch was, and the error for which it could not be finished:
    /// another writer took over, or log or rows failed.
    pub async fn run(mut self, stop: CancellationToken, lost: CancellationToken) -> (Replica, anyhow::Result<()>) {
        let ended = tokio::select! {
        biased;
        () = lost.cancelled() => Ok(()),
        ended = self.work(stop) => ended,
        };
        (self.replica, ended)
    }

    async fn work(&mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut stopping, mut collected) = (false, false);
        let immutable = self.immutable.clone();
        // The term ends then, whatever the outcome of its last record.
        let mut over: Option<Instant> = None;
        loop {
            if stopping && collected && !self.has_work() && self.under_way.is_empty() {
                if over.is_some() {
                    return self.rotate_last().await;
                }
                over = Some(Instant::now() + FINAL_CHECKPOINT_TIMEOUT);
                self.checkpoint_leases();
                continue;
            }
            tokio::select! {
            biased;
            Some(committed) = self.under_way.next() => self.publish_batch(committed?),
            // The flush ends before this task only on failure. Otherwise a wait for it to make room would last for ever.
            flushed = self.flushed.recv() => self.swap_rows(flushed.ok_or(FlushEnded)?),
            () = passed(over) => return self.rotate_last().await,
            Ok(room) = immutable.reserve(), if self.is_rotation_due => self.rotate_into(room),
            Some(expired) = self.lease_ends.next() => self.lease_ends.end(&self.state, expired),
            _ = tick.tick() => self.tick(),
            () = stop.cancelled(), if !stopping => {
            self.commands.close();
            stopping = true;
            }
            () = std::future::ready(()), if self.has_work() && self.may_take() => self.take(&mut tick).await?,
            // The last one follows those that were being queued when the queue was closed.
            command = self.commands.recv(), if !collected && (self.may_collect() || (stopping && self.commands.is_empty())) => match command {
            Some(command) => self.collect(command),
            None => collected = true,
            },
            }
        }
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.alarms.is_empty() || self.lease_ends.ready() > 0
    }

    /// Returns true if another batch may be evaluated.
    fn may_take(&self) -> bool {
        let queued = self.pending.len() + self.lease_ends.ready() + self.commands.len();
        self.options.is_room(self.under_way.len(), queued) && self.may_remember()
    }

    /// Returns true if more requests may be collected for another batch: there are few of them yet.
    fn may_collect(&self) -> bool {
        self.pending.len() < MIN_BATCH_REQUESTS
            && self.options.is_room(self.under_way.len(), MIN_BATCH_REQUESTS)
            && self.may_remember()
    }

    /// Takes a request and those queued with it, for a batch as soon as there is room for it.
    fn collect(&mut self, command: QueuedCommand) {
        self.pending.push_back(command);
        while self.pending.len() < MIN_BATCH_REQUESTS
            && let Ok(command) = self.commands.try_recv()
        {
            self.pending.push_back(command);
        }
    }

    fn may_remember(&self) -> bool {
        // While rows refuse an immutable memtable, no key is written: the remaining work takes no room.
        self.replica.immutables().next().is_none()
            || self.replica.memtable_bytes() < self.options.memtable_bytes
            || self.state.is_flush_refused()
    }

    /// Evaluates queued requests and appends the batch; requests that exceed one batch return to their place in the queue.
    async fn take(&mut self, tick: &mut Interval) -> anyhow::Result<()> {
        let others_wait = !self.pending.is_empty() || !self.commands.is_empty();
        let mut commands = self.lease_ends.take(self.options.batch_requests, others_wait);
        let mut bytes: usize = commands.iter().map(|end| end.size).sum();
        while commands.len() < self.options.batch_requests && (commands.is_empty() || bytes < self.options.batch_bytes)
        {
            let Some(command) = self.pending.pop_front().or_else(|| self.commands.try_recv().ok()) else {
                break;
            };
            if command.is_abandoned() {
                continue;
            }
            bytes += command.size;
            commands.push_back(command);
        }
        self.unchecked += bytes;
        let full = self.unchecked >= BYTES_PER_SPACE_CHECK && self.check_space();
        let is_raised = self.state.has_alarm(NOSPACE);
        self.is_raising &= !is_raised;
        self.is_raising_corrupt &= !self.state.has_alarm(CORRUPT);
        let no_space = full || self.is_raising || is_raised;
        for alarm in self.alarms.drain(..).rev() {
            commands.push_front(alarm);
        }
        let under_way = self.deltas.iter().cloned().collect();
        let permitted = std::mem::take(&mut self.permitted);
        let head = (self.head, self.auth.clone(), permitted);
        let room = BatchRoom {
            record_bytes: self.options.batch_bytes,
            is_space: !no_space,
            leases: self.lease_room,
        };
        let builder = BatchBuilder::new(self.state.clone(), under_way, head, room);
        let mut evaluating = pin!(builder.evaluate(commands));
        // A long evaluation yields the thread, and batches in flight make progress. A batch published in the meantime is then
        // overlaid on itself, which changes nothing.
        let immutable = self.immutable.clone();
        let mut batch = loop {
            tokio::select! {
            biased;
            batch = &mut evaluating => break batch,
            _ = tick.tick() => self.tick(),
            Ok(room) = immutable.reserve(), if self.is_rotation_due => self.rotate_into(room),
            Some(committed) = self.under_way.next() => self.publish_batch(committed?),
            flushed = self.flushed.recv() => self.swap_rows(flushed.ok_or(FlushEnded)?),
            }
        };
        self.permitted = std::mem::take(&mut batch.permitted);
        while let Some(command) = batch.rest.pop_back() {
            bytes -= command.size;
            self.unchecked -= command.size.min(self.unchecked);
            match command.request {
                Command::Revoke { expired: true, .. } => self.lease_ends.put_back(command),
                _ => self.pending.push_front(command),
            }
        }
        self.send(batch, bytes);
        Ok(())
    }

    fn send(&mut self, batch: EvaluatedBatch, size: usize) {
        self.head = batch.head;
        self.auth = batch.auth.clone();
        self.deltas.push_back(batch.delta.clone());
        let first = self.writer.next();
        let slots = if batch.record.entries.is_empty() {
            Vec::new()
        } else {
            let mut bytes = self.writer.buffer(size + batch.record.entries.len() * 64);
            bytes.reserve(batch.record.encoded_len());
            batch.record.encode_raw(&mut bytes);
            self.writer.take_slots(bytes)
        };
        let payload = match slots.as_slice() {
            [(_, bytes)] => Some(bytes.slice(PART_HEADER_BYTES..)),
            _ => None,
        };
        let next = self.writer.next();
        let append = self.writer.append(&self.log, slots);
        self.under_way.push_back(Box::pin(async move {
            append.await?;
            Ok(UnderWay {
                batch,
                first,
                next,
                payload,
            })
        }));
    }

    /// Publishes a committed batch.
    fn publish_batch(&mut self, under_way: UnderWay) {
        let UnderWay {
            batch,
            first,
            next,
            payload,
        } = under_way;
        kill_points::reach("batch-durable");
        self.deltas.pop_front();
        let needs_lease_check = batch.record.entries.is_empty();
        let compacted = self.replica.compacted();
        if !needs_lease_check {
            count(&batch.record, &self.metrics);
            self.note_alarms(&batch.record);
            for keys in batch.lease_deletes {
                self.metrics.mvcc.count_request(0, 0, keys);
            }
            let events = self.replica.apply(batch.record, batch.superseded, first..next);
            let events = events.into_iter().map(Arc::new).collect();
            (self.publish)(CommitEvent::Batch(CommittedBatch {
                first,
                next,
                payload,
                events,
            }));
        }
        kill_points::reach("batch-published");
        for (reply, outcome) in batch.replies {
            if let BatchReply::Outcome(Ok(ChangeAnswer {
                result: Some(result), ..
            })) = &outcome
            {
                let counts = result.counts();
                let mvcc = &self.metrics.mvcc;
                mvcc.count_request(counts.ranges, counts.puts, counts.deletes);
            }
            let outcome = match outcome {
                BatchReply::Outcome(result) => Reply::Outcome(Outcome {
                    result,
                    needs_lease_check,
                }),
                BatchReply::Again(request, why) => Reply::Again(request, why),
            };
            // The client may be gone.
            drop(reply.send(outcome));
        }
        self.lease_ends.extend(&self.state, batch.again);
        if self.replica.active_bytes() >= self.options.flush_bytes || self.replica.compacted() > compacted {
            self.rotate();
        }
    }

    fn swap_rows(&mut self, flushed: FlushResult) {
        self.replica.swap_rows(flushed);
        (self.publish)(CommitEvent::Rows);
    }
}

/// Waits until `then`, or for ever.
async fn passed(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Counts the changes of a record. Operations of clients are counted where their results are known.
fn count(record: &Record, metrics: &Metrics) {
    for entry in &record.entries {
        match &entry.change {
            Some(Change::Keys(keys)) => {
                let puts = keys.changes.iter().filter(|change| !change.is_delete());
                let bytes: usize = puts.map(|change| change.key.len() + change.value.len()).sum();
                metrics.mvcc.put_size.add(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Some(Change::Grant(grant)) => {
                metrics.lease.granted.inc();
                metrics.lease.ttl.observe(grant.ttl as f64);
            }
            Some(Change::Revoke(_)) => metrics.lease.revoked.inc(),
            Some(
                Change::Compact(_) | Change::Checkpoint(_) | Change::Alarm(_) | Change::Auth(_) | Change::Token(_),
            )
            | None => {}
        }
    }
}
