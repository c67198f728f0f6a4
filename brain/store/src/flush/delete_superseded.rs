//! Deletes what compaction made obsolete: old versions in rows, batch by batch, and then slots of the log.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message as _;
use tokio::time::Instant;

use super::write_batch::WriteBatch;
use super::{Flusher, own_snapshot, retry};
use engine::log::Slot;
use engine::log::reader::{LogEntry, Reader};
use engine::rows::RowChange;
use etcd_types::types::Revision;
use mvcc::keys;
use mvcc::memtable::Memtable;
use mvcc::record::{self, Record};
use mvcc::sizes::{superseded_by, unversioned_in};
use runtime::kill_points;

/// Bytes of the log that compaction reads at once.
const LOG_READ_BYTES: usize = 4 << 20;

/// Bytes of log that are given up before a compaction that is under way has them destroyed. A slow one would keep all of them otherwise.
const BYTES_PER_DESTROY: i64 = 64 << 20;

/// The time between two such destructions. Rows are synced for each, which costs local rows a small table and a dozen syncs, for which
/// writers of the log wait. A quick compaction has ended before.
const DESTROY_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes of records that are decoded before other tasks have their turn.
const BYTES_PER_YIELD: usize = 256 << 10;

/// Most rows that one step deletes: flushes and readers of the log have a turn between two steps.
const MAX_DELETED_ROWS: usize = 1_000;

/// Records of the log that are not needed any more.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct UnneededRecords {
    bytes: usize,
    /// Those that no revision made.
    unversioned: i64,
}

/// The position at which a compaction continues to read the log.
pub(super) struct CompactionScan {
    reader: Reader,
    /// Bytes of the records that were read from the manifest's `deleted_slot` on.
    unneeded: UnneededRecords,
    /// The record that was read last, if it is not done.
    pub(super) current: Option<SupersededVersions>,
    began: Instant,
}

