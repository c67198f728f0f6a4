//! The background: flushes generations into rows, deletes what compaction made superfluous, destroys old slots.
//!
//! One task writes the rows, so that the fence moves in one line. Rows only ever trail the log: a flush that was cut short
//! is done again after the next start, with the same bytes.
//!
//! Order: a version is deleted only behind the marker, oldest first, a tombstone never before what it covers. Rows are synced
//! before the watermark moves, and the watermark moves before slots are destroyed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Revision;
use super::patience::reached;
use super::record::{self, Record};
use super::row::{Fence, Meta, encode_index, encode_object};
use crate::log::reader::{Item, Reader};
use crate::log::{Log, Slot};
use crate::metrics::Metrics;
use crate::recent::{Found, Generation, Version};
use crate::rows::{self, Change, Rows, RowsError, keys};
use crate::sequencer::{Flushed, Frozen};
use crate::state::State;

/// How long to wait before rows are written again that found no space.
const NO_SPACE_RETRY: Duration = Duration::from_secs(1);

/// The task that writes the rows.
pub struct Materializer<L, R: Rows> {
    log: L,
    rows: R,
    state: Arc<State<R>>,
    fence: Fence,
    /// The fence as its bytes are stored.
    stored: Bytes,
    frozen: mpsc::Receiver<Frozen>,
    flushed: mpsc::Sender<Flushed<R::Snapshot>>,
    /// When views were last given a snapshot.
    shown: Instant,
    metrics: Arc<Metrics>,
}

impl<L: Log, R: Rows> Materializer<L, R> {
    /// `fence` is the stored one.
    pub fn new(
        (log, rows): (L, R),
        state: Arc<State<R>>,
        fence: Fence,
        frozen: mpsc::Receiver<Frozen>,
        flushed: mpsc::Sender<Flushed<R::Snapshot>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let stored = fence.encode_to_vec().into();
        Self {
            log,
            rows,
            state,
            fence,
            stored,
            frozen,
            flushed,
            shown: Instant::now(),
            metrics,
        }
    }

