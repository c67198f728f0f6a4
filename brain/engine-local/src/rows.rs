//! Rows on local disk: fjall 3, an LSM tree with a journal of its own.
//!
//! All rows and the fence live in **one** keyspace, and each `apply` is one batch that also writes the fence. So a crash loses a suffix
//! of whole batches, and a fence never covers missing rows. The journal is not synced by `apply`, only by `sync`.
//!
//! The fence row carries the number of its batch, one more than the batch before. With it `open` proves that no batch is missing in the
//! middle, which fjall by itself does not detect (see [`FjallRows::open`]).
//!
//! | damage | detected by |
//! |---|---|
//! | a bit of a table's block, index or filter | fjall, when it reads the block (checksum): [`RowsError::Corrupt`] |
//! | a table is missing | fjall at open |
//! | a bit of a manifest (`vN`, `current`) | we at open; fjall stores a checksum and does not look at it |
//! | a manifest, journal, lock or version file is missing | we at open; fjall would delete the rest of the keyspace, or begin an empty one |
//! | a bit of the synced part of the newest journal | the reader of the fence: fjall and we cut there, as at a torn tail, and an older fence comes back |
//! | a bit of an older journal, a journal missing or rolled back, an older manifest | we at open; fjall cuts or skips in silence |
//! | the whole directory rolled back | the reader of the fence: all rows are as old as the fence |
//! | tables exchanged against valid ones of another database | nothing |
//!
//! fjall has one background thread, which flushes memtables to tables, and we have one, which merges tables (`merge.rs`). Both
//! sleep when there is nothing to do, and have no timers.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, PersistMode};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use self::counts::MAX_LEFT_OVER_BYTES;
use self::guard::{FjallHealth, caught};
use self::layout::{FENCE_ROW, stored};
use self::merge::{Merger, left_over};
pub use self::open::RowsOpenError;
use self::quota::RowsQuota;
pub use self::read::FjallSnapshot;
use self::read::LiveViews;
pub use self::stored::StoredRows;
use engine::rows::{DynSnapshot, RowChange, Rows, RowsError, StepSize, apply_in_turn, check_lengths};
use runtime::kill_points;

mod backpressure;
mod counts;
mod guard;
mod inspect;
mod journal;
mod journal_retirement;
mod layout;
mod live_bytes;
mod merge;
mod open;
mod pace;
mod quota;
mod read;
mod shape;
mod stored;

/// The longest row key in bytes: fjall stores lengths in 16 bits, and one byte is ours.
pub const MAX_KEY_LEN: usize = 65_534;

/// fjall takes no smaller memtables.
const MIN_MEMTABLE_BYTES: u64 = 64 << 10;

/// The longest value of a row in bytes. fjall stores lengths in 32 bits, but copies a value several times.
pub const MAX_VALUE_LEN: usize = 256 << 20;

/// Maximum age of a view. The views of an idle store must not keep the files of compacted tables either.
const MAX_VIEW_AGE: Duration = Duration::from_secs(10);

/// Maximum age of a view when space is short.
const MAX_VIEW_AGE_TIGHT_SPACE: Duration = Duration::from_millis(500);

/// Time for which a compaction waits until views are renewed. A client that reads an old one slowly holds it up no longer.
const VIEW_RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);
const VIEW_RENEWAL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of consecutive waits of a compaction for views to be renewed.
const MAX_RENEWAL_WAITS: usize = 20;

/// The most merges of one defragmentation: this many, and more for each table that exists when it begins.
const BASE_DEFRAGMENT_MERGES: usize = 64;
const DEFRAGMENT_MERGES_PER_TABLE: usize = 4;

