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

use anyhow::Context;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::log::writer::{WriteError, Writer};
use crate::log::{Log, Slot};
use crate::metrics::Metrics;
use crate::mvcc::apply::Applier;
use crate::mvcc::overlay::{Delta, Head};
use crate::mvcc::record::{Change, Record};
use crate::mvcc::view::View;
use crate::mvcc::{Committed, LeaseId, Revision};
use crate::recent::{Generation, Recent};
use crate::rows::Rows;
use crate::state::{NOSPACE, State, since_boot};
use batch::{Batch, Builder};
use command::{Command, Request};

pub mod command;

mod batch;

/// How often leases are looked at, as etcd does.
const TICK: Duration = Duration::from_millis(500);

/// Leases that expire in one tick at most (etcd: 1,000 a second).
const EXPIRE_LIMIT: usize = 500;

/// Lease checkpoints in one tick at most (etcd: 1,000 a second).
const CHECKPOINT_LIMIT: usize = 500;

/// Bytes of requests after which space is looked at again; a tick does, too.
const CHECK_SPACE_EVERY: usize = 1 << 20;

/// Bounds of the write path.
#[derive(Debug, Clone)]
pub struct Options {
    /// This member's id.
    pub member: u64,
    /// Records under way at once.
    pub in_flight: usize,
    /// Requests in a batch at most.
    pub batch_requests: usize,
    /// Bytes of requests in a batch at most, the first request excepted.
    pub batch_bytes: usize,
    /// Bytes of recent versions after which they are flushed to rows.
    pub flush_bytes: usize,
    /// The longest that something stays unflushed.
    pub flush_interval: Duration,
    /// Bytes of recent versions at which writers wait for the flush.
    pub recent_bytes: usize,
}

/// A generation that nobody writes any more: what is to be flushed.
#[derive(Debug)]
pub struct Frozen {
    /// Its versions.
    pub generation: Arc<Generation>,
    /// The slot behind its last record.
    pub marker: Slot,
    /// The revision behind its last record.
    pub revision: Revision,
    /// The compacted revision behind its last record.
    pub compacted: Revision,
    /// Lease rows that changed; `None` is gone.
    pub lease_rows: Vec<(Bytes, Option<Bytes>)>,
    /// Alarms behind its last record: kind and member.
    pub alarms: Vec<(i32, u64)>,
}

/// Rows that changed in the background.
#[derive(Debug)]
pub struct Flushed<S> {
    /// The generation that is in them now, if one was flushed, and the revision behind it.
    pub generation: Option<(Arc<Generation>, Revision)>,
    /// The rows.
    pub snapshot: S,
}

/// Whether there is space for more.
pub trait Space: Send + 'static {
    /// The quota is used up or the disk is nearly full. `size` is what log and rows occupy, in bytes.
    fn exceeded(&mut self, size: u64) -> bool;
}

struct UnderWay {
    batch: Batch,
    first: Slot,
    next: Slot,
}

/// The task that owns the write path.
pub struct Sequencer<L: Log, R: Rows, E, Q> {
    log: L,
    rows: R,
    state: Arc<State<R>>,
    writer: Writer,
    applier: Applier,
    commands: mpsc::Receiver<Command>,
    own: VecDeque<Command>,
    frozen: mpsc::Sender<Frozen>,
    flushed: mpsc::Receiver<Flushed<R::Snapshot>>,
    publish: E,
    space: Q,
    metrics: Arc<Metrics>,
    options: Options,
    recent: Recent,
    under_way: FuturesOrdered<BoxFuture<'static, Result<UnderWay, WriteError>>>,
    deltas: VecDeque<Arc<Delta>>,
    head: Head,
    committed: Slot,
    last_freeze: Instant,
    /// Bytes of requests since space was looked at.
    unchecked: usize,
}

/// The channels of a sequencer.
pub struct Channels<S> {
    /// Requests.
    pub commands: mpsc::Receiver<Command>,
    /// Where generations to flush go.
    pub frozen: mpsc::Sender<Frozen>,
    /// Where flushed ones come back.
    pub flushed: mpsc::Receiver<Flushed<S>>,
}

