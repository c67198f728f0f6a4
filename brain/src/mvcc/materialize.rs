//! The background: flushes generations into rows, deletes what compaction made superfluous, destroys old slots.
//!
//! One task writes the rows, so that the fence moves in one line. Rows only ever trail the log: a flush that was cut short
//! is done again after the next start, with the same bytes.
//!
//! Rows that refuse a change will refuse it again: what they lack stays in the log and in memory, the CORRUPT alarm stops writes, and
//! the change is tried again from time to time, for an operator may have raised the limit.
//!
//! Order: a version is deleted only behind the marker, oldest first, a tombstone never before what it covers. Rows are synced
//! before the watermark moves, and the watermark moves before slots are destroyed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Revision;
use super::patience::{Interrupted, Passing, Patience, reached};
use super::record::{self, Record};
use super::row::Fence;
use super::sizes::superseded_by;
use crate::log::reader::{Item, Reader};
use crate::log::{Log, Slot};
use crate::metrics::Metrics;
use crate::recent::Generation;
use crate::replica::{Flushed, Frozen};
use crate::rows::{Change, Rows, RowsError, keys};
use crate::state::State;

mod step;

use step::{Step, fill};

/// How much of the log compaction reads at once, in bytes.
const READ_AHEAD: usize = 4 << 20;

/// Bytes of log behind the compacted revision, none of them of keys, that are given up.
const UNNEEDED_LOG: i64 = 256 << 10;

/// How long to wait before a change is tried again that rows refused.
const REFUSED: Duration = Duration::from_secs(30);

/// How long a refusal may pass by itself, as one for lack of memory may, and how often the change is tried meanwhile.
const PASSES: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(2));

/// How long to wait before a snapshot is asked for again that could not be had.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// The task that writes the rows.
pub struct Materializer<L, R: Rows> {
    log: L,
    rows: R,
    state: Arc<State<R>>,
    fence: Fence,
    /// The fence as its bytes are stored.
    stored: Bytes,
    /// Sealed before this epoch.
    backlog: VecDeque<Arc<Frozen>>,
    frozen: mpsc::Receiver<Arc<Frozen>>,
    flushed: mpsc::Sender<Flushed<R::Snapshot>>,
    /// A compaction that is under way.
    deletion: Option<Deletion<L>>,
    /// When views were last given a snapshot.
    shown: Instant,
    /// Since when rows refuse what is to be written.
    refused: Option<Instant>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// Where a compaction reads on.
struct Deletion<L> {
    reader: Reader<L>,
    /// Bytes of the records that were read from the fence's `deleted_slot` on.
    unneeded: usize,
    /// The record that was read last, if it is not done.
    current: Option<Superseding>,
}

/// What is written before the last step of a flush.
#[derive(Default)]
struct Ahead {
    /// The rows tell how far the flush reaches.
    is_told: bool,
    steps: Vec<Vec<Change>>,
}

/// Something to write.
enum Work {
    Flush(Arc<Frozen>),
    Delete,
}

impl<L: Log, R: Rows> Materializer<L, R> {
    /// `fence` is the stored one; `sealed` generations become rows first, where they are not yet. After `stop` nobody waits
    /// for storage any more.
    pub fn new<'a>(
        (log, rows): (L, R),
        state: Arc<State<R>>,
        fence: Fence,
        sealed: impl Iterator<Item = &'a Arc<Frozen>>,
        frozen: mpsc::Receiver<Arc<Frozen>>,
        flushed: mpsc::Sender<Flushed<R::Snapshot>>,
        (metrics, stop): (Arc<Metrics>, CancellationToken),
    ) -> Self {
        let backlog = sealed
            .filter(|frozen| frozen.marker.0 > fence.marker)
            .cloned()
            .collect();
        let stored = fence.encode_to_vec().into();
        state.set_flush_refused(false);
        Self {
            log,
            rows,
            state,
            fence,
            stored,
            backlog,
            frozen,
            flushed,
            deletion: None,
            shown: Instant::now(),
            refused: None,
            metrics,
            stop,
        }
    }

