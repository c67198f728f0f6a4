//! Writes batches: small ones to memory, and all of that together with a large one to tables.
//!
//! Nothing but a table is durable, and a table holds everything that was written before it. A crash loses the batches that are only in memory;
//! the log has them.

use std::sync::Arc;

use bytes::Bytes;
use lsm_tree::merge::Merger as MergedRows;
use lsm_tree::{AbstractTree as _, InternalValue, Memtable, SeqNo, Slice, ValueType};

use super::guard::caught;
use super::layout::{FENCE_ROW, fence_value, stored};
use super::read::LsmSnapshot;
use super::writeback::Writeback;
use super::{LsmShared, inspect};
use engine::rows::{RowChange, RowsError};
use runtime::kill_points;

/// The state of the only writer.
#[derive(Default)]
pub(super) struct LsmWriter {
    pub(super) fence: Option<Bytes>,
    /// Memtables whose table was begun and not finished.
    sealed: Vec<Arc<Memtable>>,
    /// Deletions that are in no table yet.
    deleted: u64,
}

impl LsmWriter {
    pub(super) fn new(fence: Option<Bytes>) -> Self {
        Self {
            fence,
            ..Self::default()
        }
    }
}

/// Changes of one batch, in the order of their rows, each row once; and the fence.
struct Batch {
    number: SeqNo,
    fence: Slice,
    changes: Vec<RowChange>,
}

