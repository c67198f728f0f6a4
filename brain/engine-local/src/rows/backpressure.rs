//! Makes writes wait for fjall, without holding a thread up: for tables to be written and merged, and for space on the medium.

use std::sync::Arc;
use std::time::Duration;

use fjall::{AbstractTree, PersistMode};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::counts::MAX_LEFT_OVER_BYTES;
use super::guard::caught;
use super::{FjallShared, FjallWriter, MAX_VIEW_AGE_TIGHT_SPACE, guard, inspect, pace};
use engine::rows::{RowChange, RowsError};
use runtime::log_once::LogBackoff;

/// fjall holds writes up, in a blocking loop, at four tables in memory and at twenty runs in level 0. We wait before that.
const MAX_SEALED_MEMTABLES: usize = 3;
pub(super) const MAX_LEVEL0_RUNS: usize = 19;
/// Runs in level 0 at which writes wait for a merge when space is short: fewer, because all of level 0 is merged at once.
const MAX_LEVEL0_RUNS_TIGHT_SPACE: usize = 6;
const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between log lines about one wait.
const STALL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The longest wait of a compaction for tables of the rows in memory.
const SEALED_MEMTABLES_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of bytes kept free for tables that fjall is going to write.
const MAX_FLUSH_RESERVE_BYTES: u64 = 32 << 20;

impl FjallShared {
    /// Waits until fjall can take a batch without blocking the thread. Reads continue during the wait.
    /// Removes files that merges no longer need during the wait.
    pub(super) async fn wait_for_room(
        self: &Arc<Self>,
        mut writer: OwnedMutexGuard<FjallWriter>,
        changes: &[RowChange],
    ) -> Result<OwnedMutexGuard<FjallWriter>, RowsError> {
        let begin = Instant::now();
        let (mut log, mut released) = (LogBackoff::every(STALL_LOG_INTERVAL), begin);
        while self.keyspace.sealed_memtable_count() >= MAX_SEALED_MEMTABLES || !self.has_room_for(changes)? {
            // It will never make room.
            self.check_threads().await?;
            self.merger.ask();
            if log.is_due() {
                tracing::warn!(
                    waited = ?begin.elapsed(),
                    tables = self.keyspace.tree.l0_run_count(),
                    memtables = self.keyspace.sealed_memtable_count(),
                    "rows wait for the disk: tables are written or merged more slowly than rows arrive"
                );
            }
            if released.elapsed() >= MAX_VIEW_AGE_TIGHT_SPACE {
                let shared = self.clone();
                writer =
                    guard::blocking(move || shared.release(&mut writer, MAX_LEFT_OVER_BYTES).map(|()| writer)).await?;
                released = Instant::now();
            }
            tokio::time::sleep(WAIT_POLL_INTERVAL).await;
        }
        Ok(writer)
    }

    /// Waits until fjall has flushed the full memtables. The wait has a limit, because new memtables fill up during it.
    pub(super) async fn wait_for_tables(self: &Arc<Self>) -> Result<(), RowsError> {
        let begin = Instant::now();
        while self.keyspace.sealed_memtable_count() > 0 && begin.elapsed() < SEALED_MEMTABLES_TIMEOUT {
            self.check_threads().await?;
            tokio::time::sleep(WAIT_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Fails if a background thread has died: fjall refuses writes then.
    pub(super) async fn check_threads(self: &Arc<Self>) -> Result<(), RowsError> {
        self.health.check()?;
        match caught(|| self.database.persist(PersistMode::Buffer)) {
            Ok(()) => Ok(()),
            Err(error) => {
                let shared = self.clone();
                guard::blocking(move || Err(shared.failed(error))).await
            }
        }
    }

    /// Returns true if there are few enough tables in level 0, and space beside what is reserved for a merge. An empty batch always has
    /// room: without it there would be no restart. Returns [`RowsError::Full`] if there are too many tables, and no space to merge them.
    fn has_room_for(&self, changes: &[RowChange]) -> Result<bool, RowsError> {
        if changes.is_empty() {
            return Ok(true);
        }
        let (runs, under_way) = (self.keyspace.tree.l0_run_count(), self.merger.under_way());
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
        if self.options.quota().is_some_and(|quota| quota.0 < self.bytes()) && self.merger.may_reclaim() {
            return Ok(false);
        }
        let bytes: usize = changes.iter().map(RowChange::len).sum();
        Ok(under_way == 0 || inspect::require_space(&self.dir, self.needed(bytes) + under_way).is_ok())
    }

    /// Returns the bytes that must be free on the medium before a batch of `bytes` is applied.
    pub(super) fn needed(&self, bytes: usize) -> u64 {
        self.options.reserve_bytes + self.tables_to_come() + 2 * bytes as u64
    }

    /// Delays a batch according to the backlog of merges.
    pub(super) async fn keep_pace(&self, changes: &[RowChange]) {
        let bytes = changes.iter().map(RowChange::len).sum();
        let (runs, sealed) = (self.keyspace.tree.l0_run_count(), self.keyspace.sealed_memtable_count());
        let wait = pace::wait(runs, sealed, bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Bytes that fjall needs to flush its memtables: its thread does not survive a full disk.
    /// The result is bounded: clients' writes are refused before the rows refuse a batch.
    fn tables_to_come(&self) -> u64 {
        let in_memory = (self.keyspace.sealed_memtable_count() as u64 + 1) * self.options.table_bytes();
        in_memory.min(MAX_FLUSH_RESERVE_BYTES)
    }
}
