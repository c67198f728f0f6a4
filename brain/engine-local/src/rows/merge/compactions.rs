//! The compactions of lsm-tree that merges consist of: one at a time, with their space promised, and without files of one that failed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use lsm_tree::compaction::{CompactionStrategy, PullDown};
use lsm_tree::{AbstractTree as _, TableId};

use super::super::counts::TableCounts;
use super::super::guard::caught;
use super::super::inspect;
use super::super::live_bytes::{LiveBytes, TableContents};
use super::super::shape::{LAST_LEVEL, Levels, MergeShape};
use super::{FULL_MERGE_TABLE_BYTES, LARGE_TABLE_FACTOR, MAX_PULLED_MEMTABLES, MergeWork, with_overhead};
use engine::rows::RowsError;
use runtime::kill_points;

impl MergeWork {
    pub(super) fn push_down(&self) -> Result<bool, RowsError> {
        let table_bytes = self.limits.memtable_bytes;
        let done = self.step(MergeShape::down(table_bytes))?;
        if done || !Levels::of(&self.tree).is_spread() {
            return Ok(done);
        }
        // Few rows above very many: lsm-tree looks at such merges only where tables are large.
        if self.step(MergeShape::down(LARGE_TABLE_FACTOR * table_bytes))? || self.pull_down()? {
            return Ok(true);
        }
        // Its deletions come down to the level that is in the way first.
        if self.is_much_deleted() && self.step(MergeShape::level0(LARGE_TABLE_FACTOR * table_bytes))?
            || self.pull_deleted()?
        {
            return Ok(true);
        }
        // Level 0 must not wait for ever for a level that cannot be merged: nothing would be written any more.
        let is_full = self.tree.l0_run_count() >= usize::from(MergeShape::BUSY_RUNS);
        Ok(is_full && self.step(MergeShape::level0(LARGE_TABLE_FACTOR * table_bytes))?)
    }

    /// Merges a level and the last one whole: lsm-tree does not merge a table whose keys extend beyond those of the level below, until other
    /// tables arrive. Only if the levels are small, because level 0 waits during the merge, and if writes need not wait for space.
    pub(super) fn pull_down(&self) -> Result<bool, RowsError> {
        let _turn = self.begin();
        let Some((level, need)) = Levels::of(&self.tree).lowest() else {
            return Ok(false);
        };
        if need > MAX_PULLED_MEMTABLES * self.limits.memtable_bytes || !self.is_ample(2 * need) {
            return Ok(false);
        }
        self.merge(PullDown(level, LAST_LEVEL), need)
    }

