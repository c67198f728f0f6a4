//! The background task: flushes memtables into rows, deletes versions that compaction made obsolete, destroys old slots.
//!
//! One task writes the rows, so that the manifest moves in one line. Rows only ever trail the log: a flush that was cut short
//! is done again after the next start, with the same versions.
//!
//! Rows that refuse a change will refuse it again: the missing changes stay in the log and in memory, the CORRUPT alarm stops writes,
//! and the change is tried again from time to time, because an operator may have raised the limit.
//!
//! Order: a version is deleted only if the record that superseded it is before the applied slot, oldest first, and a tombstone never before
//! the versions it covers. Rows are synced before the watermark moves, and the watermark moves before slots are destroyed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::retry::{MaybeTransient, RetryInterrupted, RetryPauses, retry};
use crate::replica::{FlushResult, ImmutableMemtable};
use crate::state::StoreState;
use engine::LogAndRows;
use engine::log::{DynLog, Slot};
use engine::rows::{DynRows, DynSnapshot, RowChange, RowsError};
use etcd_types::types::Revision;
use mvcc::dictionaries::Dictionaries;
use mvcc::record;
use mvcc::row::{Manifest, STORED_FORMAT_WITH_AUTH};
use runtime::kill_points;
use telemetry::metrics::Metrics;

mod delete_superseded;
mod destroy_slots;
mod dictionary;
mod write_batch;

use delete_superseded::CompactionScan;
use dictionary::DictionarySamples;
use write_batch::{WriteBatch, fill_batch};

/// The pace at which a compaction deletes what it made obsolete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionPace {
    /// Most versions of keys that one step deletes; `None`: as many as one write to storage takes.
    pub batch_limit: Option<usize>,
    /// The pause between two steps.
    pub pause: Duration,
}

/// Delay before a change that the rows have refused for a while is tried again.
const REFUSED_CHANGE_RETRY_DELAY: Duration = Duration::from_secs(30);

/// The time within which a refusal may end by itself, for example one for lack of memory.
const BRIEF_REFUSAL_TIME: Duration = Duration::from_secs(20);

/// Delay before a refused change is tried again in that time.
const BRIEF_REFUSAL_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Delay before a failed snapshot is requested again.
const SNAPSHOT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The task that writes the rows.
pub struct Flusher {
    log: DynLog,
    rows: DynRows,
    state: Arc<StoreState>,
    manifest: Manifest,
    /// The fence of the rows: the manifest, or the one before this epoch.
    stored: Bytes,
    /// Those of the rows, and values for another one.
    dictionaries: Arc<Dictionaries>,
    samples: DictionarySamples,
    /// Sealed before this epoch.
    backlog: VecDeque<Arc<ImmutableMemtable>>,
    immutable: mpsc::Receiver<Arc<ImmutableMemtable>>,
    flushed: mpsc::Sender<FlushResult>,
    /// A compaction that is under way.
    scan: Option<CompactionScan>,
    /// The bytes of log that were given up when slots were last destroyed, and when that was.
    destroyed: i64,
    destroyed_at: Instant,
    /// True if more slots below the watermark can be destroyed at once.
    has_undestroyed: bool,
    /// When views were last given a snapshot.
    shown: Instant,
    /// The pace of compactions, and when the next step of one is due.
    pace: CompactionPace,
    next_step: Instant,
    /// Start of the time in which rows refuse the change to be written.
    refused: Option<Instant>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// The rows that a flush writes before its last batch.
#[derive(Default)]
struct EarlyBatches {
    /// The rows tell how far the flush reaches.
    is_told: bool,
    batches: Vec<Vec<RowChange>>,
}

/// Something to write.
enum FlushWork {
    Flush(Arc<ImmutableMemtable>),
    Delete,
}

/// The metrics of a flusher, and its end.
pub struct FlusherContext {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// After this the task no longer waits for storage.
    pub stop: CancellationToken,
}

impl Flusher {
    /// Creates the task. `manifest` is the stored one; `immutables` become rows first, if they are not rows yet.
    pub fn new<'a>(
        LogAndRows { log, rows }: LogAndRows,
        state: Arc<StoreState>,
        manifest: Manifest,
        immutables: impl Iterator<Item = &'a Arc<ImmutableMemtable>>,
        immutable: mpsc::Receiver<Arc<ImmutableMemtable>>,
        flushed: mpsc::Sender<FlushResult>,
        FlusherContext { metrics, stop }: FlusherContext,
    ) -> Self {
        let backlog = immutables
            .filter(|immutable| immutable.applied_slot.0 > manifest.applied_slot)
            .cloned()
            .collect();
        let stored = manifest.encode_to_vec().into();
        rows.set_in_use(manifest.sizes.in_use());
        let destroyed = manifest.sizes.dropped;
        state.set_flush_refused(false);
        let dictionaries = state.view().dictionaries.clone();
        Self {
            log,
            rows,
            state,
            manifest,
            stored,
            samples: DictionarySamples::new(&dictionaries),
            dictionaries,
            backlog,
            immutable,
            flushed,
            scan: None,
            destroyed,
            destroyed_at: Instant::now(),
            has_undestroyed: false,
            shown: Instant::now(),
            pace: CompactionPace::default(),
            next_step: Instant::now(),
            refused: None,
            metrics,
            stop,
        }
    }

