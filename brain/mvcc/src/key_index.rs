//! An index of the keys that exist, in memory, which counts the keys of a span in a logarithmic number of steps.
//!
//! It is optional: if it is not built, or does not know a revision, keys are counted in rows and memtables.
//!
//! The writer of the replica records creations and deletions before it publishes the view that shows them. They are queued, and applied
//! to the tree by a background task, or by a reader that needs them. A view may be older than the tree: the newest changes are kept, and
//! those after the view's revision are subtracted from the count.
//!
//! The index is built piece by piece, in key order, each piece from the newest view at the time. Before a piece is added, the existing
//! part is brought up to the revision of that view.
//!
//! Invariant: as far as the index is built, the tree holds exactly the keys that exist at revision `at`, after those later changes
//! that are in the change log.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use self::changes::{ChangeList, ChangeLog, KeyBounds, KeyPresence};
use self::tree::KeyTree;
use super::op::Span;
use super::record::KeyChange;
use etcd_types::types::Revision;

mod changes;
mod leaf;
#[cfg(test)]
mod tests;
mod tree;

/// Changes that are recorded, or applied, while others wait.
const CHANGES_PER_TURN: usize = 512;

/// The part of its memory that the newest changes may take, and as much those that are queued.
const CHANGES_MEMORY_DIVISOR: usize = 8;

/// Queued changes for which the background task is woken: fewer are left to readers.
const WAKE_QUEUED_CHANGES: usize = 1_024;

/// See the module.
#[derive(Debug)]
pub struct KeyIndex {
    /// Locked alone, or after `built`.
    queue: Mutex<ChangeQueue>,
    built: RwLock<BuiltIndex>,
    /// True if the index answers. A hint, set with the phase, so that readers do not wait for an index that does not answer.
    serves: AtomicBool,
    wake: Notify,
    /// Bytes of memory that it may take.
    max_bytes: AtomicUsize,
}

/// Changes that are not applied to the tree.
#[derive(Debug, Default)]
struct ChangeQueue {
    state: QueueState,
    changes: ChangeList,
    /// All changes up to this revision were recorded.
    last: Revision,
    /// Changes of this revision are being recorded.
    begun: Revision,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum QueueState {
    /// Changes are not needed.
    #[default]
    Idle,
    Recording,
    /// Changes were dropped, because they took too much memory.
    Overflown,
}

#[derive(Debug, Default)]
struct BuiltIndex {
    phase: IndexPhase,
    tree: KeyTree,
    log: ChangeLog,
    at: Revision,
    /// Taken from the queue; those before `next` are applied.
    taken: ChangeList,
    next: usize,
    /// While it is built: only keys before this one are in the tree.
    cursor: Bytes,
}

/// The state of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IndexPhase {
    /// It is not built.
    #[default]
    Idle,
    /// It is being built.
    Building,
    /// It answers.
    Serving,
    /// It took more memory than it may; it is tried again later.
    Exceeded,
    /// Another one took its place.
    Closed,
}

/// The answer of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexCount {
    /// The number of keys.
    Keys(i64),
    /// It is known once queued changes are applied: see [`KeyIndex::apply_some`].
    Behind,
    /// It is not known.
    Unknown,
}

/// The size of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSize {
    /// Its state.
    pub phase: IndexPhase,
    /// Keys in it.
    pub keys: usize,
    /// Bytes of memory.
    pub bytes: usize,
}

impl Default for KeyIndex {
    fn default() -> Self {
        Self::new(0)
    }
}

impl KeyIndex {
    /// An index that is not built, of a store at a revision.
    #[must_use]
    pub fn new(revision: Revision) -> Self {
        let queue = ChangeQueue {
            last: revision,
            begun: revision,
            ..ChangeQueue::default()
        };
        Self {
            queue: Mutex::new(queue),
            built: RwLock::default(),
            serves: AtomicBool::new(false),
            wake: Notify::new(),
            max_bytes: AtomicUsize::new(0),
        }
    }

