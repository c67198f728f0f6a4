//! Creating and opening the directory.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
};
use fjall::{AbstractTree, CompressionType, Database, Error, Keyspace, KeyspaceCreateOptions, PersistMode};
use tokio::sync::{Mutex, Notify};

use super::guard::{FjallHealth, caught, io, within};
use super::inspect::{self, named};
use super::journal::{self, Journals};
use super::layout::{FENCE_ROW, KEYSPACE, parse_fence};
use super::merge::{self, MergeLimits, MergeTarget, Merger};
use super::read::{FjallSnapshot, LiveViews};
use super::{FjallOptions, FjallShared, FjallWriter, MIN_MEMTABLE_BYTES};
use engine::rows::RowsError;
use runtime::kill_points;

/// Errors of opening the rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsOpenError {
    /// Stop the other process, or choose another directory.
    #[error("the rows in {0} are in use by another process")]
    InUse(PathBuf),
    /// Start the version that wrote them, or a newer one.
    #[error("{0} has a format of rows that this version does not support")]
    Newer(PathBuf),
    /// The damaged end of the newest journal is stored nowhere else.
    #[error("{flaw}, and the lost rest cannot be taken from the log: {reason:#}; the rows were not changed")]
    Uncovered {
        /// The journal, and where it is damaged.
        flaw: String,
        /// The reason why the log cannot replace the rows.
        reason: anyhow::Error,
    },
    /// As when reading.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

/// fjall's thread pool has a member that spins while another compacts; with one thread there is none.
const WORKER_THREADS: usize = 1;
const MIN_JOURNAL_BYTES: u64 = 64 << 20;
const MIN_OPEN_FILES: usize = 10;

/// Opens rows. `covers` refuses a fence after which the log is not complete.
pub(super) fn open(
    dir: &Path,
    options: FjallOptions,
    covers: impl Fn(Option<Bytes>) -> anyhow::Result<()>,
) -> Result<FjallShared, RowsOpenError> {
    let dir = std::path::absolute(dir).map_err(io)?;
    if inspect::is_vacant(&dir)? {
        create(&dir, &options)?;
    }
    let (lock, journals) = look_before(&dir)?;
    let flaw = journals.flaw();
    let uncovered = |reason| RowsOpenError::Uncovered {
        flaw: flaw.clone().unwrap_or_default(),
        reason,
    };
    if let (Some(_), Some(fence)) = (&flaw, &journals.fence) {
        covers(Some(fence.clone())).map_err(uncovered)?;
    }
    let cut = journals.settle()?;
    drop(lock);
    let opened = start(&dir, &options).and_then(|(database, keyspace)| {
        let (batch, fence) = look_behind(&dir, &keyspace, &journals)?;
        if cut.is_some() {
            covers(fence.clone()).map_err(uncovered)?;
        }
        Ok((database, keyspace, batch, fence))
    });
    let (database, keyspace, batch, fence) = match (opened, cut) {
        (Ok(opened), cut) => {
            if let (Some(flaw), Some(cut)) = (&flaw, cut) {
                let kept = cut.kept.map(|kept| kept.display().to_string());
                tracing::warn!(
                    flaw,
                    kept,
                    "truncated the newest journal of the rows: the log has the removed changes"
                );
            }
            opened
        }
        (Err(error), Some(cut)) => {
            cut.undo()?;
            return Err(error);
        }
        (Err(error), None) => return Err(error),
    };
    let (live, health) = (LiveViews::default(), FjallHealth::default());
    let view = ArcSwap::from_pointee(FjallSnapshot::take(&database, &keyspace, &live));
    let limits = MergeLimits {
        memtable_bytes: options.table_bytes(),
        reserve_bytes: options.reserve_bytes,
        quota: options.quota(),
    };
    let renewal = Arc::new(Notify::new());
    let merged = MergeTarget {
        dir: dir.clone(),
        database: database.clone(),
        keyspace: keyspace.clone(),
        live: live.clone(),
        health: health.clone(),
        renewal: renewal.clone(),
        limits,
    };
    let merger = Merger::start(merged).map_err(io)?;
    // Merges that were not done before the last process ended.
    merger.ask();
    Ok(FjallShared {
        merger,
        live,
        dir,
        database,
        keyspace,
        options,
        health,
        writer: Arc::new(Mutex::new(FjallWriter {
            batch,
            renewed: 0,
            deleted: 0,
            fence,
        })),
        view,
        renewal,
        cut: flaw,
    })
}

/// Makes an empty database beside `dir` and moves it there, so that `dir` is never there in part.
fn create(dir: &Path, options: &FjallOptions) -> Result<(), RowsOpenError> {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = dir.with_file_name(name);
    if !inspect::is_vacant(&new)? {
        fs::remove_dir_all(&new).map_err(|error| named(&new, error))?;
    }
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(&new).map_err(|error| named(&new, error))?;
    inspect::require_space(&new, options.reserve_bytes)?;
    let (database, keyspace) = start(&new, options)?;
    caught(|| database.persist(PersistMode::SyncAll))?;
    drop((database, keyspace));
    kill_points::reach("rows-made");
    fs::rename(&new, dir).map_err(|error| named(dir, error))?;
    let parent = dir.parent().unwrap_or(dir);
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|error| named(parent, error))?;
    Ok(())
}