    /// Runs until the sequencer ends and everything it handed over is flushed and synced. A compaction that is under way
    /// goes on after the next start.
    ///
    /// # Errors
    /// When another writer took the rows over, or rows or log fail.
    pub async fn run(mut self) -> anyhow::Result<()> {
        match self.flush_and_delete().await {
            Err(error) if error.is::<Interrupted>() => {
                tracing::warn!("rows are not complete: what they lack is taken from the log at the next start");
                // The sequencer can only end when somebody takes what it hands over.
                while self.frozen.recv().await.is_some() {}
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => Ok(self.rows.sync().await?),
        }
    }

    async fn flush_and_delete(&mut self) -> anyhow::Result<()> {
        let mut more = self.insist(Work::Delete).await?;
        loop {
            // Between two steps of a compaction a flush goes first.
            let goes_on = more && !self.stop.is_cancelled();
            let frozen = match self.backlog.pop_front() {
                Some(frozen) => Some(frozen),
                None if goes_on => self.frozen.try_recv().ok(),
                None => {
                    let aged = self.aged();
                    tokio::select! {
                        frozen = self.frozen.recv() => frozen,
                        snapshot = young(&self.rows, aged) => {
                            self.renewed(snapshot)?;
                            continue;
                        }
                    }
                }
            };
            match frozen {
                Some(frozen) => {
                    self.insist(Work::Flush(frozen)).await?;
                }
                None if goes_on => {}
                None => return Ok(()),
            }
            more = self.insist(Work::Delete).await?;
        }
    }

    /// Works until rows take it; answers as [`Materializer::delete_step`].
    async fn insist(&mut self, work: Work) -> anyhow::Result<bool> {
        loop {
            let outcome = match &work {
                Work::Flush(frozen) => self.flush(frozen.clone()).await.map(|()| true),
                Work::Delete => self.delete_step().await,
            };
            match outcome {
                Err(error) if is_refused(&error) => self.wait_refused(&error).await?,
                Ok(more) => {
                    self.refused = None;
                    if self.state.set_flush_refused(false) {
                        tracing::info!("rows take again what they refused: the CORRUPT alarm can be disarmed");
                    }
                    return Ok(more);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits before a change is tried again that rows refused; stops writes if they have refused it for a while.
    async fn wait_refused(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        let now = Instant::now();
        let lasts = now.duration_since(*self.refused.get_or_insert(now)) >= PASSES.0;
        if !lasts {
            tracing::warn!(
                error = format!("{error:#}"),
                "rows refuse a change, which is tried again"
            );
        } else if !self.state.set_flush_refused(true) {
            tracing::error!(
                error = format!("{error:#}"),
                "rows refuse what is acknowledged: the CORRUPT alarm stops writes, reads go on; raise the storage limit that \
                 the error names (on TiKV raftstore.raft-entry-max-size or storage.max-key-size), then disarm the alarm"
            );
        }
        // What the fence is, not what it was to become.
        self.fence = Fence::decode(self.stored.clone()).context("decode the fence")?;
        self.deletion = None;
        let again = tokio::time::sleep(if lasts { REFUSED } else { PASSES.1 });
        tokio::pin!(again);
        loop {
            let aged = self.aged();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Interrupted.into()),
                () = &mut again => return Ok(()),
                snapshot = young(&self.rows, aged) => self.renewed(snapshot)?,
                // The sequencer must not wait for room.
                frozen = self.frozen.recv() => self.backlog.push_back(frozen.ok_or(Interrupted)?),
            }
        }
    }

    /// Lets views read the rows as they are now; `through` is how far they reach, if that moved.
    async fn show(&mut self, through: Option<(Slot, Revision)>) -> anyhow::Result<()> {
        let snapshot = reached!(&self.stop, self.rows.snapshot())?;
        self.shown = Instant::now();
        // Nobody is there to take it only when the process stops.
        drop(self.flushed.send(Flushed { through, snapshot }).await);
        Ok(())
    }

    /// When views need a younger snapshot; an old one serves no more.
    fn aged(&self) -> Option<Instant> {
        self.rows.renew_after().map(|age| self.shown + age)
    }

    /// Gives views a younger snapshot, whatever else has to wait for rows: what of a flush is there already may be in it. One that could
    /// not be had is asked for again a little later.
    fn renewed(&mut self, snapshot: Result<R::Snapshot, RowsError>) -> anyhow::Result<()> {
        match snapshot {
            Ok(snapshot) => {
                let marker = Slot(Fence::decode(self.stored.clone()).context("decode the fence")?.marker);
                self.shown = Instant::now();
                let through = Some((marker, self.fence.reached()));
                // One that waits to be taken is young enough. Nobody is there to take it only when the process stops.
                drop(self.flushed.try_send(Flushed { through, snapshot }));
            }
            Err(error) if error.may_pass() => {
                let again = Instant::now() + RENEW_AGAIN;
                let age = self.rows.renew_after().unwrap_or_default();
                self.shown = again.checked_sub(age).unwrap_or(again);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Repeats what fails because rows are out of reach, as [`reached`]; meanwhile views are given younger snapshots, for not all
    /// rows need be out of reach.
    async fn insist_on<F>(&mut self, attempt: impl Fn() -> F + Send) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), RowsError>> + Send,
    {
        let (rows, stop) = (self.rows.clone(), self.stop.clone());
        let _writing = self.state.write_rows();
        let mut patience = Patience::new(&stop);
        loop {
            let attempt = attempt();
            tokio::pin!(attempt);
            let outcome = loop {
                let aged = self.aged();
                tokio::select! {
                    biased;
                    outcome = &mut attempt => break outcome,
                    snapshot = young(&rows, aged) => self.renewed(snapshot)?,
                }
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) => {
                    if matches!(error, RowsError::Full(_)) {
                        // What the one before kept may be the space that is missing.
                        let snapshot = rows.snapshot().await;
                        self.renewed(snapshot)?;
                    }
                    patience.outlast(error).await?;
                }
            }
        }
    }

    fn step(&self) -> Step {
        Step::new(self.rows.step())
    }

    async fn flush(&mut self, frozen: Arc<Frozen>) -> anyhow::Result<()> {
        let mut step = self.step();
        // An older leader's flush may have come further, in part.
        self.fence.reaching = self.fence.reached().max(frozen.revision);
        self.fence.log_last = self.fence.log_last.max(frozen.last.0);
        // The generation's iterator must not be held over an await: it is asked again behind the last version.
        let mut last = None;
        let deleted = self.fence.deleted_up_to;
        let mut ahead = Ahead::default();
        while !fill(&frozen.generation, frozen.compacted, deleted, &mut last, &mut step) {
            let full = std::mem::replace(&mut step, self.step());
            self.write_ahead(full, &mut ahead).await?;
        }
        // These may be ahead of the marker, too: whoever replays the log over them sets each row to what it was last.
        for (row, value) in frozen.lease_rows.iter().cloned() {
            let change = match value {
                Some(value) => Change::Put(row, value),
                None => Change::Delete(row),
            };
            if !step.has_room(1, change.len()) {
                let full = std::mem::replace(&mut step, self.step());
                self.write_ahead(full, &mut ahead).await?;
            }
            step.push(change);
        }
        self.spread(ahead.steps).await?;
        self.fence.marker = frozen.marker.0;
        self.fence.revision = frozen.revision;
        self.fence.compacted = frozen.compacted;
        self.fence.sizes.written = frozen.sizes.written;
        self.fence.sizes.logged = frozen.sizes.logged;
        self.fence.alarms = frozen
            .alarms
            .iter()
            .map(|(kind, member)| record::Alarm {
                member: *member,
                kind: *kind,
                raised: true,
            })
            .collect();
        self.apply(step).await?;
        let current = self.deletion.as_mut().and_then(|deletion| deletion.current.as_mut());
        if let Some(superseding) = current {
            superseding.begin_again_behind(&frozen.generation);
        }
        self.show(Some((frozen.marker, self.fence.reached()))).await
    }

    /// Writes a step of a flush that is not its last one. The first says how far the flush reaches, before anything of it is
    /// there; the last one will say that all of it is.
    async fn write_ahead(&mut self, full: Step, ahead: &mut Ahead) -> anyhow::Result<()> {
        if !ahead.is_told {
            ahead.is_told = true;
            return self.apply(full).await;
        }
        ahead.steps.push(full.changes);
        if ahead.steps.len() >= full.most.at_once {
            self.spread(std::mem::take(&mut ahead.steps)).await?;
        }
        Ok(())
    }

    /// Deletes some of what compaction made superfluous, no more than one step; `true` if there is more.
    async fn delete_step(&mut self) -> anyhow::Result<bool> {
        let target = self.fence.compacted.min(self.fence.revision);
        if target <= self.fence.deleted_up_to {
            self.drop_idle_log().await?;
            return Ok(false);
        }
        // The log is read once: what was read ahead serves the next step.
        let mut deletion = match self.deletion.take() {
            Some(deletion) => deletion,
            None => {
                let from = Slot(self.fence.deleted_slot);
                let reader = reached!(&self.stop, Reader::seek(self.log.clone(), from))?;
                Deletion {
                    reader: reader.in_chunks(READ_AHEAD),
                    unneeded: 0,
                    current: None,
                }
            }
        };
        let mut step = self.step();
        let mut more = false;
        loop {
            let mut superseding = match deletion.current.take() {
                Some(superseding) => superseding,
                None => match reached!(&self.stop, deletion.reader.next())? {
                    Some(Item::Batch { first, payload, .. }) => {
                        let bytes = payload.len();
                        let record = Record::decode(payload).with_context(|| format!("decode slot {first}"))?;
                        if first.0 >= self.fence.marker || record.base >= target {
                            break;
                        }
                        Superseding::new(first, bytes, record)
                    }
                    Some(_) => continue,
                    None => break,
                },
            };
            if !self.delete_superseded(&mut superseding, target, &mut deletion.unneeded, &mut step) {
                deletion.current = Some(superseding);
                more = true;
                break;
            }
            deletion.unneeded += superseding.bytes;
            // The last revision must not leave another step: that one would find nothing to do, and not finish.
            if step.changes.len() >= step.most.rows / 2 && self.fence.deleted_up_to < target {
                more = true;
                break;
            }
        }
        if !more {
            self.fence.deleted_up_to = target;
        }
        self.apply(step).await?;
        if !more {
            self.destroy(target).await?;
            return Ok(false);
        }
        self.deletion = Some(deletion);
        if self.aged().is_some_and(|moment| moment <= Instant::now()) {
            let snapshot = self.rows.snapshot().await;
            self.renewed(snapshot)?;
        }
        Ok(more)
    }

    /// Gives the log up to its last record in rows up, once everything is compacted: without key writes no revision comes that
    /// could be compacted, but leases go on writing. A watch from just the compacted revision finds it compacted then.
    async fn drop_idle_log(&mut self) -> anyhow::Result<()> {
        let fence = &mut self.fence;
        let is_compacted = fence.compacted == fence.revision && fence.deleted_up_to == fence.revision;
        // The last record in rows stays: by it rows and log are known to fit.
        let last = fence.log_last.min(fence.marker);
        if !is_compacted || last <= fence.deleted_slot || fence.sizes.logged - fence.sizes.dropped <= UNNEEDED_LOG {
            return Ok(());
        }
        fence.deleted_slot = last;
        fence.sizes.dropped = fence.sizes.logged;
        let target = fence.deleted_up_to;
        let step = self.step();
        self.apply(step).await?;
        self.destroy(target).await
    }

    /// Adds to a step, until it is full, the versions that one batch superseded up to `target`; answers whether that is all of it. A
    /// revision counts as done when all of it is in steps.
    fn delete_superseded(
        &mut self,
        superseding: &mut Superseding,
        target: Revision,
        unneeded: &mut usize,
        step: &mut Step,
    ) -> bool {
        let Superseding {
            slot, entries, done, ..
        } = superseding;
        while let Some((keys, put_again)) = entries.front() {
            if keys.revision <= self.fence.deleted_up_to || keys.revision > target {
                entries.pop_front();
                continue;
            }
            for (at, change) in keys.changes.iter().enumerate().skip(*done) {
                if step.is_full() {
                    return false;
                }
                if change.prev_mod > 0 {
                    step.push(Change::Delete(keys::object_key(&change.key, change.prev_mod)));
                }
                if change.is_delete() && put_again.get(&change.key).is_none_or(|later| *later < at) {
                    step.push(Change::Delete(keys::object_key(&change.key, keys.revision)));
                }
                *done = at + 1;
            }
            self.metrics.mvcc.compaction_keys.inc_by(keys.changes.len() as u64);
            self.fence.deleted_up_to = keys.revision;
            self.fence.sizes.deleted += keys.changes.iter().map(superseded_by).sum::<i64>();
            if slot.0 > self.fence.deleted_slot {
                let dropped = std::mem::take(unneeded);
                self.fence.sizes.dropped += i64::try_from(dropped).unwrap_or(i64::MAX);
                self.fence.deleted_slot = slot.0;
            }
            *done = 0;
            entries.pop_front();
        }
        true
    }

    /// Gives up slots that neither rows nor history need any more.
    async fn destroy(&mut self, deleted_up_to: Revision) -> anyhow::Result<()> {
        reached!(&self.stop, self.rows.sync())?;
        // The slot that holds the compacted revision stays: a watch may begin at it.
        let watermark = Slot(self.fence.deleted_slot.min(self.fence.marker));
        reached!(&self.stop, self.log.raise_watermark(watermark))?;
        self.state.forget_below(watermark);
        // No flush waits for a server that is gone: what could not be destroyed is, after a later compaction.
        match self.log.destroy_below_watermark().await {
            Err(error) if error.may_pass() => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what compaction made superfluous of the log stays for now"
            ),
            outcome => outcome?,
        }
        self.state.set_deleted_up_to(deleted_up_to);
        self.show(None).await?;
        tracing::info!(revision = deleted_up_to, slot = watermark.0, "compacted");
        Ok(())
    }

    /// Writes steps between which the fence does not move.
    async fn spread(&mut self, steps: Vec<Vec<Change>>) -> anyhow::Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let _timer = self.metrics.disk.backend_commit.start_timer();
        let (rows, stored) = (self.rows.clone(), self.stored.clone());
        let spread = || {
            let (rows, stored, steps) = (rows.clone(), stored.clone(), steps.clone());
            async move { rows.spread(stored, steps).await }
        };
        self.insist_on(spread).await?;
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn apply(&mut self, step: Step) -> anyhow::Result<()> {
        let _timer = self.metrics.disk.backend_commit.start_timer();
        self.fence.number += 1;
        let fence = Bytes::from(self.fence.encode_to_vec());
        let (rows, stored) = (self.rows.clone(), self.stored.clone());
        let apply = || {
            let (rows, stored, fence, changes) = (rows.clone(), stored.clone(), fence.clone(), step.changes.clone());
            async move { rows.apply(Some(stored), fence, changes).await }
        };
        // What is acknowledged is in the log. Writers wait when too much of it is in memory.
        self.insist_on(apply).await?;
        self.stored = fence;
        self.state.set_deleted(&self.fence.sizes);
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// What the batch of one slot superseded. One revision may be far more than a step.
struct Superseding {
    slot: Slot,
    /// Of the batch.
    bytes: usize,
    /// Changes of keys that are not done, each with [`put_again`].
    entries: VecDeque<(record::Keys, HashMap<Bytes, usize>)>,
    /// Changes of the first of them that are in steps.
    done: usize,
}

impl Superseding {
    fn new(slot: Slot, bytes: usize, record: Record) -> Self {
        let keys = record.entries.into_iter().filter_map(|entry| match entry.change {
            Some(record::Change::Keys(keys)) => Some((put_again(&keys.changes), keys)),
            _ => None,
        });
        Self {
            slot,
            bytes,
            entries: keys.map(|(put_again, keys)| (keys, put_again)).collect(),
            done: 0,
        }
    }

    /// Whoever followed until now may write rows once more that were deleted already, of a revision that is not done.
    fn begin_again_behind(&mut self, written: &Generation) {
        let first = written.revisions().map(|revisions| *revisions.start());
        let current = self.entries.front().map(|(keys, _)| keys.revision);
        if let (Some(first), Some(current)) = (first, current)
            && first <= current
        {
            self.done = 0;
        }
    }
}

/// The keys that one revision deletes and puts, and where it puts them last: etcd lets a txn delete "from key on" and put one of
/// these keys again.
fn put_again(changes: &[record::KeyChange]) -> HashMap<Bytes, usize> {
    if !changes.iter().any(record::KeyChange::is_delete) {
        return HashMap::new();
    }
    let puts = changes.iter().enumerate().filter(|(_, change)| !change.is_delete());
    puts.map(|(at, change)| (change.key.clone(), at)).collect()
}

/// Rows do not take a change, however often it is tried.
fn is_refused(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RowsError::Refused(_)))
}

/// A snapshot as soon as the last one is too old; never where one serves for ever.
async fn young<R: Rows>(rows: &R, aged: Option<Instant>) -> Result<R::Snapshot, RowsError> {
    match aged {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
    rows.snapshot().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::MemLog;
    use crate::mvcc::sizes::Sizes;
    use crate::recent::Recent;
    use crate::replica::Replica;
    use crate::rows::mem::MemRows;

    #[tokio::test]
    async fn rows_reach_as_far_as_an_older_leaders_flush_did() {
        let (log, rows) = (MemLog::new(), MemRows::new());
        let fence = Fence {
            reaching: 10,
            ..Fence::fresh()
        };
        rows.apply(None, fence.encode_to_vec().into(), Vec::new())
            .await
            .unwrap();
        let state = Replica::load(&log, &rows).await.unwrap().state().clone();
        let shorter = Frozen {
            generation: Recent::new().active().clone(),
            marker: Slot(fence.marker + 1),
            last: Slot(fence.marker),
            revision: 4,
            compacted: fence.compacted,
            lease_rows: Vec::new(),
            alarms: Vec::new(),
            sizes: fence.sizes,
        };
        let (_frozen, to_flush) = mpsc::channel(1);
        let (flushed, mut from_flush) = mpsc::channel(1);
        let metrics = (Arc::new(Metrics::new(false)), CancellationToken::new());
        let sealed = [Arc::new(shorter)];
        let engine = (log, rows.clone());
        let materializer = Materializer::new(engine, state, fence, sealed.iter(), to_flush, flushed, metrics);
        let shown = async { from_flush.recv().await.unwrap().through };
        let through = tokio::select! {
            through = shown => through,
            ended = materializer.run() => panic!("{ended:?}"),
        };
        assert_eq!(through, Some((sealed[0].marker, 10)));
        let stored = Fence::decode(rows.fence().await.unwrap().unwrap()).unwrap();
        assert_eq!((stored.revision, stored.reached()), (4, 10));
    }

    /// Leases alone make no revision that could be compacted.
    #[tokio::test]
    async fn the_log_of_leases_behind_the_compacted_revision_is_given_up() {
        for (logged, watermark) in [(100, Slot::FIRST), (100 + UNNEEDED_LOG, Slot(1_999))] {
            let (log, rows) = (MemLog::new(), MemRows::new());
            let fence = Fence {
                revision: 4,
                compacted: 4,
                deleted_up_to: 4,
                ..Fence::fresh()
            };
            rows.apply(None, fence.encode_to_vec().into(), Vec::new())
                .await
                .unwrap();
            let state = Replica::load(&log, &rows).await.unwrap().state().clone();
            let leases = Frozen {
                generation: Recent::new().active().clone(),
                marker: Slot(2_000),
                last: Slot(1_999),
                revision: 4,
                compacted: 4,
                lease_rows: Vec::new(),
                alarms: Vec::new(),
                sizes: Sizes { logged, ..fence.sizes },
            };
            let (frozen, to_flush) = mpsc::channel(1);
            let (flushed, mut from_flush) = mpsc::channel(1);
            let metrics = (Arc::new(Metrics::new(false)), CancellationToken::new());
            let sealed = [Arc::new(leases)];
            let engine = (log.clone(), rows.clone());
            let materializer =
                Materializer::new(engine, state.clone(), fence, sealed.iter(), to_flush, flushed, metrics);
            drop(frozen);
            let shown = async { while from_flush.recv().await.is_some() {} };
            let (ended, ()) = tokio::join!(materializer.run(), shown);
            ended.unwrap();
            assert_eq!(log.watermark().await.unwrap(), watermark, "{logged} bytes of log");
            let kept = state.sizes();
            assert!(kept.logged - kept.dropped <= UNNEEDED_LOG, "{kept:?}");
        }
    }
}