/// The resources of the machine that the rows may use.
#[derive(Debug, Clone)]
pub struct FjallOptions {
    /// Bytes of memory for blocks, indexes and filters.
    pub cache_bytes: u64,
    /// Bytes of new rows kept in memory before they become a table; up to three times as much may be in memory under load.
    pub memtable_bytes: u64,
    /// Bytes that the rows may occupy, if there is a limit: tables are smaller, and merged in time, where it is small.
    pub quota_bytes: Option<u64>,
    /// Bytes of journals on disk above which old ones are retired early; at least 64 MiB.
    pub journal_bytes: u64,
    /// Files kept open; at least 10.
    pub open_files: NonZeroUsize,
    /// Bytes that must stay free on the medium: `apply` answers [`RowsError::Full`] before it would use them, because fjall does not
    /// survive a full disk.
    pub reserve_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            quota_bytes: None,
            journal_bytes: 128 << 20,
            open_files: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
            reserve_bytes: 16 << 20,
        }
    }
}

impl FjallOptions {
    fn quota(&self) -> Option<RowsQuota> {
        self.quota_bytes.map(RowsQuota)
    }

    /// Returns the bytes of new rows that are flushed to one table.
    fn table_bytes(&self) -> u64 {
        let bytes = match self.quota() {
            Some(quota) => quota.memtable_bytes(self.memtable_bytes),
            None => self.memtable_bytes,
        };
        bytes.max(MIN_MEMTABLE_BYTES)
    }
}

/// Rows on local disk. Clones share them; the last clone and snapshot dropped closes the files.
///
/// Point reads run on the caller's thread: they take microseconds when cached, and one disk read when not. Scans and gets of many rows run
/// on a blocking thread; rows deleted but not yet compacted cost a scan time and do not count for its limits.
#[derive(Clone)]
pub struct FjallRows {
    shared: Arc<FjallShared>,
}

struct FjallShared {
    /// Gone first: it uses the rest.
    merger: Merger,
    live: LiveViews,
    dir: PathBuf,
    database: Database,
    keyspace: Keyspace,
    options: FjallOptions,
    health: FjallHealth,
    writer: Arc<Mutex<FjallWriter>>,
    /// The rows as of the last batch. Taken by the writer: fjall's newest view may show half of a batch that is being applied.
    view: ArcSwap<FjallSnapshot>,
    /// Asks for younger views.
    renewal: Arc<Notify>,
    cut: Option<String>,
}

/// The work that a compaction has not done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompactionWork {
    /// Tables are not in the last level yet.
    Tables,
    /// The last level may hold what no view needs.
    LastLevel,
    Nothing,
}

struct FjallWriter {
    /// Number of the last batch; 0 when there is none.
    batch: u64,
    /// The last batch when views were renewed last.
    renewed: u64,
    /// Deletions since a table was made because of them.
    deleted: u64,
    fence: Option<Bytes>,
}

impl FjallRows {
    /// Opens the rows in the directory `dir`, which is created if it is missing or empty. Blocks, longer for longer journals.
    ///
    /// # Errors
    /// [`RowsOpenError`]: the rows are in use, newer, damaged (with the name of a file if one is to blame), or out of reach. Damaged files are
    /// not changed.
    pub fn open(dir: &Path, options: FjallOptions) -> Result<Self, RowsOpenError> {
        Self::open_for(dir, options, |_| Ok(()))
    }

    /// The same; a damaged newest journal is only cut if `covers` finds that the log has everything after the fence that remains. Otherwise
    /// it fails with [`RowsOpenError::Uncovered`].
    pub fn open_for(
        dir: &Path,
        options: FjallOptions,
        covers: impl Fn(Option<Bytes>) -> anyhow::Result<()>,
    ) -> Result<Self, RowsOpenError> {
        open::open(dir, options, covers).map(|shared| Self {
            shared: Arc::new(shared),
        })
    }

    /// The place at which `open` cut the newest journal, as one line; `None` if it cut nothing. A cut after a crash is harmless; if the
    /// fence is then older than it must be, this is the place of the damage.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.shared.cut.as_deref()
    }
}