impl Flusher {
    /// Deletes some of what compaction made obsolete, no more than one batch, or else destroys some slots of the log; returns true if
    /// there is more.
    pub(super) async fn delete_step(&mut self) -> anyhow::Result<bool> {
        let target = self.manifest.compacted.min(self.manifest.revision);
        if target <= self.manifest.deleted_up_to {
            if self.has_undestroyed {
                self.destroy_slots().await?;
                self.renew_if_aged().await?;
            } else {
                self.drop_idle_log().await?;
            }
            return Ok(self.has_undestroyed);
        }
        // The log is read once: records that were read ahead serve the next batch.
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => {
                let from = Slot(self.manifest.deleted_slot);
                let reader = retry!(&self.stop, Reader::seek(self.log.clone(), from))?;
                CompactionScan {
                    reader: reader.in_chunks(LOG_READ_BYTES),
                    unneeded: UnneededRecords::default(),
                    current: None,
                    began: Instant::now(),
                }
            }
        };
        let mut batch = self.batch();
        let limit = self.pace.batch_limit.unwrap_or(MAX_DELETED_ROWS).min(MAX_DELETED_ROWS);
        batch.most.rows = batch.most.rows.min(limit);
        let (mut more, mut bytes, mut yielded) = (false, 0, 0);
        loop {
            if bytes - yielded >= BYTES_PER_YIELD {
                yielded = bytes;
                tokio::task::yield_now().await;
            }
            let mut superseding = match scan.current.take() {
                Some(superseding) => superseding,
                None => match retry!(&self.stop, scan.reader.next())? {
                    Some(LogEntry::Batch { first, payload, .. }) => {
                        let bytes = payload.len();
                        let record = Record::decode(payload).with_context(|| format!("decode slot {first}"))?;
                        if first.0 >= self.manifest.applied_slot || record.base >= target {
                            break;
                        }
                        SupersededVersions::new(first, bytes, record)
                    }
                    Some(_) => continue,
                    None => break,
                },
            };
            if !self.delete_superseded(&mut superseding, target, &mut scan.unneeded, &mut batch) {
                scan.current = Some(superseding);
                more = true;
                break;
            }
            scan.unneeded.bytes += superseding.bytes;
            scan.unneeded.unversioned += superseding.unversioned;
            bytes += superseding.bytes;
            // Records that superseded nothing take time, too, and memtables wait during it.
            let is_enough = batch.changes.len() >= (batch.most.rows / 2).max(1) || bytes >= LOG_READ_BYTES;
            // The last revision must not leave another batch: that one would find nothing to do, and not finish.
            if is_enough && self.manifest.deleted_up_to < target {
                more = true;
                break;
            }
        }
        if !more {
            self.manifest.deleted_up_to = target;
        }
        self.apply(batch).await?;
        kill_points::reach("versions-deleted");
        let given_up = self.manifest.sizes.dropped - self.destroyed;
        if !more || is_destroy_due(given_up, self.destroyed_at.max(scan.began).elapsed()) {
            self.destroy(self.manifest.deleted_up_to).await?;
        }
        if !more {
            self.metrics
                .mvcc
                .compaction_total
                .observe(scan.began.elapsed().as_secs_f64() * 1000.0);
            self.metrics
                .mvcc
                .compaction_last
                .set(jiff::Timestamp::now().as_second());
            tracing::info!(revision = target, slot = self.manifest.deleted_slot, "compacted");
            return Ok(self.has_undestroyed);
        }
        self.scan = Some(scan);
        self.renew_if_aged().await?;
        Ok(more)
    }

    /// Gives views a younger snapshot between two steps if theirs is too old.
    async fn renew_if_aged(&mut self) -> anyhow::Result<()> {
        if self.aged().is_some_and(|moment| moment <= Instant::now()) {
            let snapshot = own_snapshot(&self.rows, self.manifest.epoch).await;
            self.renewed(snapshot)?;
        }
        Ok(())
    }

    /// Adds to a batch, until it is full, the versions that one record superseded up to `target`; returns true if that is all of them. A
    /// revision counts as done when all of it is in batches.
    fn delete_superseded(
        &mut self,
        superseding: &mut SupersededVersions,
        target: Revision,
        unneeded: &mut UnneededRecords,
        batch: &mut WriteBatch,
    ) -> bool {
        let SupersededVersions {
            slot, entries, done, ..
        } = superseding;
        while let Some((keys, put_again)) = entries.front() {
            if keys.revision <= self.manifest.deleted_up_to || keys.revision > target {
                entries.pop_front();
                continue;
            }
            for (at, change) in keys.changes.iter().enumerate().skip(*done) {
                if batch.is_full() {
                    return false;
                }
                if change.prev_mod > 0 {
                    batch.push(RowChange::Delete(keys::object_key(&change.key, change.prev_mod)));
                }
                if change.is_delete() && put_again.get(&change.key).is_none_or(|later| *later < at) {
                    batch.push(RowChange::Delete(keys::object_key(&change.key, keys.revision)));
                }
                *done = at + 1;
            }
            self.metrics.mvcc.compaction_keys.inc_by(keys.changes.len() as u64);
            self.manifest.deleted_up_to = keys.revision;
            self.manifest.sizes.deleted += keys.changes.iter().map(superseded_by).sum::<i64>();
            if slot.0 > self.manifest.deleted_slot {
                let dropped = std::mem::take(unneeded);
                let sizes = &mut self.manifest.sizes;
                sizes.dropped += i64::try_from(dropped.bytes).unwrap_or(i64::MAX);
                // Bytes that older versions wrote were not counted.
                sizes.unversioned_dropped = (sizes.unversioned_dropped + dropped.unversioned).min(sizes.unversioned);
                self.manifest.deleted_slot = slot.0;
            }
            *done = 0;
            entries.pop_front();
        }
        true
    }
}

/// Returns true if a compaction that is under way must have slots destroyed: it has given up this much of the log, and the last ones were
/// destroyed so long ago.
fn is_destroy_due(given_up: i64, elapsed: Duration) -> bool {
    given_up >= BYTES_PER_DESTROY && elapsed >= DESTROY_INTERVAL
}

/// Versions that the record of one slot superseded. One revision may be far more than a write batch.
pub(super) struct SupersededVersions {
    slot: Slot,
    /// Of the record.
    bytes: usize,
    /// Of its changes that no revision made.
    unversioned: i64,
    /// Changes of keys that are not done, each with [`put_again`].
    entries: VecDeque<(record::Keys, HashMap<Bytes, usize>)>,
    /// Changes of the first of them that are in batches.
    done: usize,
}

