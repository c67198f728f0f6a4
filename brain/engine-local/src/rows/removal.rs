//! Removes the files of replaced tables in a thread of its own.
//!
//! lsm-tree removes a file when the last reference to its table is dropped, which is most often where it forgets an old version of the list of
//! tables, under the lock of that list. A file system that discards freed blocks takes up to 50 ms for a file, and reads, writes and flushes
//! would wait for all of them. So versions are kept here until lsm-tree has forgotten them, and the last reference is dropped here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lsm_tree::{AbstractTree as _, AnyTree, Table};
use tokio::time::Instant;

use super::merge::MergerHandle;
use super::tree::RowsTree;

/// The log has the disk for this many times as long as the removal of a file took, but not longer than `MAX_PAUSE`.
const PAUSE_FACTOR: u32 = 3;
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Removals that take less are not followed by a pause.
const MIN_PAUSED: Duration = Duration::from_millis(1);

/// Versions of the list of tables that may be the last to refer to some of them.
#[derive(Default)]
pub(super) struct KeptVersions {
    state: Mutex<KeptState>,
    changed: Condvar,
}

/// All tables of a version of the list of tables.
struct KeptVersion {
    id: u64,
    tables: Vec<Table>,
}

#[derive(Default)]
struct KeptState {
    /// In the order of their ids.
    versions: VecDeque<KeptVersion>,
    /// Some of them may be forgotten.
    asked: bool,
    stop: bool,
}

impl KeptVersions {
    fn state(&self) -> MutexGuard<'_, KeptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the current version of a tree before it is replaced.
    pub(super) fn keep(&self, tree: &AnyTree) {
        let version = tree.current_version();
        let mut state = self.state();
        if state.versions.back().is_none_or(|last| last.id < version.id()) {
            let tables = version.iter_tables().cloned().collect();
            state.versions.push_back(KeptVersion {
                id: version.id(),
                tables,
            });
        }
    }

    /// Has the files removed that no version needs any more which lsm-tree knows.
    pub(super) fn ask(&self) {
        self.state().asked = true;
        self.changed.notify_one();
    }

    /// Waits until some may be forgotten; false if the thread must end.
    fn is_asked(&self) -> bool {
        let mut state = self.state();
        while !state.asked && !state.stop {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asked = false;
        !state.stop
    }

    /// Returns the tables of versions with ids below `oldest`, and forgets the versions.
    fn forget(&self, oldest: u64) -> Vec<Table> {
        let mut state = self.state();
        let count = state.versions.partition_point(|version| version.id < oldest);
        state
            .versions
            .drain(..count)
            .flat_map(|version| version.tables)
            .collect()
    }

    fn run(&self, tree: &RowsTree, merger: &MergerHandle) {
        while self.is_asked() {
            let tables = self.forget(oldest_known(tree));
            if tables.is_empty() {
                continue;
            }
            for table in tables {
                let begun = Instant::now();
                drop(table);
                let took = begun.elapsed();
                if took >= MIN_PAUSED && !merger.is_tight() && !self.state().stop {
                    std::thread::sleep((PAUSE_FACTOR * took).min(MAX_PAUSE));
                }
            }
            merger.note_removed();
        }
        drop(self.forget(u64::MAX));
    }
}

/// Returns the id of the oldest version that lsm-tree knows, or a lower one: ids are consecutive, but a version may be known several times.
fn oldest_known(tree: &RowsTree) -> u64 {
    let known = tree.get_version_history_lock().len() as u64;
    (tree.current_version().id() + 1).saturating_sub(known)
}

/// The thread that removes. It ends with this, when all is removed.
pub(super) struct TableRemover {
    kept: Arc<KeptVersions>,
    thread: Option<JoinHandle<()>>,
}

impl TableRemover {
    pub(super) fn start(tree: &RowsTree, merger: MergerHandle) -> std::io::Result<Self> {
        let kept = tree.kept_versions();
        let thread = std::thread::Builder::new().name("rows-remover".to_owned()).spawn({
            let (kept, tree) = (Arc::clone(&kept), tree.clone());
            move || kept.run(&tree, &merger)
        })?;
        Ok(Self {
            kept,
            thread: Some(thread),
        })
    }
}

impl Drop for TableRemover {
    fn drop(&mut self) {
        self.kept.state().stop = true;
        self.kept.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that removes tables panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use engine::rows::{RowChange, Rows as _};

    use super::*;
    use crate::rows::inspect::TABLES_DIR;
    use crate::rows::{LsmOptions, LsmRows};

    /// A tree with one table, and three that it replaced and forgot.
    fn merged() -> (tempfile::TempDir, RowsTree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = RowsTree::open(dir.path(), &LsmOptions::default()).unwrap();
        for key in ["a", "b", "c"] {
            let number = tree.draw();
            tree.insert(key, "value", number);
            tree.flush_active_memtable(0).unwrap();
            tree.show(number);
        }
        tree.keep_version();
        tree.major_compact(u64::MAX, tree.visible()).unwrap();
        let mut versions = tree.get_version_history_lock();
        versions.maintenance(tree.path(), tree.visible() + 1).unwrap();
        assert_eq!(versions.len(), 1);
        drop(versions);
        assert_eq!(tree.table_count(), 1);
        (dir, tree)
    }

    fn files(tree: &RowsTree) -> usize {
        std::fs::read_dir(tree.path().join(TABLES_DIR)).unwrap().count()
    }

    #[test]
    fn files_of_replaced_tables_stay_until_their_version_is_forgotten() {
        let (_dir, tree) = merged();
        assert_eq!(files(&tree), 4);
        let kept = tree.kept_versions();
        kept.keep(&tree);
        drop(kept.forget(oldest_known(&tree)));
        assert_eq!(files(&tree), 1);
        assert_eq!(kept.state().versions.len(), 1, "the current one");
    }

    #[tokio::test]
    async fn remover_removes_what_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let rows = LsmRows::open(dir.path(), LsmOptions::default()).unwrap();
        let tree = rows.shared.tree.clone();
        let mut fence = None;
        for number in 0..3_u8 {
            let next = Bytes::from(vec![number]);
            let put = RowChange::Put(Bytes::from(vec![b'k', number]), Bytes::from_static(b"value"));
            rows.apply(fence.replace(next.clone()), next, vec![put]).await.unwrap();
            rows.sync().await.unwrap();
        }
        rows.compact().await.unwrap();
        assert_eq!(tree.table_count(), 1);
        while files(&tree) > 1 {
            rows.sync().await.unwrap();
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn remover_removes_the_rest_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let rows = LsmRows::open(dir.path(), LsmOptions::default()).unwrap();
        let (_dir, tree) = merged();
        drop(TableRemover::start(&tree, rows.shared.merger.handle()).unwrap());
        assert_eq!(files(&tree), 1);
    }
}