/// Makes the checks that fjall does not make, while no other process has the database open, and keeps others out.
pub(super) fn look_before(dir: &Path) -> Result<(File, Journals), RowsOpenError> {
    inspect::manifests(dir)?;
    let path = dir.join(inspect::LOCK_FILE);
    let lock = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| named(&path, error))?;
    match lock.try_lock() {
        Ok(()) => {
            inspect::sweep(dir)?;
            let journals = journal::check(dir)?;
            Ok((lock, journals))
        }
        Err(TryLockError::WouldBlock) => Err(RowsOpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(named(&path, error).into()),
    }
}

/// The last batch and the fence, if no batch is missing between tables and journals.
pub(super) fn look_behind(
    dir: &Path,
    keyspace: &Keyspace,
    journals: &Journals,
) -> Result<(u64, Option<Bytes>), RowsError> {
    let read = |sequence| {
        let row = caught(|| Ok(keyspace.tree.get(FENCE_ROW, sequence)?)).map_err(|error| within(dir, error))?;
        row.map(|row| parse_fence(&row).ok_or_else(|| inspect::damaged(dir, "has a fence that is too short")))
            .transpose()
    };
    // fjall skips batches of journals up to the highest sequence number in tables: these must be those that are in tables.
    let highest = keyspace.tree.get_highest_persisted_seqno();
    let in_tables = match highest {
        Some(highest) => read(highest + 1)?.unwrap_or_default().0,
        None => 0,
    };
    let skipped = journals
        .sequences
        .partition_point(|&sequence| Some(sequence) <= highest) as u64;
    let expected = match journals.sequences.len() as u64 {
        0 => in_tables,
        length if journals.first + skipped == in_tables + 1 => journals.first + length - 1,
        length => {
            return Err(inspect::damaged(
                dir,
                &format!(
                    "has batches up to {in_tables} in tables, but {length} batches from {} on in journals, {skipped} of them skipped",
                    journals.first
                ),
            ));
        }
    };
    let (batch, fence) = match read(fjall::SeqNo::MAX)? {
        Some((batch, fence)) => (batch, Some(fence)),
        None => (0, None),
    };
    if batch != expected {
        return Err(inspect::damaged(
            dir,
            &format!("came back with batch {batch} as its last, expected {expected}"),
        ));
    }
    Ok((batch, fence))
}

pub(super) fn start(dir: &Path, options: &FjallOptions) -> Result<(Database, Keyspace), RowsOpenError> {
    let opened = caught(|| {
        let database = Database::builder(dir)
            .cache_size(counted(options.cache_bytes))
            .manual_journal_persist(true)
            .journal_compression(CompressionType::None)
            .max_journaling_size(options.journal_bytes.max(MIN_JOURNAL_BYTES))
            .max_cached_files(Some(options.open_files.get().max(MIN_OPEN_FILES)))
            .worker_threads(WORKER_THREADS)
            .open();
        match database {
            Err(error @ (Error::Locked | Error::InvalidVersion(_))) => Ok(Err(error)),
            other => Ok(Ok(other?)),
        }
    })
    .map_err(|error| within(dir, error))?;
    let database = match opened {
        Ok(database) => database,
        Err(Error::Locked) => return Err(RowsOpenError::InUse(dir.to_owned())),
        Err(Error::InvalidVersion(None)) => return Err(inspect::no_version(dir).into()),
        Err(_) => return Err(RowsOpenError::Newer(dir.join(inspect::VERSION_FILE))),
    };
    let keyspace =
        caught(|| database.keyspace(KEYSPACE, || keyspace_options(options))).map_err(|error| within(dir, error))?;
    Ok((database, keyspace))
}

/// Returns the bytes of blocks that take `memory`. fjall counts what is in a block; the allocator rounds each up, and leaves gaps where
/// others were: 256 MiB of blocks were measured to take 370 MiB.
fn counted(memory: u64) -> u64 {
    memory - memory / 10 * 3
}

/// Point reads dominate: filters on every level, and small blocks. All filters stay in memory, 10 bits for each row, so that a cold read
/// examines only tables that have the row. Indexes of level 0 stay in memory. Those of other levels are split into parts of one block
/// each, and the cache holds the used ones. Small tables keep the first level small, into which all of level 0 is merged each time.
///
/// fjall stores these options when it makes the keyspace.
fn keyspace_options(options: &FjallOptions) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(options.memtable_bytes.max(MIN_MEMTABLE_BYTES))
        .data_block_size_policy(BlockSizePolicy::all(4096))
        .expect_point_read_hits(false)
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::new([true, false]))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        .compaction_strategy(Arc::new(merge::nothing()))
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::BitsPerKey(10.0),
        )))
}
