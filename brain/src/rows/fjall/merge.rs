//! Merging tables, in a thread of our own. fjall's one thread would do it between the tables that it makes of what is in memory: then
//! nothing is written for as long as a merge takes, which is seconds where there are millions of rows.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ::fjall::compaction::Leveled;
use ::fjall::{AbstractTree, Keyspace};

use super::guard::{Health, caught, describe};
use super::inspect;
use super::snapshot::Live;
use crate::rows::RowsError;

/// Tables of level 0 that are merged at once. Level 1 holds about as much: so what a merge writes is twice what is new.
const LEVEL0: u8 = 8;

/// The size of tables that merges make.
const TABLE_BYTES: u64 = 16 << 20;

/// How tables are merged.
pub(super) fn strategy() -> Leveled {
    Leveled::default()
        .with_table_target_size(TABLE_BYTES)
        .with_l0_threshold(LEVEL0)
}

/// What fjall's own thread is to merge: nothing. It moves tables that overlap no others.
pub(super) fn nothing() -> Leveled {
    const NEVER: u64 = 1 << 40;
    Leveled::default()
        .with_table_target_size(NEVER)
        .with_l0_threshold(u8::MAX)
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
    reserve_bytes: u64,
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
        (health, reserve_bytes): (Health, u64),
    ) -> std::io::Result<Self> {
        let work = Arc::new(Work {
            dir,
            keyspace,
            live,
            health,
            reserve_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
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

    /// An error if there is no space for the next merge: then none is begun.
    pub(super) fn require_space(&self) -> Result<(), RowsError> {
        self.work.require_space()
    }

    /// Merges whatever there is, to learn what is wrong with it.
    pub(super) fn try_to_merge(&self) -> Result<(), RowsError> {
        self.work.merge(strategy().with_l0_threshold(1))
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
            if self.state().stop || self.require_space().is_err() {
                return Ok(());
            }
            let before = self.keyspace.tree.current_version().id();
            self.merge(strategy())?;
            // Whatever was done made a new version.
            if self.keyspace.tree.current_version().id() == before {
                return Ok(());
            }
        }
    }

    fn merge(&self, strategy: Leveled) -> Result<(), RowsError> {
        caught(|| Ok(self.keyspace.tree.compact(Arc::new(strategy), self.live.watermark())?))
    }

    /// The new tables stand beside the old ones until they are whole: those of level 0, and those of the level that they go to.
    fn require_space(&self) -> Result<(), RowsError> {
        let version = self.keyspace.tree.current_version();
        let bytes = |level: usize| -> u64 {
            let runs = version.level(level).into_iter().flat_map(|level| level.iter());
            runs.flat_map(|run| run.iter())
                .map(|table| table.metadata.file_size)
                .sum()
        };
        let first = (1..version.level_count()).map(bytes).find(|bytes| *bytes > 0);
        let merged = bytes(0) + first.unwrap_or(0);
        inspect::require_space(&self.dir, self.reserve_bytes + merged)
    }
}