impl<L, R, E, Q> Sequencer<L, R, E, Q>
where
    L: Log,
    R: Rows,
    E: FnMut(Vec<Arc<Committed>>) + Send + 'static,
    Q: Space,
{
    /// The writer of an opened store. `publish` is given every committed revision once, in order.
    pub fn new(
        (log, rows): (L, R),
        opened: crate::mvcc::open::Opened<R>,
        channels: Channels<R::Snapshot>,
        publish: E,
        space: Q,
        (options, metrics): (Options, Arc<Metrics>),
    ) -> Self {
        let crate::mvcc::open::Opened {
            state, writer, applier, ..
        } = opened;
        let head = Head {
            revision: applier.revision,
            compacted: applier.compacted,
        };
        Self {
            log,
            rows,
            recent: state.view().recent.clone(),
            state,
            committed: writer.next(),
            writer,
            applier,
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
            last_freeze: Instant::now(),
            unchecked: 0,
        }
    }

    /// Runs until `stop`, then finishes what is queued and hands the last generation to the flush.
    ///
    /// # Errors
    /// When another writer took over, or log or rows fail: nothing can be written any more.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = false;
        loop {
            if !self.own.is_empty() && self.may_take() {
                self.take().await?;
                continue;
            }
            if stopping && self.own.is_empty() && self.commands.is_empty() && self.under_way.is_empty() {
                return self.freeze().await;
            }
            tokio::select! {
                biased;
                Some(committed) = self.under_way.next() => self.publish_batch(committed?).await?,
                // It ends before this task only when it fails. Who waits for it to make room would wait for ever.
                flushed = self.flushed.recv() => self.swap_rows(flushed.context("the flush ended")?),
                _ = tick.tick() => self.tick().await?,
                () = stop.cancelled(), if !stopping => {
                    self.commands.close();
                    stopping = true;
                }
                Some(command) = self.commands.recv(), if self.may_take() => {
                    self.own.push_back(command);
                    self.take().await?;
                }
            }
        }
    }

    /// Another batch may be evaluated.
    fn may_take(&self) -> bool {
        self.under_way.len() < self.options.in_flight
            && (self.recent.oldest_sealed().is_none() || self.recent.bytes() < self.options.recent_bytes)
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
            bytes += command.size;
            commands.push_back(command);
        }
        self.unchecked += bytes;
        let full = self.unchecked >= CHECK_SPACE_EVERY && self.check_space();
        let no_space = full || self.state.has_alarm(NOSPACE);
        let mut builder = Builder::new(&self.state, self.deltas.iter().cloned().collect(), self.head, no_space);
        builder.prefetch(commands.iter()).await?;
        while let Some(command) = commands.pop_front() {
            if builder.must_wait(&command) {
                commands.push_front(command);
                break;
            }
            builder.add(command).await?;
        }
        let batch = builder.finish();
        for command in commands.into_iter().rev() {
            self.own.push_front(command);
        }
        self.send(batch, bytes);
        if !self.own.is_empty() {
            // What waits needs everything before it published.
            while let Some(committed) = self.under_way.next().await {
                self.publish_batch(committed?).await?;
            }
        }
        Ok(())
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
        let next = self.writer.next();
        let append = self.writer.append(&self.log, slots);
        self.under_way.push_back(Box::pin(async move {
            append.await?;
            Ok(UnderWay { batch, first, next })
        }));
    }

    /// Shows a committed batch to the world.
    async fn publish_batch(&mut self, UnderWay { batch, first, next }: UnderWay) -> anyhow::Result<()> {
        self.deltas.pop_front();
        let base = batch.record.base;
        if !batch.record.entries.is_empty() {
            let compacted = self.applier.compacted;
            count(&batch.record, &self.metrics);
            let (events, alarms) = {
                let mut leases = self.state.leases();
                self.applier
                    .apply(batch.record, batch.superseded, &mut leases, since_boot())
            };
            for alarm in alarms {
                let mut raised = self.state.alarms();
                if alarm.raised {
                    raised.insert((alarm.kind, alarm.member));
                } else {
                    raised.remove(&(alarm.kind, alarm.member));
                }
            }
            self.committed = next;
            self.state.commit(base, first, next);
            self.publish_view(None);
            (self.publish)(events.into_iter().map(Arc::new).collect());
            if self.applier.generation.bytes() >= self.options.flush_bytes || self.applier.compacted > compacted {
                self.freeze().await?;
            }
        }
        for (reply, outcome) in batch.replies {
            // Whoever has gone away does not need to know.
            drop(reply.send(outcome));
        }
        Ok(())
    }

    fn publish_view(&self, rows: Option<(R::Snapshot, Revision)>) {
        let old = self.state.view();
        let (rows, rows_revision) = rows.unwrap_or_else(|| (old.rows.clone(), old.rows_revision));
        self.state.publish(View {
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            recent: self.recent.clone(),
            rows,
            rows_revision,
            counts: old.counts.clone(),
        });
    }

    /// Hands the active generation to the flush and begins a new one.
    async fn freeze(&mut self) -> anyhow::Result<()> {
        self.last_freeze = Instant::now();
        if !std::mem::take(&mut self.applier.dirty) {
            return Ok(());
        }
        self.recent = self.recent.rotated();
        let generation = std::mem::replace(&mut self.applier.generation, self.recent.active().clone());
        self.publish_view(None);
        let frozen = Frozen {
            generation,
            marker: self.committed,
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            lease_rows: std::mem::take(&mut self.applier.lease_rows).into_iter().collect(),
            alarms: self.state.alarms().iter().copied().collect(),
        };
        // Wait for room, but take back what is flushed meanwhile: the flush may be waiting for that.
        let sender = self.frozen.clone();
        loop {
            tokio::select! {
                permit = sender.reserve() => {
                    permit.context("the flush ended")?.send(frozen);
                    return Ok(());
                }
                Some(flushed) = self.flushed.recv() => self.swap_rows(flushed),
            }
        }
    }

    /// Lets views read newer rows, without the generation that is in them now.
    fn swap_rows(&mut self, flushed: Flushed<R::Snapshot>) {
        let revision = match flushed.generation {
            Some((generation, revision)) => {
                self.recent = self.recent.without(&generation);
                revision
            }
            None => self.state.view().rows_revision,
        };
        self.publish_view(Some((flushed.snapshot, revision)));
    }

    /// Whether space ran out; raises the alarm if it did.
    fn check_space(&mut self) -> bool {
        self.unchecked = 0;
        let full = self.space.exceeded(self.log.size() + self.rows.size());
        if full && !self.state.has_alarm(NOSPACE) {
            tracing::error!("no space left: puts are refused until space is made and the NOSPACE alarm is disarmed");
            let request = Request::Alarm(self.options.member, NOSPACE, true);
            self.own.push_back(Command {
                request,
                size: 64,
                reply: None,
            });
        }
        full
    }

    /// Leases that ran out, checkpoints that are due, space, and what has been unflushed for long.
    async fn tick(&mut self) -> anyhow::Result<()> {
        let now = since_boot();
        let (expired, checkpoints) = {
            let mut leases = self.state.leases();
            (
                leases.expired(now, EXPIRE_LIMIT),
                leases.due_checkpoints(now, CHECKPOINT_LIMIT),
            )
        };
        self.metrics.lease.expired.inc_by(expired.len() as u64);
        let expired = expired.into_iter().map(|id| Request::Revoke { id, expired: true });
        let checkpoints = checkpoints
            .into_iter()
            .map(|(id, remaining): (LeaseId, i64)| Request::Checkpoint(id, remaining));
        let requests: Vec<Request> = expired.chain(checkpoints).collect();
        self.own.extend(requests.into_iter().map(|request| Command {
            request,
            size: 64,
            reply: None,
        }));
        self.check_space();
        if self.applier.dirty && self.last_freeze.elapsed() >= self.options.flush_interval {
            self.freeze().await?;
        }
        Ok(())
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
