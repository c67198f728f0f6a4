//! The one writer: takes what is queued, evaluates it in order, appends it as one record, publishes what is committed.
//!
//! A single task owns all mutable state of the write path. While one record is on its way the next batch is evaluated over
//! it, so throughput comes from the size of batches, and revisions are dense by construction.
//!
//! Invariant: nothing of a batch is visible before its record and all before it are durable; then the view is published
//! first, events follow in order, replies come last.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::feed::{News, Shown};
use crate::log::frame::PART_HEADER;
use crate::log::writer::{WriteError, Writer};
use crate::log::{Log, Slot};
use crate::metrics::Metrics;
use crate::mvcc::overlay::{Delta, Head};
use crate::mvcc::record::{Change, Record};
use crate::replica::{Flushed, Frozen, Replica};
use crate::rows::{Rows, RowsError};
use crate::state::{CORRUPT, NOSPACE, State};
use batch::{Batch, Builder};
use command::{Command, Outcome};

use options::FILLED;
pub use options::Options;

pub mod command;

mod batch;
mod options;
mod upkeep;

/// How often leases are looked at, as etcd does.
const TICK: Duration = Duration::from_millis(500);

/// How long a hand-over may wait for its own record. What it notes of leases is not worth more.
const HAND_OVER: Duration = Duration::from_millis(100);

/// Bytes of requests after which space is looked at again; a tick does, too.
const CHECK_SPACE_EVERY: usize = 1 << 20;

/// Rows are not written any more. The flush knows why.
#[derive(Debug, thiserror::Error)]
#[error("the flush ended")]
pub struct FlushEnded;

/// Whether there is space for more.
pub trait Space: Send + Sync + 'static {
    /// The quota is used up or the disk is nearly full. `size` is what log and rows occupy, in bytes.
    fn exceeded(&mut self, size: u64) -> bool;
}

struct UnderWay {
    batch: Batch,
    first: Slot,
    next: Slot,
    /// The record, if it is in one slot.
    payload: Option<Bytes>,
}

/// The task that owns the write path.
pub struct Sequencer<L: Log, R: Rows, E, Q> {
    log: L,
    rows: R,
    state: Arc<State<R>>,
    replica: Replica<R>,
    writer: Writer,
    commands: mpsc::Receiver<Command>,
    own: VecDeque<Command>,
    frozen: mpsc::Sender<Arc<Frozen>>,
    flushed: mpsc::Receiver<Flushed<R::Snapshot>>,
    publish: E,
    space: Q,
    metrics: Arc<Metrics>,
    options: Options,
    under_way: FuturesOrdered<BoxFuture<'static, Result<UnderWay, WriteError>>>,
    deltas: VecDeque<Arc<Delta>>,
    head: Head,
    /// Bytes of requests since space was looked at.
    unchecked: usize,
    /// The NOSPACE alarm is on its way: it counts already.
    is_raising: bool,
    /// The CORRUPT alarm is on its way.
    is_raising_corrupt: bool,
}

/// The channels of a sequencer.
pub struct Channels<S> {
    /// Requests.
    pub commands: mpsc::Receiver<Command>,
    /// Where generations to flush go.
    pub frozen: mpsc::Sender<Arc<Frozen>>,
    /// Where flushed ones come back.
    pub flushed: mpsc::Receiver<Flushed<S>>,
}