    /// Records the changes of a revision, in their order. Called before a view shows them, in the order of revisions.
    pub fn record(&self, revision: Revision, changes: &[KeyChange]) {
        let mut rest = changes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(CHANGES_PER_TURN));
            let mut queue = self.queue();
            queue.begun = revision;
            if queue.state == QueueState::Recording {
                let before = queue.changes.len();
                // A put that neither creates a key nor is the first one known of it changes nothing here.
                for change in now.iter().filter(|change| change.version <= 1 || change.prev_mod == 0) {
                    queue.changes.push(KeyPresence {
                        revision,
                        key: &change.key,
                        exists: !change.is_delete(),
                    });
                }
                if queue.changes.bytes() > self.max_bytes() / CHANGES_MEMORY_DIVISOR {
                    queue.changes = ChangeList::default();
                    queue.state = QueueState::Overflown;
                }
                if before < WAKE_QUEUED_CHANGES && queue.changes.len() >= WAKE_QUEUED_CHANGES
                    || queue.state == QueueState::Overflown
                {
                    self.wake.notify_one();
                }
            }
            if later.is_empty() {
                queue.last = revision;
                return;
            }
            rest = later;
        }
    }

    /// Returns the number of keys of a span at a revision that a view has.
    pub fn count(&self, span: &Span, revision: Revision) -> IndexCount {
        if !self.serves.load(Ordering::Relaxed) {
            return IndexCount::Unknown;
        }
        let built = self.built();
        if built.phase != IndexPhase::Serving {
            return IndexCount::Unknown;
        }
        if revision > built.at && !(built.is_applied() && self.queue().is_recorded(revision)) {
            return IndexCount::Behind;
        }
        let to = span.limit();
        let bounds = KeyBounds {
            from: &span.key,
            to: to.as_deref(),
        };
        match built.log.added_behind(revision, bounds) {
            Some(_) if span.is_empty() => IndexCount::Keys(0),
            Some(added) => IndexCount::Keys(built.count(bounds) - added),
            None => IndexCount::Unknown,
        }
    }

    /// Applies some queued changes; true if more are queued.
    pub fn apply_some(&self) -> bool {
        self.apply_up_to(Revision::MAX, IndexPhase::Serving)
    }

    /// The state and size.
    pub fn size(&self) -> IndexSize {
        let built = self.built();
        let queued = self.queue().changes.bytes();
        IndexSize {
            phase: built.phase,
            keys: built.tree.len(),
            bytes: built.bytes() + queued,
        }
    }

    /// Returns when changes wait to be applied, or the index was closed or dropped.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Ends the index: another one took its place.
    pub fn close(&self) {
        self.empty(self.built_mut(), IndexPhase::Closed);
    }

    /// Lets an index that took too much memory be built again: it may fit by now.
    pub fn try_again(&self) {
        let mut built = self.built_mut();
        if built.phase == IndexPhase::Exceeded {
            built.phase = IndexPhase::Idle;
        }
    }

    /// Empties an index that contradicts the rows: it is built again.
    pub fn discard(&self) {
        let built = self.built_mut();
        if built.phase == IndexPhase::Serving {
            self.empty(built, IndexPhase::Idle);
        }
    }

    /// Begins to build the index, with at most `max_bytes` bytes of memory. Returns the revision that the views for it must have at least;
    /// `None` if the index is closed.
    pub fn begin(&self, max_bytes: usize) -> Option<Revision> {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        let (begun, old) = {
            let mut built = self.built_mut();
            if built.phase == IndexPhase::Closed {
                return None;
            }
            self.serves.store(false, Ordering::Relaxed);
            let mut queue = self.queue();
            queue.state = QueueState::Recording;
            queue.changes = ChangeList::default();
            let new = BuiltIndex {
                phase: IndexPhase::Building,
                at: queue.begun,
                ..BuiltIndex::default()
            };
            (queue.begun, std::mem::replace(&mut *built, new))
        };
        drop(old);
        Some(begun)
    }

    /// Brings the part that is built up to the revision of a view, in steps; true if it is not there yet.
    pub fn build_up_to(&self, revision: Revision) -> bool {
        self.apply_up_to(revision, IndexPhase::Building)
    }

    /// Adds the keys that follow those that are built, as they are at the revision that it was brought up to. `cursor` is the first key
    /// that is not among them; `None`: they are the last.
    pub fn build(&self, keys: &[Bytes], cursor: Option<Bytes>, revision: Revision) {
        let mut built = self.built_mut();
        if built.phase != IndexPhase::Building {
            return;
        }
        for key in keys {
            built.tree.insert(key);
        }
        built.at = revision;
        match cursor {
            Some(cursor) => built.cursor = cursor,
            None => {
                built.log = ChangeLog::behind(revision, self.max_bytes() / CHANGES_MEMORY_DIVISOR);
                built.phase = IndexPhase::Serving;
                self.serves.store(true, Ordering::Relaxed);
            }
        }
        self.check_size(built);
    }

    /// Applies changes up to a revision, but no more than are applied at once; true if more of them are queued. A reader that needs an
    /// index which serves must not push on one that is being built by now: that one is brought up to the revisions of its pieces.
    fn apply_up_to(&self, revision: Revision, phase: IndexPhase) -> bool {
        let mut built = self.built_mut();
        if built.phase != phase {
            return false;
        }
        if built.is_applied() {
            let mut queue = self.queue();
            if queue.state == QueueState::Overflown {
                drop(queue);
                let keys = built.tree.len();
                self.empty(built, IndexPhase::Idle);
                tracing::info!(
                    keys,
                    "too many concurrent changes of keys: rebuilding the index of keys"
                );
                return false;
            }
            built.taken = std::mem::take(&mut queue.changes);
            built.next = 0;
        }
        let is_done = built.apply(revision);
        if built.is_applied() {
            built.taken = ChangeList::default();
            let queue = self.queue();
            built.at = queue.changes.get(0).map_or(queue.last, |next| next.revision - 1);
        } else if let Some(next) = built.taken.get(built.next) {
            built.at = next.revision - 1;
        }
        let is_queued = !built.is_applied() || self.queue().changes.len() > 0;
        self.check_size(built);
        !is_done && is_queued
    }

    /// Empties the index if it takes more memory than it may.
    fn check_size(&self, built: RwLockWriteGuard<'_, BuiltIndex>) {
        if built.bytes() > self.max_bytes() {
            self.exceed(built);
        }
    }

    fn exceed(&self, built: RwLockWriteGuard<'_, BuiltIndex>) {
        let keys = built.tree.len();
        self.empty(built, IndexPhase::Exceeded);
        tracing::warn!(
            keys,
            max_bytes = self.max_bytes(),
            "dropped the index of keys because it uses too much memory: counts of large ranges take longer until it fits again"
        );
    }

    fn empty(&self, mut built: RwLockWriteGuard<'_, BuiltIndex>, phase: IndexPhase) {
        let mut queue = self.queue();
        queue.state = QueueState::Idle;
        queue.changes = ChangeList::default();
        drop(queue);
        let new = BuiltIndex {
            phase,
            ..BuiltIndex::default()
        };
        let old = std::mem::replace(&mut *built, new);
        self.serves.store(false, Ordering::Relaxed);
        drop(built);
        // The locks are released: no caller waits while a large tree is freed.
        drop(old);
        self.wake.notify_one();
    }

    fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, ChangeQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn built(&self) -> RwLockReadGuard<'_, BuiltIndex> {
        self.built.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn built_mut(&self) -> RwLockWriteGuard<'_, BuiltIndex> {
        self.built.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChangeQueue {
    /// Nothing is queued, and all changes up to a revision were recorded.
    fn is_recorded(&self, revision: Revision) -> bool {
        self.state == QueueState::Recording && self.changes.len() == 0 && revision <= self.last
    }
}

