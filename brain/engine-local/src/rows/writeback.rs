//! Has tables written to the disk while they are made.
//!
//! lsm-tree syncs a table when it is whole. Without this all of it would be written then, and the disk would have no time for the log.
//! Nothing relies on it: that sync makes a table durable.

use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use lsm_tree::{InternalValue, TableId};
use rustix::fs::Advice;

use super::inspect::TABLES_DIR;

/// Bytes of rows that are written at a time.
const STEP_BYTES: usize = 1 << 20;

/// Tables that a flush and a merge make at the same time.
const MAX_OPEN_TABLES: usize = 2;

/// The tables that are being made from a number on.
pub(super) struct Writeback {
    tables: PathBuf,
    next: TableId,
    /// The newest of them, and the bytes of each that were written.
    open: Vec<(File, u64)>,
    /// Bytes of rows since then.
    bytes: usize,
}

impl Writeback {
    /// Begins with table `first` of the tree in `tree`.
    pub(super) fn new(tree: &Path, first: TableId) -> Self {
        Self {
            tables: tree.join(TABLES_DIR),
            next: first,
            open: Vec::new(),
            bytes: 0,
        }
    }

    /// Counts a row that goes into a table.
    pub(super) fn count(&mut self, row: &InternalValue) {
        self.count_bytes(row.key.user_key.len() + row.value.len());
    }

    fn count_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= STEP_BYTES {
            self.bytes = 0;
            self.write();
        }
    }

    /// Begins to write what the tables have got since the last time.
    fn write(&mut self) {
        while let Ok(table) = File::open(self.tables.join(self.next.to_string())) {
            self.open.push((table, 0));
            self.next += 1;
        }
        self.open.drain(..self.open.len().saturating_sub(MAX_OPEN_TABLES));
        for (table, written) in &mut self.open {
            let len = table.metadata().map_or(0, |metadata| metadata.len());
            let Some(new) = NonZeroU64::new(len.saturating_sub(*written)) else {
                continue;
            };
            // Bytes that are not needed in memory are written at once, without waiting for it. Those that are written by then would be
            // forgotten, but none are.
            if let Err(error) = rustix::fs::fadvise(&*table, *written, Some(new), Advice::DontNeed) {
                tracing::debug!(%error, "cannot have a part of a table written early");
            }
            *written = len;
        }
    }
}

/// Makes a [`Writeback`] for each merge.
pub(super) struct MergeWriteback {
    tree: PathBuf,
    /// The first table that the next merge makes, or one before it.
    first: Arc<AtomicU64>,
}

impl MergeWriteback {
    pub(super) fn new(tree: &Path, first: Arc<AtomicU64>) -> Self {
        Self {
            tree: tree.to_owned(),
            first,
        }
    }
}

impl Factory for MergeWriteback {
    fn name(&self) -> &'static str {
        "writeback"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Writeback::new(&self.tree, self.first.load(Ordering::Acquire)))
    }
}

/// Keeps every row.
impl CompactionFilter for Writeback {
    fn filter_item(&mut self, row: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        self.count_bytes(row.key().len() + row.value()?.len());
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_tables_are_written_as_they_grow() {
        let tree = tempfile::tempdir().unwrap();
        let tables = tree.path().join(TABLES_DIR);
        std::fs::create_dir(&tables).unwrap();
        let write = |table: u64, bytes| std::fs::write(tables.join(table.to_string()), vec![1; bytes]).unwrap();
        let mut writeback = Writeback::new(tree.path(), 7);
        let written = |writeback: &Writeback| writeback.open.iter().map(|(_, written)| *written).collect::<Vec<_>>();
        write(6, 10);
        write(7, 100);
        writeback.count_bytes(STEP_BYTES - 1);
        assert_eq!(written(&writeback), [0; 0]);
        writeback.count_bytes(1);
        assert_eq!(written(&writeback), [100]);
        write(7, 200);
        write(8, 300);
        writeback.count_bytes(STEP_BYTES);
        assert_eq!(written(&writeback), [200, 300]);
        write(9, 400);
        writeback.count_bytes(STEP_BYTES);
        assert_eq!(written(&writeback), [300, 400]);
    }
}
