//! Merging tables, in a thread of our own. fjall's one thread would do it between the tables that it makes of what is in memory: then
//! nothing is written for as long as a merge takes, which is seconds where there are millions of rows.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ::fjall::compaction::Leveled;
use ::fjall::{AbstractTree, Keyspace};
use anyhow::anyhow;

use super::guard::{Health, caught, describe};
use super::inspect;
use super::shape::{Levels, Shape, Table};
use super::snapshot::Live;
use crate::rows::RowsError;

/// What fjall's own thread is to merge: nothing. It moves tables that overlap no others.
pub(super) fn nothing() -> Leveled {
    const NEVER: u64 = 1 << 40;
    Leveled::default()
        .with_table_target_size(NEVER)
        .with_l0_threshold(u8::MAX)
}

/// Bytes of tables that were merged and may stay.
pub(super) const LEFT_OVER: u64 = 8 << 20;

/// How often the reserve stays free where tables that were merged are still there.
const KEPT_FREE: u64 = 6;

/// How much larger tables become where they must be.
const LARGE: u64 = 16;

/// What merges have to keep to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a table as it comes from memory.
    pub(super) memtable_bytes: u64,
    /// Bytes that must stay free.
    pub(super) reserve_bytes: u64,
}

/// The thread that merges. It ends with this, after the merge under way.
pub(super) struct Merger {
    work: Arc<Work>,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    dir: PathBuf,
    keyspace: Keyspace,
    live: Live,
    health: Health,
    limits: Limits,
    /// Held by whoever merges.
    turn: Mutex<()>,
    /// Bytes that the merge under way may write.
    under_way: AtomicU64,
    /// Bytes that the next ones will need.
    to_come: AtomicU64,
    /// Tables that a merge began and could not finish, by their numbers.
    unfinished: Mutex<Option<Range<u64>>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There may be something to merge.
    asked: bool,
    stop: bool,
}