    /// Merges a level and the last one whole, however little space there is, if the tables delete many rows and no view needs those: the
    /// result is much smaller then. Returns [`RowsError::Full`] if there is no space even for that.
    pub(super) fn pull_deleted(&self) -> Result<bool, RowsError> {
        let _turn = self.begin();
        let Some((level, bytes)) = Levels::of(&self.tree).lowest() else {
            return Ok(false);
        };
        if !self.is_much_deleted() {
            return Ok(false);
        }
        let need = match self.require_space(bytes) {
            // Deletions in levels above them are not merged with these two.
            Err(RowsError::Full(_)) if Levels::of(&self.tree).is_highest(level) => {
                bytes.min(self.live_bytes(|| self.state().stop)?)
            }
            outcome => outcome.map(|()| bytes)?,
        };
        self.require_space(need)?;
        let merged = self.merge(PullDown(level, LAST_LEVEL), need)?;
        *self.known() = LiveBytes::default();
        Ok(merged)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, LiveBytes> {
        self.live_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that would be left of all tables. Reads them until `is_over`, if they have changed much since that was done.
    pub(super) fn live_bytes(&self, is_over: impl Fn() -> bool) -> Result<u64, RowsError> {
        let TableCounts {
            rows, deleted, bytes, ..
        } = TableCounts::of(&self.tree);
        let now = TableContents { rows, deleted, bytes };
        // Deletions that are in memory only are not merged, so they are left out unless all views are younger.
        let newest = self.tree.get_highest_persisted_seqno();
        let view = self.live.enter_readable(newest.map_or(0, |newest| newest + 1));
        let mut live_bytes = self.known();
        match live_bytes.known(now) {
            Some(left) => Ok(left),
            None => live_bytes.read(&self.tree, (now, view.number), is_over),
        }
    }

    /// Writes the last level again, if it is no larger than `most` bytes. Returns true if anything was done.
    pub(super) fn rewrite_last(&self, most: u64) -> Result<bool, RowsError> {
        let _turn = self.begin();
        let need = Levels::of(&self.tree).last_bytes();
        // Beside other work it must leave space for writes.
        if need == 0 || need > most || most < u64::MAX && !self.is_ample(2 * need) {
            return Ok(false);
        }
        match self.require_space(need) {
            Err(RowsError::Full(_)) if !TableCounts::of(&self.tree).is_last_much_deleted() => return Ok(false),
            outcome => outcome?,
        }
        kill_points::reach("tables-unmerged");
        self.merge(PullDown(LAST_LEVEL, LAST_LEVEL), need)
    }

    /// Does one merge, if there is something to merge and space for it. Returns true if anything was done. [`RowsError::Full`] leaves
    /// everything as it was: there was no space, or it was used up during the merge.
    pub(super) fn step(&self, shape: MergeShape) -> Result<bool, RowsError> {
        let _turn = self.begin();
        let Some(need) = Levels::of(&self.tree).need(shape) else {
            return Ok(false);
        };
        self.require_space(need)?;
        kill_points::reach("tables-unmerged");
        self.merge(shape.strategy(), need)
    }

    /// Does one merge that may write this many bytes. Returns true if anything was done.
    pub(super) fn merge(
        &self,
        strategy: impl CompactionStrategy + Send + Sync + 'static,
        need: u64,
    ) -> Result<bool, RowsError> {
        let before = self.tree.current_version().id();
        self.promised(need, || self.tree.compact(Arc::new(strategy), self.live.watermark()))?;
        // Every merge that changes something makes a new version.
        Ok(self.tree.current_version().id() != before)
    }

    /// Runs a merge that may write `need` bytes.
    pub(super) fn promised(&self, need: u64, merge: impl FnOnce() -> lsm_tree::Result<()>) -> Result<(), RowsError> {
        let first = self.tree.begin_merge();
        self.under_way.store(need, Ordering::Release);
        self.tree.keep_version();
        let merged = self.tree.settle(caught(merge));
        self.tree.remove_replaced();
        self.under_way.store(0, Ordering::Release);
        kill_points::reach("tables-merged");
        if let Err(RowsError::Full(reason)) = &merged {
            tracing::warn!(
                reason = format!("{reason:#}"),
                "the disk became full while tables of the rows were merged"
            );
            self.note_unfinished(first);
        }
        merged?;
        self.count_left_over()
    }

    pub(super) fn note_unfinished(&self, first: TableId) {
        self.unfinished().extend(first..self.tree.next_table_id());
    }

    pub(super) fn unfinished(&self) -> MutexGuard<'_, BTreeSet<TableId>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other merge runs, and removes tables that were not finished. A merge must not begin before: a table that was
    /// merged away is not known any more, and views may need it.
    pub(super) fn begin(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // A table that is being made may have one of the numbers.
        let _made = self.tree.get_flush_lock();
        self.remove_unfinished();
        turn
    }

    pub(super) fn remove_unfinished(&self) {
        let mut unfinished = self.unfinished();
        if unfinished.is_empty() {
            return;
        }
        for table in self.tree.current_version().iter_tables() {
            unfinished.remove(&table.metadata.id);
        }
        for number in std::mem::take(&mut *unfinished) {
            let path = self.tree.path().join(inspect::TABLES_DIR).join(number.to_string());
            match std::fs::remove_file(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed a table that was not finished"),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, path = %path.display(), "cannot remove an unfinished table"),
            }
        }
    }

    /// Merges all tables at once, if there is ample space: the new tables exist beside the old ones until they are complete, and
    /// writes must not wait for space during the merge. Returns true if it was done.
    pub(super) fn merge_everything(&self) -> Result<bool, RowsError> {
        let _turn = self.begin();
        let need = with_overhead(self.tree.disk_space());
        if inspect::require_space(&self.dir, self.tight_below() + 2 * need).is_err() {
            return Ok(false);
        }
        self.promised(need, || {
            self.tree.major_compact(FULL_MERGE_TABLE_BYTES, self.live.watermark())
        })?;
        Ok(true)
    }
}