    /// Begins with rows of this fence, where the manifest is not stored yet.
    #[must_use]
    pub fn over(self, stored: Bytes) -> Self {
        Self { stored, ..self }
    }

    /// Deletes what compactions made obsolete at this pace.
    #[must_use]
    pub fn paced(self, pace: CompactionPace) -> Self {
        Self { pace, ..self }
    }

    /// Runs until the sequencer ends and everything it handed over is flushed and synced. A compaction that is under way
    /// continues after the next start. Fails if another writer took the rows over, or rows or log fail.
    pub async fn run(mut self) -> anyhow::Result<()> {
        match self.flush_and_delete().await {
            Err(error) if error.is::<RetryInterrupted>() => {
                tracing::warn!("rows are incomplete: the next start reads the rest from the log");
                // The sequencer can only end if its memtables are received.
                while self.immutable.recv().await.is_some() {}
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => match self.rows.sync().await {
                Err(error @ RowsError::Full(_)) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "rows are incomplete: the next start reads the rest from the log"
                    );
                    Ok(())
                }
                synced => Ok(synced?),
            },
        }
    }

    async fn flush_and_delete(&mut self) -> anyhow::Result<()> {
        let mut more = self.insist(FlushWork::Delete).await?;
        self.next_step = Instant::now() + self.pace.pause;
        loop {
            // Between two batches of a compaction a flush goes first.
            let goes_on = more && !self.stop.is_cancelled();
            let immutable = match self.backlog.pop_front() {
                Some(immutable) => Some(immutable),
                None if goes_on && self.is_step_due() => self.immutable.try_recv().ok(),
                None => {
                    let (aged, epoch, next_step) = (self.aged(), self.manifest.epoch, self.next_step);
                    tokio::select! {
                    immutable = self.immutable.recv() => match immutable {
                    Some(immutable) => Some(immutable),
                    None => return Ok(()),
                    },
                    () = tokio::time::sleep_until(next_step), if goes_on => None,
                    snapshot = young(&self.rows, Some(epoch), aged) => {
                    self.renewed(snapshot)?;
                    continue;
                    }
                    }
                }
            };
            match immutable {
                Some(immutable) => {
                    self.insist(FlushWork::Flush(immutable)).await?;
                }
                None if goes_on => {}
                None => return Ok(()),
            }
            if !more || self.is_step_due() {
                more = self.insist(FlushWork::Delete).await?;
                self.next_step = Instant::now() + self.pace.pause;
            }
        }
    }

    /// Returns true if a compaction that is under way may delete more.
    fn is_step_due(&self) -> bool {
        self.pace.pause.is_zero() || self.next_step <= Instant::now()
    }

    /// Works until rows take it; answers as [`Flusher::delete_step`].
    async fn insist(&mut self, work: FlushWork) -> anyhow::Result<bool> {
        loop {
            let outcome = match &work {
                FlushWork::Flush(immutable) => self.flush(immutable.clone()).await.map(|()| true),
                FlushWork::Delete => self.delete_step().await,
            };
            match outcome {
                Err(error) if is_refused(&error) => self.wait_refused(&error).await?,
                Ok(more) => {
                    self.refused = None;
                    if self.state.set_flush_refused(false) {
                        tracing::info!("the rows accept the refused changes again: the CORRUPT alarm can be disarmed");
                    }
                    return Ok(more);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits before a change that the rows refused is tried again; stops writes if they have refused it for a while.
    async fn wait_refused(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        let now = Instant::now();
        let lasts = now.duration_since(*self.refused.get_or_insert(now)) >= BRIEF_REFUSAL_TIME;
        if !lasts {
            tracing::warn!(error = format!("{error:#}"), "the rows refused a change; will retry");
        } else if !self.state.set_flush_refused(true) {
            tracing::error!(
                error = format!("{error:#}"),
                "the rows refuse acknowledged changes: the CORRUPT alarm stops writes, reads continue; raise the storage limit that the error names (on TiKV raftstore.raft-entry-max-size or storage.max-key-size), then disarm the alarm"
            );
        }
        // The manifest as it is stored, without the change.
        let stored = Manifest::decode(self.stored.clone()).context("decode the fence")?;
        self.manifest = stored.taken_by(&self.manifest);
        self.destroyed = self.destroyed.min(self.manifest.sizes.dropped);
        self.scan = None;
        let again = tokio::time::sleep(if lasts {
            REFUSED_CHANGE_RETRY_DELAY
        } else {
            BRIEF_REFUSAL_RETRY_DELAY
        });
        tokio::pin!(again);
        loop {
            let (aged, epoch) = (self.aged(), self.manifest.epoch);
            tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(RetryInterrupted.into()),
            () = &mut again => return Ok(()),
            snapshot = young(&self.rows, Some(epoch), aged) => self.renewed(snapshot)?,
            // The sequencer must not wait for room.
            immutable = self.immutable.recv() => self.backlog.push_back(immutable.ok_or(RetryInterrupted)?),
            }
        }
    }

    /// Lets views read the rows as they are now; `through` is the slot and revision that the rows reach, if that moved. Fails if a later
    /// leader has written them.
    async fn show(&mut self, through: Option<(Slot, Revision)>) -> anyhow::Result<()> {
        let snapshot = retry!(&self.stop, own_snapshot(&self.rows, self.manifest.epoch))?;
        self.shown = Instant::now();
        // The receiver is gone only when the process stops.
        drop(self.flushed.send(FlushResult { through, snapshot }).await);
        Ok(())
    }

    /// When views need a younger snapshot; an old one serves no more.
    fn aged(&self) -> Option<Instant> {
        self.rows.renew_after().map(|age| self.shown + age)
    }

    /// Gives views a younger snapshot, even while other work waits for the rows. It may hold a part of the current flush. If it fails
    /// because of a transient error, it is requested again a little later.
    fn renewed(&mut self, snapshot: Result<DynSnapshot, RowsError>) -> anyhow::Result<()> {
        match snapshot {
            Ok(snapshot) => {
                let applied_slot = Slot(
                    Manifest::decode(self.stored.clone())
                        .context("decode the fence")?
                        .applied_slot,
                );
                self.shown = Instant::now();
                let through = Some((applied_slot, self.manifest.reached()));
                // A snapshot that waits in the channel is young enough. The receiver is gone only when the process stops.
                drop(self.flushed.try_send(FlushResult { through, snapshot }));
            }
            Err(error) if error.is_transient() => {
                let again = Instant::now() + SNAPSHOT_RETRY_DELAY;
                let age = self.rows.renew_after().unwrap_or_default();
                self.shown = again.checked_sub(age).unwrap_or(again);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Repeats an attempt that fails because rows are out of reach, as [`retry`]. Until it succeeds, views get younger snapshots, because
    /// some rows may be reachable. The epoch of these snapshots is not compared: the lock of the task's own change would block that, and if
    /// a later leader has written the rows, the attempt fails.
    async fn insist_on<F>(&mut self, attempt: impl Fn() -> F + Send) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), RowsError>> + Send,
    {
        let (rows, stop, epoch) = (self.rows.clone(), self.stop.clone(), self.manifest.epoch);
        let _writing = self.state.write_rows();
        let mut pauses = RetryPauses::new(&stop);
        loop {
            let attempt = attempt();
            tokio::pin!(attempt);
            let outcome = loop {
                let aged = self.aged();
                tokio::select! {
                biased;
                outcome = &mut attempt => break outcome,
                snapshot = young(&rows, None, aged) => self.renewed(snapshot)?,
                }
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) => {
                    if matches!(error, RowsError::Full(_)) {
                        // The previous snapshot may hold the space that is missing.
                        let snapshot = own_snapshot(&rows, epoch).await;
                        self.renewed(snapshot)?;
                    }
                    pauses.after(error).await?;
                }
            }
        }
    }

    fn batch(&self) -> WriteBatch {
        WriteBatch::new(&*self.rows, &self.dictionaries)
    }

    async fn flush(&mut self, immutable: Arc<ImmutableMemtable>) -> anyhow::Result<()> {
        self.renew_dictionary(&immutable).await?;
        let mut batch = self.batch();
        // An older leader's flush may have come further, in part.
        self.manifest.flushing_revision = self.manifest.reached().max(immutable.revision);
        self.manifest.log_last = self.manifest.log_last.max(immutable.last.0);
        if immutable.has_auth {
            self.manifest.format = self.manifest.format.max(STORED_FORMAT_WITH_AUTH);
        }
        // The memtable's iterator must not be held over an await: each batch continues after the last version.
        let mut last = None;
        let deleted = self.manifest.deleted_up_to;
        let mut ahead = EarlyBatches::default();
        loop {
            batch.begin_piece();
            if fill_batch(&immutable.memtable, immutable.compacted, deleted, &mut last, &mut batch) {
                break;
            }
            if batch.has_piece() {
                tokio::task::yield_now().await;
            } else {
                let full = std::mem::replace(&mut batch, self.batch());
                self.write_ahead(full, &mut ahead).await?;
            }
        }
        // These may be ahead of the applied slot, too: a replay of the log over them sets each row to its last value.
        for (row, value) in immutable.state_rows.iter().cloned() {
            let change = match value {
                Some(value) => RowChange::Put(row, value),
                None => RowChange::Delete(row),
            };
            if !batch.has_room(1, change.len()) {
                let full = std::mem::replace(&mut batch, self.batch());
                self.write_ahead(full, &mut ahead).await?;
            }
            batch.push(change);
        }
        self.apply_parallel(ahead.batches).await?;
        self.manifest.applied_slot = immutable.applied_slot.0;
        self.manifest.revision = immutable.revision;
        self.manifest.compacted = immutable.compacted;
        self.manifest.sizes.written = immutable.sizes.written;
        self.manifest.sizes.logged = immutable.sizes.logged;
        self.manifest.sizes.unversioned = immutable.sizes.unversioned;
        self.manifest.alarms = immutable
            .alarms
            .iter()
            .map(|(kind, member)| record::Alarm {
                member: *member,
                kind: *kind,
                raised: true,
            })
            .collect();
        self.apply(batch).await?;
        let current = self.scan.as_mut().and_then(|scan| scan.current.as_mut());
        if let Some(superseding) = current {
            superseding.begin_again_behind(&immutable.memtable);
        }
        self.show(Some((immutable.applied_slot, self.manifest.reached()))).await
    }

    /// Writes a batch of a flush that is not its last one. The first says how far the flush reaches, before anything of it is
    /// there; the last one will say that all of it is.
    async fn write_ahead(&mut self, full: WriteBatch, ahead: &mut EarlyBatches) -> anyhow::Result<()> {
        if !ahead.is_told {
            ahead.is_told = true;
            return self.apply(full).await;
        }
        ahead.batches.push(full.changes);
        if ahead.batches.len() >= full.most.at_once {
            self.apply_parallel(std::mem::take(&mut ahead.batches)).await?;
        }
        Ok(())
    }

    /// Writes batches between which the manifest does not move.
    async fn apply_parallel(&mut self, batches: Vec<Vec<RowChange>>) -> anyhow::Result<()> {
        if batches.is_empty() {
            return Ok(());
        }
        let _timer = self.metrics.disk.backend_commit.start_timer();
        let (rows, stored) = (self.rows.clone(), self.stored.clone());
        let apply_parallel = || {
            let (rows, stored, batches) = (rows.clone(), stored.clone(), batches.clone());
            async move { rows.apply_parallel(stored, batches).await }
        };
        self.insist_on(apply_parallel).await?;
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn apply(&mut self, batch: WriteBatch) -> anyhow::Result<()> {
        let _timer = self.metrics.disk.backend_commit.start_timer();
        self.manifest.number += 1;
        let manifest = Bytes::from(self.manifest.encode_to_vec());
        let (rows, stored) = (self.rows.clone(), self.stored.clone());
        let apply = || {
            let (rows, stored, manifest, changes) =
                (rows.clone(), stored.clone(), manifest.clone(), batch.changes.clone());
            async move { rows.apply(Some(stored), manifest, changes).await }
        };
        // Acknowledged writes are in the log. Writers wait when too much of it is in memory.
        kill_points::reach("rows-unwritten");
        self.insist_on(apply).await?;
        kill_points::reach("rows-written");
        self.stored = manifest;
        self.state.set_deleted(&self.manifest.sizes);
        self.rows.set_in_use(self.manifest.sizes.in_use());
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// Rows do not take a change, however often it is tried.
fn is_refused(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RowsError::Refused(_)))
}

/// A snapshot of rows that the leader of this epoch has written. Fails with [`RowsError::Fenced`] if a later leader has written them.
async fn own_snapshot(rows: &DynRows, epoch: u64) -> Result<DynSnapshot, RowsError> {
    let snapshot = rows.snapshot().await?;
    let fence = snapshot.fence().await?;
    // While a change is under way, the snapshot has its manifest or the one before it.
    let is_own = match fence.clone().map(Manifest::decode) {
        Some(Ok(_)) if rows.is_exclusive() => true,
        Some(Ok(manifest)) => manifest.epoch == epoch,
        Some(Err(error)) => return Err(RowsError::Corrupt(format!("the fence does not decode: {error}"))),
        None => false,
    };
    if is_own {
        Ok(snapshot)
    } else {
        Err(RowsError::Fenced(fence))
    }
}

/// A snapshot as soon as the last one is too old, of one's own rows if the epoch is given; never where one serves for ever.
async fn young(rows: &DynRows, epoch: Option<u64>, aged: Option<Instant>) -> Result<DynSnapshot, RowsError> {
    let aged = async {
        match aged {
            Some(moment) => tokio::time::sleep_until(moment).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
    () = aged => {}
    () = rows.renewal_asked() => {}
    }
    match epoch {
        Some(epoch) => own_snapshot(rows, epoch).await,
        None => rows.snapshot().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Replica;
    use engine::log::MemLog;
    use engine::rows::mem::MemRows;
    use mvcc::memtable::MemtableSet;

    #[tokio::test]
    async fn rows_reach_as_far_as_an_older_leaders_flush_did() {
        let (log, rows): (DynLog, DynRows) = (Arc::new(MemLog::new()), Arc::new(MemRows::new()));
        let manifest = Manifest {
            flushing_revision: 10,
            ..Manifest::fresh()
        };
        rows.apply(None, manifest.encode_to_vec().into(), Vec::new())
            .await
            .unwrap();
        let state = Replica::load(&log, &rows).await.unwrap().state().clone();
        let shorter = ImmutableMemtable {
            memtable: MemtableSet::new().active().clone(),
            applied_slot: Slot(manifest.applied_slot + 1),
            last: Slot(manifest.applied_slot),
            revision: 4,
            compacted: manifest.compacted,
            state_rows: Vec::new(),
            has_auth: false,
            alarms: Vec::new(),
            sizes: manifest.sizes,
        };
        let (_immutable, to_flush) = mpsc::channel(1);
        let (flushed, mut from_flush) = mpsc::channel(1);
        let context = FlusherContext {
            metrics: Arc::new(Metrics::new(false)),
            stop: CancellationToken::new(),
        };
        let immutables = [Arc::new(shorter)];
        let engine = LogAndRows {
            log,
            rows: rows.clone(),
        };
        let flusher = Flusher::new(engine, state, manifest, immutables.iter(), to_flush, flushed, context);
        let shown = async { from_flush.recv().await.unwrap().through };
        let through = tokio::select! {
        through = shown => through,
        ended = flusher.run() => panic!("{ended:?}"),
        };
        assert_eq!(through, Some((immutables[0].applied_slot, 10)));
        let stored = Manifest::decode(rows.fence().await.unwrap().unwrap()).unwrap();
        assert_eq!((stored.revision, stored.reached()), (4, 10));
    }

    #[tokio::test]
    async fn rows_of_a_successor_are_not_shown() {
        let rows: DynRows = Arc::new(MemRows::new());
        let mut fence = None;
        for epoch in [1, 2] {
            let manifest = Manifest {
                epoch,
                ..Manifest::fresh()
            };
            let next = Bytes::from(manifest.encode_to_vec());
            rows.apply(fence, next.clone(), Vec::new()).await.unwrap();
            fence = Some(next);
            assert!(own_snapshot(&rows, epoch).await.is_ok());
        }
        let refused = own_snapshot(&rows, 1).await.map(drop);
        assert!(matches!(refused, Err(RowsError::Fenced(_))), "{refused:?}");
    }
}
