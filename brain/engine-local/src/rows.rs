//! Rows on local disk, in an LSM tree without a log of its own: what is lost in a crash is read again from the log that the rows trail.
//!
//! All rows and the fence live in **one** tree. `apply` keeps a small batch in memory; a large one it writes to tables, together with all
//! that is in memory, which become a part of the tree at once. So a crash loses a suffix of whole batches, and a fence never covers missing
//! rows. `sync` writes what is in memory to a table. Tables, and the manifest that names them, are synced when they are written.
//!
//! | damage | detected by |
//! |---|---|
//! | a bit of a table's block, index or filter | lsm-tree, when it reads the block (checksum): [`RowsError::Corrupt`] |
//! | a table is missing | lsm-tree at open |
//! | a bit of a manifest (`vN`, `current`) | we at open; lsm-tree stores a checksum and does not look at it |
//! | a manifest, the lock file or the tree is missing | we at open; lsm-tree would begin an empty one |
//! | an older manifest | lsm-tree at open, if a table of it is gone; else the reader of the fence |
//! | the whole directory rolled back | the reader of the fence: all rows are as old as the fence |
//! | tables exchanged against valid ones of another tree | nothing |
//!
//! One thread merges tables (`merge.rs`). It sleeps when there is nothing to do.
//!
//! Former versions used fjall, whose directories are converted once (`former.rs`).

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use lsm_tree::AbstractTree as _;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use self::counts::MAX_LEFT_OVER_BYTES;
use self::guard::RowsHealth;
use self::merge::{Merger, left_over};
pub use self::open::RowsOpenError;
use self::quota::RowsQuota;
use self::read::LiveViews;
pub use self::read::LsmSnapshot;
use self::removal::TableRemover;
pub use self::stored::StoredRows;
use self::tree::RowsTree;
use self::write::LsmWriter;
use engine::rows::{DynSnapshot, RowChange, Rows, RowsError, StepSize, apply_in_turn, check_lengths};

mod backpressure;
mod counts;
mod former;
mod guard;
mod inspect;
mod layout;
mod live_bytes;
mod merge;
mod open;
mod pace;
mod quota;
mod read;
mod removal;
mod shape;
mod stored;
mod tree;
mod write;
mod writeback;

/// The longest row key in bytes: lsm-tree stores lengths in 16 bits, and one byte is ours.
pub const MAX_KEY_LEN: usize = 65_534;

/// The smallest tables that are written.
const MIN_MEMTABLE_BYTES: u64 = 64 << 10;

/// The longest value of a row in bytes. lsm-tree stores lengths in 32 bits, but copies a value several times.
pub const MAX_VALUE_LEN: usize = 256 << 20;

/// Maximum age of a view. The views of an idle store must not keep the files of compacted tables either.
const MAX_VIEW_AGE: Duration = Duration::from_secs(10);

/// Maximum age of a view when space is short, or many merged tables wait for younger ones.
const MAX_VIEW_AGE_AWAITED: Duration = Duration::from_millis(500);

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
pub struct LsmOptions {
    /// Bytes of memory for blocks, indexes and filters.
    pub cache_bytes: u64,
    /// Bytes of new rows that become a table; fewer of them are kept in memory until then.
    pub memtable_bytes: u64,
    /// Bytes that the rows may occupy, if there is a limit: tables are smaller, and merged in time, where it is small.
    pub quota_bytes: Option<u64>,
    /// Files kept open; at least 10.
    pub open_files: NonZeroUsize,
    /// Bytes that must stay free on the medium: `apply` answers [`RowsError::Full`] before it would use them, so that there is space for
    /// merges, which give space back.
    pub reserve_bytes: u64,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            quota_bytes: None,
            open_files: NonZeroUsize::new(256).unwrap_or(NonZeroUsize::MIN),
            reserve_bytes: 16 << 20,
        }
    }
}

impl LsmOptions {
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
pub struct LsmRows {
    shared: Arc<LsmShared>,
}

struct LsmShared {
    /// Gone first: it uses the rest.
    merger: Merger,
    _remover: TableRemover,
    live: LiveViews,
    dir: PathBuf,
    tree: RowsTree,
    options: LsmOptions,
    health: RowsHealth,
    writer: Arc<Mutex<LsmWriter>>,
    /// The rows as of the last batch. Taken by the writer: a newer view may show half of a batch that is being applied.
    view: ArcSwap<LsmSnapshot>,
    /// Asks for younger views.
    renewal: Arc<Notify>,
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

impl LsmRows {
    /// Opens the rows in the directory `dir`, which is created if it is missing or empty. Blocks.
    ///
    /// # Errors
    /// [`RowsOpenError`]: the rows are in use, newer, damaged (with the name of a file if one is to blame), or out of reach. Damaged files are
    /// not changed.
    pub fn open(dir: &Path, options: LsmOptions) -> Result<Self, RowsOpenError> {
        Self::open_for(dir, options, |_| Ok(()))
    }

    /// The same; rows of the former layout whose newest journal is damaged are only converted if `covers` finds that the log has everything
    /// after the fence that remains. Otherwise it fails with [`RowsOpenError::Uncovered`].
    pub fn open_for(
        dir: &Path,
        options: LsmOptions,
        covers: impl Fn(Option<Bytes>) -> anyhow::Result<()>,
    ) -> Result<Self, RowsOpenError> {
        open::open(dir, options, covers).map(|shared| Self {
            shared: Arc::new(shared),
        })
    }

