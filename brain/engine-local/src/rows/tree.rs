//! The tree that holds the rows and the fence, and the numbers of its batches.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy,
    PinningPolicy, RestartIntervalPolicy,
};
use lsm_tree::{
    AbstractTree as _, AnyTree, Cache, CompressionType, Config, DescriptorTable, SeqNo, SequenceNumberCounter, TableId,
};

use super::LsmOptions;
use super::guard::{caught, within};
use super::inspect::{self, RowsLock, damaged};
use super::layout::{FENCE_ROW, FenceRow, parse_fence};
use super::removal::KeptVersions;
use super::writeback::MergeWriteback;
use engine::rows::RowsError;

const MIN_OPEN_FILES: usize = 10;

/// A tree of lsm-tree. Clones share it.
#[derive(Clone)]
pub(super) struct RowsTree {
    tree: AnyTree,
    /// The next number for a batch, or for a list of tables.
    next: SequenceNumberCounter,
    /// A new view sees everything below this number.
    visible: SequenceNumberCounter,
    /// Bytes of the rows that are in no table yet.
    in_memory: Arc<AtomicU64>,
    /// The first table of the merge under way, or one before it.
    first_merged: Arc<AtomicU64>,
    kept: Arc<KeptVersions>,
    /// Keeps other processes out as long as a view may read.
    _lock: Option<Arc<RowsLock>>,
}

impl RowsTree {
    /// Opens the tree in `dir`, or creates it. Removes files that were begun and never became a part of it.
    pub(super) fn open(dir: &Path, options: &LsmOptions) -> Result<Self, RowsError> {
        let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let first_merged = Arc::default();
        let writeback = MergeWriteback::new(dir, Arc::clone(&first_merged));
        let config = config(dir, options, next.clone(), visible.clone())
            .with_compaction_filter_factory(Some(Arc::new(writeback)));
        let tree = caught(|| config.open()).map_err(|error| within(dir, error))?;
        let opened = Self {
            tree,
            next,
            visible,
            in_memory: Arc::default(),
            first_merged,
            kept: Arc::default(),
            _lock: None,
        };
        // No view has number 0, to which lsm-tree gives another meaning.
        opened.skip_to(opened.get_highest_persisted_seqno().unwrap_or(0) + 1);
        Ok(opened)
    }

    /// Continues with numbers from `next` on. No write may run at the same time.
    pub(super) fn skip_to(&self, next: SeqNo) {
        self.next.fetch_max(next);
        self.visible.fetch_max(next);
    }

    /// Holds the lock of the directory with the tree.
    pub(super) fn locked(self, lock: RowsLock) -> Self {
        Self {
            _lock: Some(Arc::new(lock)),
            ..self
        }
    }

    /// Keeps the files of the tables that there are now until [`RowsTree::remove_replaced`], whatever replaces them.
    pub(super) fn keep_version(&self) {
        self.kept.keep(&self.tree);
    }

    /// Has the files of replaced tables removed that no view needs.
    pub(super) fn remove_replaced(&self) {
        self.kept.ask();
    }

    pub(super) fn kept_versions(&self) -> Arc<KeptVersions> {
        Arc::clone(&self.kept)
    }

    pub(super) fn path(&self) -> &Path {
        &self.tree.tree_config().path
    }

    /// Returns the number for a batch.
    pub(super) fn draw(&self) -> SeqNo {
        self.next.next()
    }

    /// Lets later views see the batch of this number, and all before it.
    pub(super) fn show(&self, number: SeqNo) {
        self.visible.fetch_max(number + 1);
    }

    /// Returns the number of a view of everything that is shown.
    pub(super) fn visible(&self) -> SeqNo {
        self.visible.get()
    }

    /// Returns the bytes of all tables, and of the rows that are in no table yet.
    pub(super) fn bytes(&self) -> u64 {
        self.tree.disk_space() + self.in_memory()
    }

    pub(super) fn in_memory(&self) -> u64 {
        self.in_memory.load(Ordering::Acquire)
    }

    pub(super) fn set_in_memory(&self, bytes: u64) {
        self.in_memory.store(bytes, Ordering::Release);
    }

    /// Notes that a merge begins. Returns the number of the next table.
    pub(super) fn begin_merge(&self) -> TableId {
        let first = self.next_table_id();
        self.first_merged.store(first, Ordering::Release);
        first
    }

    /// Returns the outcome of a change of the tables. A full disk is a failure if it left another version on the disk than in memory: the
    /// next one would overwrite the manifest that the disk relies on.
    pub(super) fn settle<T>(&self, outcome: Result<T, RowsError>) -> Result<T, RowsError> {
        let Err(RowsError::Full(reason)) = outcome else {
            return outcome;
        };
        // The version in memory may be read while no other thread installs one: if it stayed the same, none was being installed.
        loop {
            let version = self.current_version().id();
            let stored = inspect::current_version(self.path())?;
            if version == self.current_version().id() {
                return Err(match stored == version {
                    true => RowsError::Full(reason),
                    false => RowsError::Failed(reason.context("the disk became full while a manifest was replaced")),
                });
            }
        }
    }

    /// Returns the fence as a view of this number sees it.
    pub(super) fn fence(&self, number: SeqNo) -> Result<Option<FenceRow>, RowsError> {
        let row = caught(|| self.tree.get(FENCE_ROW, number)).map_err(|error| within(self.path(), error))?;
        row.map(|row| parse_fence(&row).ok_or_else(|| damaged(self.path(), "has a fence that is too short")))
            .transpose()
    }
}

impl Deref for RowsTree {
    type Target = AnyTree;

    fn deref(&self) -> &AnyTree {
        &self.tree
    }
}

/// Returns the bytes of blocks that take `memory`. lsm-tree counts what is in a block; the allocator rounds each up, and leaves gaps where
/// others were: 256 MiB of blocks were measured to take 370 MiB.
fn counted(memory: u64) -> u64 {
    memory - memory / 10 * 3
}

/// Point reads dominate: filters on every level, and small blocks. All filters stay in memory, 10 bits for each row, so that a cold read
/// examines only tables that have the row. Indexes of level 0 stay in memory. Those of other levels are split into parts of one block
/// each, and the cache holds the used ones. Blocks of the two highest levels are not compressed: they are soon written again.
fn config(dir: &Path, options: &LsmOptions, next: SequenceNumberCounter, visible: SequenceNumberCounter) -> Config {
    Config::new(dir, next, visible)
        .use_cache(Arc::new(Cache::with_capacity_bytes(counted(options.cache_bytes))))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(
            options.open_files.get().max(MIN_OPEN_FILES),
        ))))
        .data_block_size_policy(BlockSizePolicy::all(4096))
        .data_block_restart_interval_policy(RestartIntervalPolicy::new([10, 16]))
        .data_block_compression_policy(CompressionPolicy::new([
            CompressionType::None,
            CompressionType::None,
            CompressionType::Lz4,
        ]))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::new([true, false]))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::BitsPerKey(10.0),
        )))
}
