//! Makes writes wait without holding a thread up: for tables to be merged, and for space on the medium.

use std::sync::Arc;
use std::time::Duration;

use lsm_tree::AbstractTree as _;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::counts::MAX_LEFT_OVER_BYTES;
use super::write::{LsmWriter, bytes_of};
use super::{LsmShared, MAX_VIEW_AGE_AWAITED, guard, inspect, pace};
use engine::rows::{RowChange, RowsError};
use runtime::log_once::LogBackoff;

/// Runs in level 0 at which writes wait for a merge: reads look into each of them.
pub(super) const MAX_LEVEL0_RUNS: usize = 36;
/// Runs in level 0 at which writes wait for a merge when space is short: fewer, because all of level 0 is merged at once.
const MAX_LEVEL0_RUNS_TIGHT_SPACE: usize = 6;
const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between log lines about one wait.
const STALL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of bytes kept free for tables of the rows in memory.
const MAX_FLUSH_RESERVE_BYTES: u64 = 32 << 20;

impl LsmShared {
    /// Waits until there is room for a batch. Reads continue during the wait.
    /// Removes files that merges no longer need during the wait.
    pub(super) async fn wait_for_room(
        self: &Arc<Self>,
        mut writer: OwnedMutexGuard<LsmWriter>,
        changes: &[RowChange],
    ) -> Result<OwnedMutexGuard<LsmWriter>, RowsError> {
        let begin = Instant::now();
        let (mut log, mut released) = (LogBackoff::every(STALL_LOG_INTERVAL), begin);
        while !self.has_room_for(changes)? {
            // It will never make room.
            self.health.check()?;
            self.merger.ask();
            if log.is_due() {
                tracing::warn!(
                    waited = ?begin.elapsed(),
                    tables = self.tree.l0_run_count(),
                    "rows wait for the disk: tables are merged more slowly than rows arrive"
                );
            }
            if released.elapsed() >= MAX_VIEW_AGE_AWAITED {
                let shared = self.clone();
                writer =
                    guard::blocking(move || shared.release(&mut writer, MAX_LEFT_OVER_BYTES).map(|()| writer)).await?;
                released = Instant::now();
            }
            tokio::time::sleep(WAIT_POLL_INTERVAL).await;
        }
        Ok(writer)
    }

    /// Returns true if there are few enough tables in level 0, and space beside what is reserved for a merge. An empty batch always has
    /// room: without it there would be no restart. Returns [`RowsError::Full`] if there are too many tables, and no space to merge them.
    fn has_room_for(&self, changes: &[RowChange]) -> Result<bool, RowsError> {
        if changes.is_empty() {
            return Ok(true);
        }
        let (runs, under_way) = (self.tree.l0_run_count(), self.merger.under_way());
        if runs >= MAX_LEVEL0_RUNS {
            if under_way == 0 {
                self.merger.has_work()?;
            }
            return Ok(false);
        }
        if runs >= MAX_LEVEL0_RUNS_TIGHT_SPACE
            && self.merger.is_tight()
            && (under_way > 0 || self.merger.has_work().is_ok_and(|work| work))
        {
            return Ok(false);
        }
        // The merge that gives space back goes first: a quota that is used up by garbage alone is no reason to refuse writes.
        if self.options.quota().is_some_and(|quota| quota.0 < self.tree.bytes()) && self.merger.may_reclaim() {
            return Ok(false);
        }
        let needed = self.needed(bytes_of(changes)) + under_way;
        Ok(under_way == 0 || inspect::require_space(&self.dir, needed).is_ok())
    }

    /// Returns the bytes that must be free on the medium before a batch of `bytes` is applied.
    pub(super) fn needed(&self, bytes: u64) -> u64 {
        self.options.reserve_bytes + self.tables_to_come() + 2 * bytes
    }

    /// Delays a batch according to the backlog of merges.
    pub(super) async fn keep_pace(&self, changes: &[RowChange]) {
        let bytes = changes.iter().map(RowChange::len).sum();
        let wait = pace::wait(self.tree.l0_run_count(), bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Bytes that a table of the rows in memory needs.
    /// The result is bounded: clients' writes are refused before the rows refuse a batch.
    fn tables_to_come(&self) -> u64 {
        (self.tree.in_memory() + self.options.table_bytes()).min(MAX_FLUSH_RESERVE_BYTES)
    }
}