    /// Runs until the sequencer ends and everything it handed over is flushed and synced.
    ///
    /// # Errors
    /// When another writer took the rows over, or rows or log fail.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut more = self.delete_step().await?;
        loop {
            // Between two steps of a compaction a flush goes first.
            let frozen = if more {
                self.frozen.try_recv().ok()
            } else {
                let renew = self.rows.renew_after().map(|age| self.shown + age);
                tokio::select! {
                    frozen = self.frozen.recv() => frozen,
                    () = passes(renew) => {
                        self.show(None).await?;
                        continue;
                    }
                }
            };
            match frozen {
                Some(frozen) => self.flush(frozen).await?,
                None if more => {}
                None => break,
            }
            more = self.delete_step().await?;
        }
        reached!(self.rows.sync())?;
        Ok(())
    }

    /// Lets views read the rows as they are now; `flushed` is what is in them since, and the revision behind it.
    async fn show(&mut self, flushed: Option<(Arc<Generation>, Revision)>) -> anyhow::Result<()> {
        let snapshot = reached!(self.rows.snapshot())?;
        self.shown = Instant::now();
        let flushed = Flushed {
            generation: flushed,
            snapshot,
        };
        // Nobody is there to take it only when the process stops.
        drop(self.flushed.send(flushed).await);
        Ok(())
    }

    fn step(&self) -> Step {
        Step {
            changes: Vec::new(),
            bytes: 0,
            most: self.rows.step(),
        }
    }

    async fn flush(&mut self, frozen: Frozen) -> anyhow::Result<()> {
        let mut step = self.step();
        // The generation's iterator must not be held over an await: it is asked again behind the last version.
        let mut last = None;
        while !fill(&frozen.generation, frozen.compacted, &mut last, &mut step) {
            let full = std::mem::replace(&mut step, self.step());
            self.apply(full).await?;
        }
        for (row, value) in frozen.lease_rows {
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
            .into_iter()
            .map(|(kind, member)| record::Alarm {
                member,
                kind,
                raised: true,
            })
            .collect();
        self.apply(step).await?;
        self.show(Some((frozen.generation, frozen.revision))).await
    }

    /// Deletes some of what compaction made superfluous; `true` if there is more.
    async fn delete_step(&mut self) -> anyhow::Result<bool> {
        let target = self.fence.compacted.min(self.fence.revision);
        if target <= self.fence.deleted_up_to {
            return Ok(false);
        }
        let from = Slot(self.fence.deleted_slot);
        let mut reader = reached!(Reader::seek(self.log.clone(), from))?;
        let mut step = self.step();
        let mut more = false;
        while let Some(item) = reached!(reader.next())? {
            let Item::Batch { first, payload, .. } = item else {
                continue;
            };
            let record = Record::decode(payload)?;
            if first.0 >= self.fence.marker || record.base >= target {
                break;
            }
            self.delete_superseded(first, record, target, &mut step).await?;
            if step.changes.len() >= step.most.rows / 2 {
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
        reached!(self.rows.sync())?;
        // The slot that holds the compacted revision stays: a watch may begin at it.
        let watermark = Slot(self.fence.deleted_slot.min(self.fence.marker));
        reached!(self.log.raise_watermark(watermark))?;
        self.state.forget_below(watermark);
        reached!(self.log.destroy_below_watermark())?;
        self.state.set_deleted_up_to(deleted_up_to);
        self.show(None).await?;
        tracing::info!(revision = deleted_up_to, slot = watermark.0, "compacted");
        Ok(())
    }

    async fn apply(&mut self, step: Step) -> anyhow::Result<()> {
        let _timer = self.metrics.disk.backend_commit.start_timer();
        self.fence.number += 1;
        let fence = Bytes::from(self.fence.encode_to_vec());
        loop {
            let apply = || {
                let (expected, changes) = (self.stored.clone(), step.changes.clone());
                self.rows.apply(Some(expected), fence.clone(), changes)
            };
            match reached!(apply()) {
                Ok(()) => break,
                // What is acknowledged is in the log. Writers wait when too much of it is in memory.
                Err(RowsError::Full(error)) => {
                    tracing::warn!(error = &*error as &dyn std::error::Error, "no space for rows: waiting");
                    tokio::time::sleep(NO_SPACE_RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.stored = fence;
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

/// Adds rows of a generation to a step, behind the version `last`; `true` when nothing is left.
/// `last` also tells whether the versions that are older than it are compacted: they need no rows.
fn fill(
    generation: &Generation,
    compacted: Revision,
    last: &mut Option<(Bytes, Revision, bool)>,
    step: &mut Step,
) -> bool {
    let versions = match last {
        Some((key, revision, _)) => generation.versions_behind(key, *revision),
        None => generation.versions(),
    };
    for Found { key, revision, version } in versions {
        let covered = match last {
            Some((last_key, _, covered)) if *last_key == key => *covered,
            _ => {
                step.push(index_row(&key, revision, &version));
                false
            }
        };
        if !covered {
            let row = keys::object_key(&key, revision);
            let value = version.value.as_ref().map(|value| (meta_of(revision, &version), value));
            step.push(Change::Put(
                row,
                encode_object(value.as_ref().map(|(meta, value)| (meta, value.as_ref()))),
            ));
        }
        *last = Some((key, revision, covered || revision <= compacted));
        if step.is_full() {
            return false;
        }
    }
    true
}

fn index_row(key: &Bytes, revision: Revision, version: &Version) -> Change {
    let row = keys::index_key(key);
    match version.value {
        Some(_) => Change::Put(row, encode_index(&meta_of(revision, version))),
        None => Change::Delete(row),
    }
}

fn meta_of(revision: Revision, version: &Version) -> Meta {
    Meta {
        create_revision: version.create_revision,
        mod_revision: revision,
        version: version.version,
        lease: version.lease,
    }
}

/// Changes that are applied together.
#[derive(Debug)]
struct Step {
    changes: Vec<Change>,
    bytes: usize,
    most: rows::Step,
}

impl Step {
    fn push(&mut self, change: Change) {
        self.bytes += change.len();
        self.changes.push(change);
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= self.most.rows || self.bytes >= self.most.bytes
    }
}