    /// Runs a blocking part of the writer's work.
    async fn with_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LsmShared, &mut LsmWriter) -> Result<T, RowsError> + Send + 'static,
    ) -> Result<T, RowsError> {
        let mut writer = self.shared.writer.clone().lock_owned().await;
        let shared = self.shared.clone();
        // The lock goes along: a caller that stops waiting does not let the next one in.
        guard::blocking(move || work(&shared, &mut writer)).await
    }

    /// Has views renewed that are older than the rows in tables: merges keep what these see, and what comes to the last level stays there.
    async fn renew_views(&self) -> Result<(), RowsError> {
        self.shared.renew_view(&*self.shared.writer.lock().await);
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
            self.with_writer(|shared, writer| shared.release(writer, 1)).await?;
            if left_over(&self.shared.tree)? == 0 || begun.elapsed() >= VIEW_RENEWAL_TIMEOUT {
                return Ok(());
            }
            self.shared.renewal.notify_one();
            tokio::time::sleep(VIEW_RENEWAL_POLL_INTERVAL).await;
        }
    }
}

#[async_trait]
impl Rows for LsmRows {
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError> {
        if let Ok(mut writer) = self.shared.writer.clone().try_lock_owned() {
            let shared = self.shared.clone();
            guard::blocking(move || {
                shared.release(&mut writer, MAX_LEFT_OVER_BYTES)?;
                // The rows that they delete may have become a table only after them.
                shared.table_deletions(&mut writer)
            })
            .await?;
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
        let mut writer = self.shared.wait_for_room(writer, &changes).await?;
        self.shared.keep_pace(&changes).await;
        let shared = self.shared.clone();
        // The lock goes along: a caller that stops waiting does not let the next batch in.
        guard::blocking(move || shared.commit(&mut writer, fence, changes)).await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        Ok(()) // the lock on the files shuts other writers out
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.with_writer(|shared, writer| shared.sync(writer)).await
    }

    /// Files of tables that were compacted go when no snapshot is older.
    fn renew_after(&self) -> Option<Duration> {
        let merger = &self.shared.merger;
        Some(match merger.is_renewal_due() || merger.is_tight() {
            true => MAX_VIEW_AGE_AWAITED,
            false => MAX_VIEW_AGE,
        })
    }

    async fn compact(&self) -> Result<(), RowsError> {
        // Rows that are written after this stay in memory.
        self.sync().await?;
        self.renew_views().await?;
        let (mut waits, mut left) = (0, CompactionWork::Tables);
        // Later writes make new tables. These need not come down, or this would not end before the writes do.
        let mut merges = BASE_DEFRAGMENT_MERGES + DEFRAGMENT_MERGES_PER_TABLE * self.shared.tree.table_count();
        loop {
            merges = merges.saturating_sub(1);
            if merges == 0 && left == CompactionWork::Tables {
                tracing::info!("defragmentation stopped before all rows were in one level: rows are written too fast");
                left = CompactionWork::LastLevel;
            }
            let shared = self.shared.clone();
            let done = guard::blocking(move || shared.compact(left)).await;
            self.with_writer(|shared, writer| shared.release(writer, 1)).await?;
            match done {
                Ok(CompactionWork::Nothing) => return self.discard().await,
                Ok(next) => (waits, left) = (0, next),
                // Tables that views keep are deleted once the views are renewed.
                Err(RowsError::Full(_)) if waits < MAX_RENEWAL_WAITS && left_over(&self.shared.tree)? > 0 => {
                    waits += 1;
                    tokio::time::sleep(MAX_VIEW_AGE_AWAITED).await;
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
        left_over(&self.shared.tree).unwrap_or(0)
    }

    fn step(&self) -> StepSize {
        // It becomes a table of its own, without being sorted into those in memory.
        StepSize {
            rows: usize::MAX,
            bytes: usize::try_from(self.shared.options.table_bytes()).unwrap_or(usize::MAX),
            at_once: 1,
        }
    }

    fn max_key_len(&self) -> usize {
        MAX_KEY_LEN
    }

    fn max_value_len(&self) -> usize {
        MAX_VALUE_LEN
    }

    fn size(&self) -> Option<u64> {
        Some(self.shared.tree.bytes())
    }

    fn in_use(&self) -> Option<u64> {
        let dead = self.shared.merger.deleted_bytes();
        Some(self.shared.tree.bytes().saturating_sub(dead))
    }

    fn set_in_use(&self, bytes: u64) {
        self.shared.merger.set_in_use(bytes);
    }

    fn is_reclaiming(&self) -> bool {
        self.shared.merger.may_reclaim()
    }

    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
        apply_in_turn(self, fence, steps).await
    }
}

impl LsmShared {
    /// Merges all tables into one level: all at once if there is enough space, because the new tables exist beside the old ones until they
    /// are complete; else some of them, and in the end the last level with itself. Returns what is left to do. Blocks.
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
}

impl std::fmt::Debug for LsmRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmRows")
            .field("dir", &self.shared.dir)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