impl FjallRows {
    /// Has views renewed that are older than the rows in tables: merges keep what these see, and what comes to the last level stays there.
    async fn renew_views(&self) -> Result<(), RowsError> {
        let mut writer = self.shared.writer.clone().lock_owned().await;
        let shared = self.shared.clone();
        guard::blocking(move || shared.touch(&mut writer)).await?;
        let begun = Instant::now();
        while !self.shared.merger.are_views_younger() && begun.elapsed() < VIEW_RENEWAL_TIMEOUT {
            self.shared.renewal.notify_one();
            tokio::time::sleep(VIEW_RENEWAL_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Has the files of replaced tables removed that only views before the merges need. A view that is read slowly keeps them longer.
    async fn discard(&self) -> Result<(), RowsError> {
        let begun = Instant::now();
        loop {
            let writer = self.shared.writer.clone().lock_owned().await;
            let shared = self.shared.clone();
            let released = guard::blocking(move || {
                let mut writer = writer;
                shared.release(&mut writer, 1)
            });
            match released.await {
                // All is merged, which is what was asked for.
                Err(RowsError::Full(_)) => return Ok(()),
                released => released?,
            }
            if left_over(&self.shared.keyspace)? == 0 || begun.elapsed() >= VIEW_RENEWAL_TIMEOUT {
                return Ok(());
            }
            self.shared.renewal.notify_one();
            tokio::time::sleep(VIEW_RENEWAL_POLL_INTERVAL).await;
        }
    }
}

#[async_trait]
impl Rows for FjallRows {
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError> {
        if let Ok(writer) = self.shared.writer.clone().try_lock_owned() {
            let shared = self.shared.clone();
            let (writer, is_idle) = guard::blocking(move || {
                let mut writer = writer;
                shared.release(&mut writer, MAX_LEFT_OVER_BYTES)?;
                // The rows that they delete may have become a table only after them.
                shared.table_deletions(&mut writer)?;
                let is_idle = writer.renewed == writer.batch;
                writer.renewed = writer.batch;
                Ok((writer, is_idle))
            })
            .await?;
            if is_idle && self.shared.has_long_journals() {
                self.retire_journal(writer).await?;
            }
            // Views are younger now: tables that only the older ones needed may go.
            self.shared.merger.ask();
        }
        Ok(self.shared.view.load_full())
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        Ok(self.shared.writer.lock().await.fence.clone())
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError> {
        check_lengths(&changes, MAX_KEY_LEN, MAX_VALUE_LEN)?;
        let writer = self.shared.writer.clone().lock_owned().await;
        self.shared.health.check()?;
        if writer.fence != expected {
            if writer.fence.as_ref() == Some(&fence) {
                return Ok(()); // done before
            }
            return Err(RowsError::Fenced(writer.fence.clone()));
        }
        let writer = self.shared.wait_for_room(writer, &changes).await?;
        self.shared.keep_pace(&changes).await;
        let shared = self.shared.clone();
        // The lock goes along: a caller that stops waiting does not let the next batch in.
        guard::blocking(move || {
            let mut writer = writer;
            shared.commit(&mut writer, fence, &changes, 0)
        })
        .await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        Ok(()) // the lock on the files shuts other writers out
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.shared.health.check()?;
        let shared = self.shared.clone();
        guard::blocking(move || shared.write(|| shared.database.persist(PersistMode::SyncAll))).await
    }

    /// Files of tables that were compacted go when no snapshot is older.
    fn renew_after(&self) -> Option<Duration> {
        Some(match self.shared.merger.is_tight() {
            true => MAX_VIEW_AGE_TIGHT_SPACE,
            false => MAX_VIEW_AGE,
        })
    }

    async fn compact(&self) -> Result<(), RowsError> {
        let writer = self.shared.writer.clone().lock_owned().await;
        self.retire_journal(writer).await?;
        let shared = self.shared.clone();
        // Flushes all rows to tables. Rows that are written after this stay in memory.
        guard::blocking(move || shared.write(|| shared.keyspace.rotate_memtable()).map(|_| ())).await?;
        self.shared.wait_for_tables().await?;
        self.renew_views().await?;
        let (mut waits, mut left) = (0, CompactionWork::Tables);
        // Later writes make new tables. These need not come down, or this would not end before the writes do.
        let mut merges = BASE_DEFRAGMENT_MERGES + DEFRAGMENT_MERGES_PER_TABLE * self.shared.keyspace.tree.table_count();
        loop {
            merges = merges.saturating_sub(1);
            if merges == 0 && left == CompactionWork::Tables {
                tracing::info!("defragmentation stopped before all rows were in one level: rows are written too fast");
                left = CompactionWork::LastLevel;
            }
            let shared = self.shared.clone();
            let done = guard::blocking(move || shared.compact(left)).await;
            let writer = self.shared.writer.clone().lock_owned().await;
            let shared = self.shared.clone();
            guard::blocking(move || {
                let mut writer = writer;
                shared.release(&mut writer, 1)
            })
            .await?;
            match done {
                Ok(CompactionWork::Nothing) => return self.discard().await,
                Ok(next) => (waits, left) = (0, next),
                // Tables that views keep are deleted once the views are renewed.
                Err(RowsError::Full(_)) if waits < MAX_RENEWAL_WAITS && left_over(&self.shared.keyspace)? > 0 => {
                    waits += 1;
                    tokio::time::sleep(MAX_VIEW_AGE_TIGHT_SPACE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn renewal_asked(&self) {
        self.shared.renewal.notified().await;
    }

    fn open_snapshots(&self) -> Option<u64> {
        Some(self.shared.live.len())
    }

    fn to_come(&self) -> u64 {
        self.shared.merger.to_come()
    }

    fn left_over(&self) -> u64 {
        left_over(&self.shared.keyspace).unwrap_or(0)
    }

    fn step(&self) -> StepSize {
        StepSize::LOCAL
    }

    fn max_key_len(&self) -> usize {
        MAX_KEY_LEN
    }

    fn max_value_len(&self) -> usize {
        MAX_VALUE_LEN
    }

    fn size(&self) -> Option<u64> {
        Some(self.shared.bytes())
    }

    fn is_reclaiming(&self) -> bool {
        self.shared.merger.may_reclaim()
    }

    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
        apply_in_turn(self, fence, steps).await
    }
}

impl FjallShared {
    /// Bytes of all rows.
    fn bytes(&self) -> u64 {
        self.keyspace.disk_space() + self.database.write_buffer_size()
    }

    /// Runs a write. If it fails, it is unknown how much of it was applied, so no write may follow it.
    fn write<T>(&self, write: impl FnOnce() -> fjall::Result<T>) -> Result<T, RowsError> {
        self.health.check()?;
        caught(write).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: RowsError) -> RowsError {
        let error = self.explained(error);
        self.health.fail(&error);
        error
    }

    /// Adds the known cause to fjall's refusal to continue; fjall itself only logs it.
    fn explained(&self, error: RowsError) -> RowsError {
        match error {
            RowsError::Failed(source)
                if source
                    .downcast_ref::<fjall::Error>()
                    .is_some_and(|e| matches!(e, fjall::Error::Poisoned)) =>
            {
                let cause = match self
                    .merger
                    .try_to_merge()
                    .and_then(|()| inspect::require_space(&self.dir, self.options.reserve_bytes))
                {
                    Ok(()) => "see the preceding log lines of fjall for the cause".to_owned(),
                    Err(cause) => guard::describe(&cause),
                };
                RowsError::Failed(source.context(format!("fjall's thread for tables ended: {cause}")))
            }
            error => error,
        }
    }

    fn commit(
        &self,
        writer: &mut FjallWriter,
        fence: Bytes,
        changes: &[RowChange],
        padding: usize,
    ) -> Result<(), RowsError> {
        let bytes: usize = changes.iter().map(RowChange::len).sum();
        // Moving the fence must be possible on a disk that is all but full, or a restart would not be.
        let needed = if changes.is_empty() {
            self.options.reserve_bytes / 8
        } else {
            self.needed(bytes)
        };
        inspect::require_space(&self.dir, needed)?;
        let batch = writer.batch + 1;
        self.write(|| {
            let mut rows = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), changes.len() + 1);
            for change in changes {
                match change {
                    RowChange::Put(key, value) => rows.insert(&self.keyspace, stored(key), value.as_ref()),
                    RowChange::Delete(key) => rows.remove(&self.keyspace, stored(key)),
                }
            }
            rows.insert(&self.keyspace, FENCE_ROW, layout::fence_value(batch, &fence, padding));
            rows.commit()?;
            kill_points::reach("journal-written");
            if writer.fence.is_none() {
                // It ties the rows to their log: from now on one without the other is refused.
                self.database.persist(PersistMode::SyncAll)?;
            }
            Ok(())
        })?;
        self.merger.ask();
        writer.batch = batch;
        writer.fence = Some(fence);
        self.view.store(Arc::new(FjallSnapshot::take(
            &self.database,
            &self.keyspace,
            &self.live,
        )));
        let deletions = changes.iter().filter(|change| matches!(change, RowChange::Delete(_)));
        writer.deleted += deletions.count() as u64;
        self.table_rows()?;
        self.table_deletions(writer)
    }

    /// Flushes the memtable to a table if it has the size that the quota asks for. fjall does so at the size without a quota, which it
    /// stored when it made the keyspace.
    fn table_rows(&self) -> Result<(), RowsError> {
        let bytes = self.options.table_bytes();
        if bytes < self.options.memtable_bytes && self.keyspace.tree.active_memtable().size() >= bytes {
            self.write(|| self.keyspace.rotate_memtable())?;
        }
        Ok(())
    }

    /// Flushes the memtable to a table if it has many deletions, or any while the quota is nearly used up: only a merge removes deleted rows,
    /// and merges see only tables.
    fn table_deletions(&self, writer: &mut FjallWriter) -> Result<(), RowsError> {
        let is_pressed = || {
            self.options
                .quota()
                .is_some_and(|quota| quota.is_nearly_used(self.bytes()))
        };
        if writer.deleted > 0 && (self.merger.are_many(writer.deleted) || is_pressed()) {
            writer.deleted = 0;
            self.write(|| self.keyspace.rotate_memtable())?;
        }
        Ok(())
    }

    /// Writes the fence once more, so that views are newer than the compacted rows.
    fn touch(&self, writer: &mut FjallWriter) -> Result<(), RowsError> {
        match writer.fence.clone() {
            Some(fence) => self.commit(writer, fence, &[], 0),
            None => Ok(()),
        }
    }

    /// Merges all tables into one level: all at once if there is enough space, because the new tables exist beside the old ones until they
    /// are complete; else some of them, and in the end the last level with itself. Returns what is left to do. Blocks. While all are merged
    /// at once, fjall writes no other tables.
    fn compact(&self, left: CompactionWork) -> Result<CompactionWork, RowsError> {
        self.health.check()?;
        match left {
            CompactionWork::Tables if self.merger.merge_everything()? => Ok(CompactionWork::Nothing),
            CompactionWork::Tables if self.merger.push_down()? => Ok(CompactionWork::Tables),
            CompactionWork::Tables => Ok(CompactionWork::LastLevel),
            CompactionWork::LastLevel => self.merger.rewrite_last().map(|_| CompactionWork::Nothing),
            CompactionWork::Nothing => Ok(CompactionWork::Nothing),
        }
    }

    /// Has fjall remove the files of compacted tables, if they hold at least `at_least` bytes. fjall itself does that only when it makes
    /// or merges tables. Files that an older view needs remain.
    fn release(&self, writer: &mut FjallWriter, at_least: u64) -> Result<(), RowsError> {
        let is_due = || {
            let waits = self.merger.waits_for_views() || self.merger.is_over_quota_by_deleted();
            Ok::<_, RowsError>(waits || left_over(&self.keyspace)? >= at_least)
        };
        if writer.fence.is_none() || !is_due()? {
            return Ok(());
        }
        self.touch(writer)?;
        self.write(|| {
            let mut versions = self.keyspace.tree.get_version_history_lock();
            Ok(versions.maintenance(self.keyspace.path(), self.live.watermark())?)
        })
    }
}

impl std::fmt::Debug for FjallRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallRows")
            .field("dir", &self.shared.dir)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