impl Batch {
    fn new(number: SeqNo, fence: &[u8], mut changes: Vec<RowChange>) -> Self {
        // Stable: of several changes of one row the last one comes last.
        changes.sort_by(|a, b| key_of(a).cmp(key_of(b)));
        changes.dedup_by(|later, kept| {
            let is_same = key_of(later) == key_of(kept);
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        Self {
            number,
            fence: Slice::from(fence_value(fence)),
            changes,
        }
    }

    /// The fence comes first: its key is lower than that of any row.
    fn rows(&self) -> impl Iterator<Item = InternalValue> {
        let fence = InternalValue::from_components(FENCE_ROW, self.fence.clone(), self.number, ValueType::Value);
        let changes = self.changes.iter().map(|change| match change {
            RowChange::Put(key, value) => {
                InternalValue::from_components(stored(key), value.as_ref(), self.number, ValueType::Value)
            }
            RowChange::Delete(key) => InternalValue::new_tombstone(stored(key), self.number),
        });
        std::iter::once(fence).chain(changes)
    }
}

fn key_of(change: &RowChange) -> &[u8] {
    match change {
        RowChange::Put(key, _) | RowChange::Delete(key) => key,
    }
}

pub(super) fn bytes_of(changes: &[RowChange]) -> u64 {
    changes.iter().map(|change| change.len() as u64).sum()
}

/// Leaves out versions of rows that no view needs: those below the watermark that follow a newer one.
fn needed(
    rows: impl Iterator<Item = lsm_tree::Result<InternalValue>>,
    watermark: SeqNo,
) -> impl Iterator<Item = lsm_tree::Result<InternalValue>> {
    let mut last: Option<Slice> = None;
    rows.filter(move |row| {
        let Ok(row) = row else { return true };
        if last.as_ref() == Some(&row.key.user_key) {
            return row.key.seqno >= watermark;
        }
        last = Some(row.key.user_key.clone());
        true
    })
}

impl LsmShared {
    /// Applies a batch. Returns [`RowsError::Full`] if nothing of it was applied for lack of space.
    pub(super) fn commit(
        &self,
        writer: &mut LsmWriter,
        fence: Bytes,
        changes: Vec<RowChange>,
    ) -> Result<(), RowsError> {
        self.health.check()?;
        self.merger.note_batch();
        // Moving the fence must be possible on a disk that is full, or a restart would not be.
        if !changes.is_empty() {
            inspect::require_space(&self.dir, self.needed(bytes_of(&changes)))?;
        }
        self.write(writer, fence, changes)?;
        self.table_deletions(writer)
    }

    /// Applies a batch without a look at the space.
    pub(super) fn write(&self, writer: &mut LsmWriter, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError> {
        let bytes = bytes_of(&changes);
        let deletions = changes.iter().filter(|change| matches!(change, RowChange::Delete(_)));
        let deletions = deletions.count() as u64;
        // The first fence ties the rows to their log: from then on one without the other is refused.
        let is_first = writer.fence.is_none();
        let number = self.tree.draw();
        let batch = Batch::new(number, &fence, changes);
        let table_bytes = self.options.table_bytes();
        if is_first || bytes >= table_bytes / 2 || self.tree.in_memory() + bytes >= table_bytes {
            self.write_tables(writer, Some(&batch))?;
        } else {
            for row in batch.rows() {
                match row.key.value_type {
                    ValueType::Value => self.tree.insert(row.key.user_key, row.value, number),
                    _ => self.tree.remove(row.key.user_key, number),
                };
            }
            self.tree.set_in_memory(self.bytes_in_memory(writer));
            writer.deleted += deletions;
            self.merger.set_unwritten_deletions(writer.deleted);
        }
        writer.fence = Some(fence);
        self.tree.show(number);
        self.show(writer);
        Ok(())
    }

    /// Lets views see everything that was applied.
    fn show(&self, writer: &LsmWriter) {
        let view = LsmSnapshot::take(&self.tree, &writer.sealed, &self.live);
        self.view.store(Arc::new(view));
    }

    /// Takes a view that is younger than all tables.
    pub(super) fn renew_view(&self, writer: &LsmWriter) {
        self.tree.show(self.tree.draw());
        self.show(writer);
    }

    fn bytes_in_memory(&self, writer: &LsmWriter) -> u64 {
        let sealed = writer.sealed.iter().map(|memtable| memtable.size());
        self.tree.active_memtable().size() + sealed.sum::<u64>()
    }

    /// Makes all that was applied durable. Returns [`RowsError::Full`] if there is no space for a table of what is in memory.
    pub(super) fn sync(&self, writer: &mut LsmWriter) -> Result<(), RowsError> {
        self.health.check()?;
        self.write_tables(writer, None)
    }

    /// Writes what is in memory, and a batch, to tables, which become a part of the rows all at once and durably. [`RowsError::Full`] leaves
    /// everything as it was; after any other error nothing is written any more, because it is unknown what the disk has.
    fn write_tables(&self, writer: &mut LsmWriter, batch: Option<&Batch>) -> Result<(), RowsError> {
        let _lock = self.tree.get_flush_lock();
        writer.sealed.extend(self.tree.rotate_memtable());
        if writer.sealed.is_empty() && batch.is_none() {
            return Ok(());
        }
        let (first, watermark) = (self.tree.next_table_id(), self.live.watermark());
        let written = caught(|| {
            let mut sources: Vec<Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + '_>> = Vec::new();
            for memtable in &writer.sealed {
                sources.push(Box::new(memtable.iter().map(Ok)));
            }
            if let Some(batch) = batch {
                sources.push(Box::new(batch.rows().map(Ok)));
            }
            let mut writeback = Writeback::new(self.tree.path(), first);
            let rows = needed(MergedRows::new(sources), watermark).inspect(|row| {
                if let Ok(row) = row {
                    writeback.count(row);
                }
            });
            let Some((tables, _)) = self.tree.flush_to_tables(rows)? else {
                return Ok(());
            };
            kill_points::reach("tables-written");
            let sealed: Vec<_> = writer.sealed.iter().map(|memtable| memtable.id()).collect();
            self.tree.keep_version();
            self.tree.register_tables(&tables, None, None, &sealed, watermark)?;
            // A merge that is under way may replace some of them next.
            self.tree.keep_version();
            Ok(())
        });
        self.tree.remove_replaced();
        match self.tree.settle(written) {
            Ok(()) => {
                kill_points::reach("tables-installed");
                writer.sealed.clear();
                writer.deleted = 0;
                self.merger.set_unwritten_deletions(0);
                self.tree.set_in_memory(0);
                self.merger.ask();
                Ok(())
            }
            Err(error @ RowsError::Full(_)) => {
                self.merger.note_unfinished(first);
                self.merger.ask();
                Err(error)
            }
            Err(error) => {
                self.health.fail(&error);
                Err(error)
            }
        }
    }

    /// Writes a table if many deletions are in memory, or any while the quota is nearly used up or the rows are idle and much of them is
    /// dead: only a merge removes deleted rows, and merges see only tables.
    pub(super) fn table_deletions(&self, writer: &mut LsmWriter) -> Result<(), RowsError> {
        let is_pressed = || {
            self.options
                .quota()
                .is_some_and(|quota| quota.is_nearly_used(self.tree.bytes()))
        };
        let is_due = || self.merger.are_many(writer.deleted) || is_pressed() || self.merger.is_idle_and_dead();
        if writer.deleted == 0 || !is_due() {
            return Ok(());
        }
        match self.write_tables(writer, None) {
            // They stay in memory.
            Err(RowsError::Full(_)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Has the files of compacted tables removed, if they hold at least `at_least` bytes. lsm-tree does that only when it makes or merges
    /// tables. Files that an older view needs remain.
    pub(super) fn release(&self, writer: &mut LsmWriter, at_least: u64) -> Result<(), RowsError> {
        self.health.check()?;
        let waits = self.merger.waits_for_views() || self.merger.is_over_quota_by_deleted();
        if waits || super::merge::left_over(&self.tree)? >= at_least {
            self.renew_view(writer);
            self.tree.keep_version();
            let released = caught(|| {
                let mut versions = self.tree.get_version_history_lock();
                versions.maintenance(self.tree.path(), self.live.watermark())
            });
            self.tree.remove_replaced();
            released.inspect_err(|error| self.health.fail(error))?;
        }
        self.merger.count_left_over()
    }
}