impl<L, R, E, Q> Sequencer<L, R, E, Q>
where
    L: Log,
    R: Rows,
    E: FnMut(News) + Send + 'static,
    Q: Space,
{
    /// The writer of an epoch. `publish` is given every committed batch once, in order.
    pub fn new(
        (log, rows): (L, R),
        (replica, writer): (Replica<R>, Writer),
        channels: Channels<R::Snapshot>,
        publish: E,
        space: Q,
        (options, metrics): (Options, Arc<Metrics>),
    ) -> Self {
        let head = Head {
            revision: replica.revision(),
            compacted: replica.compacted(),
        };
        Self {
            log,
            rows,
            state: replica.state().clone(),
            replica,
            writer,
            commands: channels.commands,
            own: VecDeque::new(),
            frozen: channels.frozen,
            flushed: channels.flushed,
            publish,
            space,
            metrics,
            options,
            under_way: FuturesOrdered::new(),
            deltas: VecDeque::new(),
            head,
            unchecked: 0,
            is_raising: false,
            is_raising_corrupt: false,
        }
    }

    /// Runs until `stop`, then finishes what is queued, notes how long leases have left, and hands the last generation to the
    /// flush. When `lost` is cancelled it stops where it is: nothing that is not published yet will be, nor is it answered.
    ///
    /// Answers with what the member has in memory, whatever became of the epoch, and why it could not be finished:
    /// another writer took over, or log or rows failed.
    pub async fn run(mut self, stop: CancellationToken, lost: CancellationToken) -> (Replica<R>, anyhow::Result<()>) {
        let ended = tokio::select! {
            biased;
            () = lost.cancelled() => Ok(()),
            ended = self.work(stop) => ended,
        };
        (self.replica, ended)
    }

    async fn work(&mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = false;
        // When a hand-over ends, whatever became of its record.
        let mut over: Option<Instant> = None;
        loop {
            if !self.own.is_empty() && self.may_take() {
                self.take().await?;
                continue;
            }
            if stopping && self.own.is_empty() && self.commands.is_empty() && self.under_way.is_empty() {
                if over.is_some() {
                    return self.freeze().await;
                }
                over = Some(Instant::now() + HAND_OVER);
                self.hand_over();
                continue;
            }
            tokio::select! {
                biased;
                Some(committed) = self.under_way.next() => self.publish_batch(committed?).await?,
                // It ends before this task only when it fails. Who waits for it to make room would wait for ever.
                flushed = self.flushed.recv() => self.swap_rows(flushed.ok_or(FlushEnded)?),
                () = passed(over) => return self.freeze().await,
                _ = tick.tick() => self.tick().await?,
                () = stop.cancelled(), if !stopping => {
                    self.commands.close();
                    stopping = true;
                }
                Some(command) = self.commands.recv(), if self.may_collect() => self.collect(command),
            }
        }
    }

    /// Another batch may be evaluated.
    fn may_take(&self) -> bool {
        let queued = self.own.len() + self.commands.len();
        self.options.is_room(self.under_way.len(), queued) && self.may_remember()
    }

    /// Requests may be collected for another batch, if they are not many yet.
    fn may_collect(&self) -> bool {
        self.own.len() < FILLED && self.options.is_room(self.under_way.len(), FILLED) && self.may_remember()
    }

    /// Takes over a request and those that came with it, for a batch as soon as there is room for it.
    fn collect(&mut self, command: Command) {
        self.own.push_back(command);
        while self.own.len() < FILLED
            && let Ok(command) = self.commands.try_recv()
        {
            self.own.push_back(command);
        }
    }

    fn may_remember(&self) -> bool {
        // While rows refuse what is sealed, no key is written: what there is to do takes no room.
        self.replica.sealed().next().is_none()
            || self.replica.recent_bytes() < self.options.recent_bytes
            || self.state.is_flush_refused()
    }

    /// Evaluates what is queued and sends it on its way.
    async fn take(&mut self) -> anyhow::Result<()> {
        let mut commands = VecDeque::new();
        let mut bytes = 0;
        while commands.len() < self.options.batch_requests && (commands.is_empty() || bytes < self.options.batch_bytes)
        {
            let Some(command) = self.own.pop_front().or_else(|| self.commands.try_recv().ok()) else {
                break;
            };
            if command.is_abandoned() {
                continue;
            }
            bytes += command.size;
            commands.push_back(command);
        }
        self.unchecked += bytes;
        let full = self.unchecked >= CHECK_SPACE_EVERY && self.check_space();
        let is_raised = self.state.has_alarm(NOSPACE);
        self.is_raising &= !is_raised;
        self.is_raising_corrupt &= !self.state.has_alarm(CORRUPT);
        let no_space = full || self.is_raising || is_raised;
        let mut builder = Builder::new(&self.state, self.deltas.iter().cloned().collect(), self.head, no_space);
        if let Err(error) = builder.evaluate(&mut commands).await {
            return self.give_up(error);
        }
        let batch = builder.finish();
        for command in commands.into_iter().rev() {
            self.own.push_front(command);
        }
        self.send(batch, bytes);
        if !self.own.is_empty() {
            // What waits needs everything before it published.
            // The log may need what the flush gives up, and the flush somebody who takes its news.
            while !self.under_way.is_empty() {
                tokio::select! {
                    biased;
                    Some(committed) = self.under_way.next() => self.publish_batch(committed?).await?,
                    flushed = self.flushed.recv() => self.swap_rows(flushed.ok_or(FlushEnded)?),
                }
            }
        }
        Ok(())
    }

    /// Nothing of a batch was appended that needs rows which cannot be read now: whoever waits for it is told that it timed
    /// out, and what nobody waits for comes again.
    fn give_up(&mut self, error: RowsError) -> anyhow::Result<()> {
        match error {
            RowsError::Unavailable(_) | RowsError::Unknown(_) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "requests that need rows time out"
                );
                self.state.leases().retry();
                self.is_raising = false;
                self.is_raising_corrupt = false;
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    fn send(&mut self, batch: Batch, size: usize) {
        self.head = batch.head;
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
            [(_, bytes)] => Some(bytes.slice(PART_HEADER..)),
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

    /// Shows a committed batch to the world.
    async fn publish_batch(&mut self, under_way: UnderWay) -> anyhow::Result<()> {
        let UnderWay {
            batch,
            first,
            next,
            payload,
        } = under_way;
        self.deltas.pop_front();
        let is_unproved = batch.record.entries.is_empty();
        if !is_unproved {
            let compacted = self.replica.compacted();
            count(&batch.record, &self.metrics);
            let events = self.replica.apply(batch.record, batch.superseded, (first, next));
            let events = events.into_iter().map(Arc::new).collect();
            (self.publish)(News::Batch(Shown {
                first,
                next,
                payload,
                events,
            }));
            if self.replica.active_bytes() >= self.options.flush_bytes || self.replica.compacted() > compacted {
                self.freeze().await?;
            }
        }
        for (reply, told) in batch.replies {
            // Whoever has gone away does not need to know.
            drop(reply.send(Outcome { told, is_unproved }));
        }
        Ok(())
    }

    /// Hands the active generation to the flush and begins a new one.
    async fn freeze(&mut self) -> anyhow::Result<()> {
        let Some(frozen) = self.replica.seal() else {
            return Ok(());
        };
        // Wait for room, but take back what is flushed meanwhile: the flush may be waiting for that.
        let sender = self.frozen.clone();
        loop {
            tokio::select! {
                permit = sender.reserve() => {
                    permit.map_err(|_| FlushEnded)?.send(frozen);
                    return Ok(());
                }
                Some(flushed) = self.flushed.recv() => self.swap_rows(flushed),
            }
        }
    }

    fn swap_rows(&mut self, flushed: Flushed<R::Snapshot>) {
        self.replica.swap_rows(flushed);
        (self.publish)(News::Rows);
    }
}

/// Waits until then, or for ever.
async fn passed(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Counts what a record does.
fn count(record: &Record, metrics: &Metrics) {
    for entry in &record.entries {
        match &entry.change {
            Some(Change::Keys(keys)) => {
                let deletes = keys.changes.iter().filter(|change| change.is_delete()).count();
                metrics.mvcc.txns.inc();
                metrics.mvcc.deletes.inc_by(deletes as u64);
                metrics.mvcc.puts.inc_by((keys.changes.len() - deletes) as u64);
                let bytes: usize = keys
                    .changes
                    .iter()
                    .map(|change| change.key.len() + change.value.len())
                    .sum();
                metrics.mvcc.put_size.add(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Some(Change::Grant(grant)) => {
                metrics.lease.granted.inc();
                metrics.lease.ttl.observe(grant.ttl as f64);
            }
            Some(Change::Revoke(_)) => metrics.lease.revoked.inc(),
            Some(Change::Compact(_) | Change::Checkpoint(_) | Change::Alarm(_)) | None => {}
        }
    }
}