impl Merger {
    /// Waits to be asked.
    pub(super) fn start(
        dir: PathBuf,
        keyspace: Keyspace,
        live: Live,
        (health, limits): (Health, Limits),
    ) -> std::io::Result<Self> {
        let work = Arc::new(Work {
            dir,
            keyspace,
            live,
            health,
            limits,
            turn: Mutex::default(),
            under_way: AtomicU64::new(0),
            to_come: AtomicU64::new(0),
            unfinished: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        work.levels();
        let thread = std::thread::Builder::new().name("rows-merger".to_owned()).spawn({
            let work = Arc::clone(&work);
            move || work.run()
        })?;
        Ok(Self {
            work,
            thread: Some(thread),
        })
    }

    /// Has tables merged until there is nothing to merge.
    pub(super) fn ask(&self) {
        self.work.state().asked = true;
        self.work.changed.notify_one();
    }

    /// Whether there is something to merge.
    ///
    /// # Errors
    /// [`RowsError::Full`]: there is no space for it, so that it is not begun.
    pub(super) fn has_work(&self) -> Result<bool, RowsError> {
        match self.work.next(&Levels::of(&self.work.keyspace)) {
            Some((_, need)) => self.work.require_space(need).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether space is so short that merges are small, and L0 must not grow.
    pub(super) fn is_tight(&self) -> bool {
        self.work.is_tight()
    }

    /// Bytes that the merge under way may write yet.
    pub(super) fn under_way(&self) -> u64 {
        self.work.under_way.load(Ordering::Acquire)
    }

    /// Bytes that the next small merges, and the next table that comes from memory, need beside what is there.
    pub(super) fn to_come(&self) -> u64 {
        self.work.limits.memtable_bytes + self.work.to_come.load(Ordering::Acquire)
    }

    /// Merges whatever there is, to learn what is wrong with it.
    pub(super) fn try_to_merge(&self) -> Result<(), RowsError> {
        self.work.merge(Leveled::default().with_l0_threshold(1), 0)
    }

    /// One merge of this shape.
    ///
    /// # Errors
    /// [`RowsError::Full`]: there is no space for it.
    #[cfg(test)]
    pub(super) fn step(&self, shape: Shape) -> Result<bool, RowsError> {
        self.work.step(shape)
    }

    /// Pushes some tables one level down, so that in the end all rows are in the last one. `false` when they are.
    ///
    /// # Errors
    /// [`RowsError::Full`] where there is no space even for that.
    pub(super) fn push_down(&self) -> Result<bool, RowsError> {
        let table_bytes = self.work.limits.memtable_bytes;
        let done = self.work.step(Shape::down(table_bytes))?;
        if done || !Levels::of(&self.work.keyspace).is_spread() {
            return Ok(done);
        }
        // Few rows above very many: fjall looks at such merges only where tables are large.
        self.work.step(Shape::down(LARGE * table_bytes))
    }
}

impl Merger {
    /// Merges nothing any more, but what is being merged.
    pub(super) fn end(&self) {
        self.work.state().stop = true;
        self.work.changed.notify_one();
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that merges tables panicked");
        }
    }
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while self.is_asked() {
            if let Err(error) = self.merge_all() {
                // What it has written of new tables stays until the next start: it is not tried again.
                tracing::error!(error = describe(&error), "tables of the rows cannot be merged");
                self.health.fail(&error);
                return;
            }
        }
    }

    /// Waits for something to do; `false` when it is to end.
    fn is_asked(&self) -> bool {
        let mut state = self.state();
        while !state.asked && !state.stop {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asked = false;
        !state.stop
    }

    fn merge_all(&self) -> Result<(), RowsError> {
        loop {
            if self.state().stop {
                return Ok(());
            }
            let Some((shape, _)) = self.next(&self.levels()) else {
                return Ok(());
            };
            match self.step(shape) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(RowsError::Full(reason)) => {
                    tracing::debug!(reason = format!("{reason:#}"), "no space to merge tables of the rows");
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One merge, if there is something to merge and space for it. Answers whether anything was done.
    ///
    /// # Errors
    /// [`RowsError::Full`] leaves everything as it was: there is no space, or somebody else took it meanwhile.
    fn step(&self, shape: Shape) -> Result<bool, RowsError> {
        self.remove_unfinished();
        let Some(need) = Levels::of(&self.keyspace).need(shape) else {
            return Ok(false);
        };
        self.require_space(need)?;
        let tree = &self.keyspace.tree;
        let (before, first) = (tree.current_version().id(), tree.get_next_table_id());
        let merged = self.merge(shape.strategy(), need);
        if let Err(RowsError::Full(reason)) = &merged {
            tracing::warn!(
                need,
                reason = format!("{reason:#}"),
                "the disk became full while tables of the rows were merged"
            );
            *self.unfinished() = Some(first..tree.get_next_table_id());
        }
        merged?;
        // Whatever was done made a new version.
        Ok(tree.current_version().id() != before)
    }

    fn merge(&self, strategy: Leveled, need: u64) -> Result<(), RowsError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.under_way.store(need, Ordering::Release);
        let merged = caught(|| Ok(self.keyspace.tree.compact(Arc::new(strategy), self.live.watermark())?));
        self.under_way.store(0, Ordering::Release);
        merged
    }

    fn unfinished(&self) -> MutexGuard<'_, Option<Range<u64>>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what a merge left that could not be finished; the rows never knew of it. Not while fjall makes tables: theirs
    /// have numbers of the same kind.
    fn remove_unfinished(&self) {
        if self.keyspace.sealed_memtable_count() > 0 {
            return;
        }
        let Some(numbers) = self.unfinished().take() else {
            return;
        };
        let version = self.keyspace.tree.current_version();
        let known: HashSet<u64> = version.iter_tables().map(|table| table.metadata.id).collect();
        for number in numbers.filter(|number| !known.contains(number)) {
            let path = self.keyspace.path().join(inspect::TABLES).join(number.to_string());
            match std::fs::remove_file(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed a table that was not finished"),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, path = %path.display(), "cannot remove an unfinished table"),
            }
        }
    }

    /// Bytes that must be free, or space is short.
    fn tight_below(&self) -> u64 {
        let Limits {
            memtable_bytes,
            reserve_bytes,
        } = self.limits;
        reserve_bytes + 6 * u64::from(Shape::AMPLE_RUNS) * memtable_bytes
    }

    fn is_tight(&self) -> bool {
        inspect::require_space(&self.dir, self.tight_below()).is_err()
    }

    /// The tables as they are. Notes what the next merges will need.
    fn levels(&self) -> Levels {
        let levels = Levels::of(&self.keyspace);
        let need = levels.most_need(Shape::tight(self.limits.memtable_bytes));
        self.to_come.store(with_overhead(need), Ordering::Release);
        levels
    }

    /// The next merge: its shape, and what it needs. Space must not become short even for as long as it lasts, or it is a small one.
    fn next(&self, levels: &Levels) -> Option<(Shape, u64)> {
        let (ample, tight) = (
            Shape::ample(self.limits.memtable_bytes),
            Shape::tight(self.limits.memtable_bytes),
        );
        let need = levels.need(ample);
        if inspect::require_space(&self.dir, self.tight_below() + with_overhead(need.unwrap_or(0))).is_ok() {
            return need.map(|need| (ample, need));
        }
        levels.need(tight).map(|need| (tight, need))
    }

    /// The new tables stand beside the old ones until they are whole, and the old ones until no view needs them.
    fn require_space(&self, need: u64) -> Result<(), RowsError> {
        let left_over = left_over(&self.keyspace)?;
        let to_come = self.to_come.load(Ordering::Acquire);
        if left_over > to_come.max(LEFT_OVER) && self.is_tight() {
            return Err(RowsError::Full(anyhow!(
                "views keep {left_over} bytes of tables that were merged"
            )));
        }
        // What is about to be given back must not be what somebody else misses.
        let floor = match left_over > LEFT_OVER {
            true => self.limits.reserve_bytes.saturating_mul(KEPT_FREE),
            false => self.limits.reserve_bytes,
        };
        inspect::require_space(&self.dir, floor + with_overhead(need))
    }
}

/// Bytes of files of tables that were merged: they go when views are renewed.
///
/// # Errors
/// When the files cannot be listed.
pub(super) fn left_over(keyspace: &Keyspace) -> Result<u64, RowsError> {
    let files = inspect::table_bytes(keyspace.path())?;
    Ok(files.saturating_sub(keyspace.disk_space()))
}

/// New tables may compress a little worse than those that they are made of.
fn with_overhead(need: u64) -> u64 {
    need + need / 4
}

impl Levels {
    /// The tables as they are.
    pub(super) fn of(keyspace: &Keyspace) -> Self {
        let version = keyspace.tree.current_version();
        let mut levels = Self::default();
        for (at, tables) in levels.0.iter_mut().enumerate() {
            let runs = version.level(at).into_iter().flat_map(|level| level.iter());
            let found = runs.flat_map(|run| run.iter()).map(|table| {
                let range = &table.metadata.key_range;
                Table {
                    first: range.min().to_vec(),
                    last: range.max().to_vec(),
                    bytes: table.metadata.file_size,
                }
            });
            tables.extend(found);
        }
        levels
    }
}