impl BuiltIndex {
    /// Everything that was taken from the queue is applied.
    fn is_applied(&self) -> bool {
        self.next >= self.taken.len()
    }

    fn count(&self, bounds: KeyBounds<'_>) -> i64 {
        let to = bounds.to.map_or(self.tree.len(), |to| self.tree.rank(to));
        i64::try_from(to.saturating_sub(self.tree.rank(bounds.from))).unwrap_or(i64::MAX)
    }

    fn bytes(&self) -> usize {
        self.tree.bytes() + self.log.bytes() + self.taken.bytes()
    }

    /// Applies changes that were taken, up to a revision, and no more than are applied at once; true if a later one is next.
    fn apply(&mut self, revision: Revision) -> bool {
        for _ in 0..CHANGES_PER_TURN {
            let Some(change) = self.taken.get(self.next) else {
                return false;
            };
            if change.revision > revision {
                return true;
            }
            self.next += 1;
            if self.phase == IndexPhase::Building && change.key >= self.cursor.as_ref() {
                continue;
            }
            let is_changed = if change.exists {
                self.tree.insert(change.key)
            } else {
                self.tree.remove(change.key)
            };
            if is_changed && self.phase == IndexPhase::Serving {
                self.log.push(change);
            }
        }
        false
    }
}
