//! The background: flushes generations into rows, deletes what compaction made superfluous, destroys old slots.
//!
//! One task writes the rows, so that the fence moves in one line. Rows only ever trail the log: a flush that was cut short
//! is done again after the next start, with the same bytes.
//!
//! Order: a version is deleted only behind the marker, oldest first, a tombstone never before what it covers. Rows are synced
//! before the watermark moves, and the watermark moves before slots are destroyed.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Revision;
use super::patience::{Interrupted, Passing, reached};
use super::record::{self, Record};
use super::row::Fence;
use crate::log::reader::{Item, Reader};
use crate::log::{Log, Slot};
use crate::metrics::Metrics;
use crate::replica::{Flushed, Frozen};
use crate::rows::{Change, Rows, keys};
use crate::state::State;

mod step;

use step::{Step, fill};

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
    /// When views were last given a snapshot.
    shown: Instant,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
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
        Self {
            log,
            rows,
            state,
            fence,
            stored,
            backlog,
            frozen,
            flushed,
            shown: Instant::now(),
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
        let mut more = self.delete_step().await?;
        loop {
            // Between two steps of a compaction a flush goes first.
            let goes_on = more && !self.stop.is_cancelled();
            let frozen = match self.backlog.pop_front() {
                Some(frozen) => Some(frozen),
                None if goes_on => self.frozen.try_recv().ok(),
                None => {
                    let renew = self.rows.renew_after().map(|age| self.shown + age);
                    tokio::select! {
                        frozen = self.frozen.recv() => frozen,
                        () = passes(renew) => {
                            self.show(None).await?;
                            continue;
                        }
                    }
                }
            };
            match frozen {
                Some(frozen) => self.flush(frozen).await?,
                None if goes_on => {}
                None => return Ok(()),
            }
            more = self.delete_step().await?;
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
        // The first step says how far this reaches, before anything of it is there; the last one that all of it is.
        let (mut is_told, mut steps) = (false, Vec::new());
        while !fill(&frozen.generation, frozen.compacted, deleted, &mut last, &mut step) {
            let full = std::mem::replace(&mut step, self.step());
            if !is_told {
                self.apply(full).await?;
                is_told = true;
                continue;
            }
            steps.push(full.changes);
            if steps.len() >= full.most.at_once {
                self.spread(std::mem::take(&mut steps)).await?;
            }
        }
        self.spread(steps).await?;
        for (row, value) in frozen.lease_rows.iter().cloned() {
            step.push(match value {
                Some(value) => Change::Put(row, value),
                None => Change::Delete(row),
            });
        }
        self.fence.marker = frozen.marker.0;
        self.fence.revision = frozen.revision;
        self.fence.compacted = frozen.compacted;
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
        self.show(Some((frozen.marker, self.fence.reached()))).await
    }

    /// Deletes some of what compaction made superfluous; `true` if there is more.
    async fn delete_step(&mut self) -> anyhow::Result<bool> {
        let target = self.fence.compacted.min(self.fence.revision);
        if target <= self.fence.deleted_up_to {
            return Ok(false);
        }
        let from = Slot(self.fence.deleted_slot);
        let mut reader = reached!(&self.stop, Reader::seek(self.log.clone(), from))?;
        let mut step = self.step();
        let mut more = false;
        while let Some(item) = reached!(&self.stop, reader.next())? {
            let Item::Batch { first, payload, .. } = item else {
                continue;
            };
            let record = Record::decode(payload).with_context(|| format!("decode slot {first}"))?;
            if first.0 >= self.fence.marker || record.base >= target {
                break;
            }
            self.delete_superseded(first, record, target, &mut step).await?;
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
        } else if self.rows.renew_after().is_some_and(|age| self.shown.elapsed() >= age) {
            self.show(None).await?;
        }
        Ok(more)
    }

    /// Deletes the versions that one batch superseded up to `target`.
    async fn delete_superseded(
        &mut self,
        slot: Slot,
        record: Record,
        target: Revision,
        step: &mut Step,
    ) -> anyhow::Result<()> {
        for entry in record.entries {
            let Some(record::Change::Keys(keys)) = entry.change else {
                continue;
            };
            if keys.revision <= self.fence.deleted_up_to || keys.revision > target {
                continue;
            }
            for (at, change) in keys.changes.iter().enumerate() {
                if change.prev_mod > 0 {
                    step.push(Change::Delete(keys::object_key(&change.key, change.prev_mod)));
                }
                // Etcd lets a txn delete "from key on" and put one of these keys again.
                let put_again = || {
                    keys.changes[at..]
                        .iter()
                        .any(|later| later.key == change.key && !later.is_delete())
                };
                if change.is_delete() && !put_again() {
                    step.push(Change::Delete(keys::object_key(&change.key, keys.revision)));
                }
                if step.is_full() {
                    let full = std::mem::replace(step, self.step());
                    self.apply(full).await?;
                }
            }
            self.metrics.mvcc.compaction_keys.inc_by(keys.changes.len() as u64);
            self.fence.deleted_up_to = keys.revision;
            self.fence.deleted_slot = slot.0;
        }
        Ok(())
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
        reached!(&self.stop, self.rows.spread(self.stored.clone(), steps.clone()))?;
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn apply(&mut self, step: Step) -> anyhow::Result<()> {
        let _timer = self.metrics.disk.backend_commit.start_timer();
        self.fence.number += 1;
        let fence = Bytes::from(self.fence.encode_to_vec());
        let apply = || {
            let (expected, changes) = (self.stored.clone(), step.changes.clone());
            self.rows.apply(Some(expected), fence.clone(), changes)
        };
        // What is acknowledged is in the log. Writers wait when too much of it is in memory.
        reached!(&self.stop, apply())?;
        self.stored = fence;
        self.state.note_step();
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// Answers when a moment has come; never without one.
async fn passes(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::MemLog;
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
}