impl SupersededVersions {
    fn new(slot: Slot, bytes: usize, record: Record) -> Self {
        let unversioned = unversioned_in(&record);
        let keys = record.entries.into_iter().filter_map(|entry| match entry.change {
            Some(record::Change::Keys(keys)) => Some((put_again(&keys.changes), keys)),
            _ => None,
        });
        Self {
            slot,
            bytes,
            unversioned,
            entries: keys.map(|(put_again, keys)| (keys, put_again)).collect(),
            done: 0,
        }
    }

    /// Begins the current revision again if `written` starts at or before it: the flush may write rows back that were deleted already.
    pub(super) fn begin_again_behind(&mut self, written: &Memtable) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::flush::destroy_slots::MAX_UNNEEDED_LOG_BYTES;
    use crate::replica::{ImmutableMemtable, Replica};
    use engine::log::DynLog;
    use engine::log::MemLog;
    use engine::rows::DynRows;
    use engine::rows::mem::MemRows;
    use mvcc::memtable::MemtableSet;
    use mvcc::row::Manifest;
    use mvcc::sizes::StoredSizes;
    use telemetry::metrics::Metrics;

    #[test]
    fn quick_compaction_destroys_slots_only_at_its_end() {
        assert!(!is_destroy_due(i64::MAX, DESTROY_INTERVAL / 2));
        assert!(!is_destroy_due(BYTES_PER_DESTROY - 1, DESTROY_INTERVAL * 100));
        assert!(is_destroy_due(BYTES_PER_DESTROY, DESTROY_INTERVAL));
    }

    /// Leases alone make no revision that could be compacted.
    #[tokio::test]
    async fn the_log_of_leases_behind_the_compacted_revision_is_given_up() {
        for (logged, watermark) in [(100, Slot::FIRST), (100 + MAX_UNNEEDED_LOG_BYTES, Slot(1_999))] {
            let (log, rows): (DynLog, DynRows) = (Arc::new(MemLog::new()), Arc::new(MemRows::new()));
            let manifest = Manifest {
                revision: 4,
                compacted: 4,
                deleted_up_to: 4,
                ..Manifest::fresh()
            };
            rows.apply(None, manifest.encode_to_vec().into(), Vec::new())
                .await
                .unwrap();
            let state = Replica::load(&log, &rows).await.unwrap().state().clone();
            let leases = ImmutableMemtable {
                memtable: MemtableSet::new().active().clone(),
                applied_slot: Slot(2_000),
                last: Slot(1_999),
                revision: 4,
                compacted: 4,
                state_rows: Vec::new(),
                has_auth: false,
                alarms: Vec::new(),
                sizes: StoredSizes {
                    logged,
                    unversioned: logged,
                    ..manifest.sizes
                },
            };
            let (immutable, to_flush) = mpsc::channel(1);
            let (flushed, mut from_flush) = mpsc::channel(1);
            let context = crate::flush::FlusherContext {
                metrics: Arc::new(Metrics::new(false)),
                stop: CancellationToken::new(),
            };
            let immutables = [Arc::new(leases)];
            let engine = engine::LogAndRows {
                log: log.clone(),
                rows: rows.clone(),
            };
            let flusher = Flusher::new(
                engine,
                state.clone(),
                manifest,
                immutables.iter(),
                to_flush,
                flushed,
                context,
            );
            drop(immutable);
            let shown = async { while from_flush.recv().await.is_some() {} };
            let (ended, ()) = tokio::join!(flusher.run(), shown);
            ended.unwrap();
            assert_eq!(log.watermark().await.unwrap(), watermark, "{logged} bytes of log");
            let kept = state.sizes();
            assert!(kept.logged - kept.dropped <= MAX_UNNEEDED_LOG_BYTES, "{kept:?}");
            // It is counted as long as the log keeps it.
            let stored = Manifest::decode(rows.fence().await.unwrap().unwrap()).unwrap();
            let counted = if watermark == Slot::FIRST { 100 } else { 0 };
            assert_eq!(stored.sizes.unversioned(), counted);
        }
    }
}
