//! The published state: the view that reads take, leases, alarms and users. The sequencer writes it, everybody reads it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::auth::SharedAuth;
use engine::log::Slot;
use engine::rows::DynRows;
use etcd_types::types::{LeaseId, Revision};
use mvcc::auth::Auth;
use mvcc::fetch::FetchBudgets;
use mvcc::lease::{Leases, StoredLease};
use mvcc::sizes::StoredSizes;
use mvcc::view::View;

/// Slots between two entries of the index from revisions to slots.
const SLOTS_PER_INDEX_ENTRY: u64 = 32;

/// Keys of a lease that are copied while the leases are locked.
const KEYS_PER_LEASE_LOCK: usize = 1_000;

/// The progress of compaction in the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Versions superseded at or before this revision are deleted.
    pub up_to: Revision,
    /// Number of steps that wrote or deleted rows. It grows as long as the compaction makes progress.
    pub steps: u64,
}

/// The published state of the store.
pub struct StoreState {
    view: ArcSwap<View>,
    leases: Mutex<Leases>,
    alarms: Mutex<BTreeSet<(i32, u64)>>,
    auth: Arc<SharedAuth>,
    /// Slots of revisions in the log: base revision of a batch and its first slot, ascending, not every batch.
    index: Mutex<Vec<(Revision, Slot)>>,
    /// The next slot: all before it are committed.
    committed: AtomicU64,
    /// The next slot: all before it are in the view.
    applied: watch::Sender<Slot>,
    /// The next slot by the newest announcement: all slots before it are committed, but this member may not have them yet.
    known_committed: AtomicU64,
    compaction: watch::Sender<CompactionProgress>,
    /// Something stored is damaged: reads and writes are refused.
    corrupt: AtomicBool,
    /// The reason why this member cannot lead now, although it holds or held the lock.
    cannot_lead: ArcSwapOption<String>,
    epoch: Arc<AtomicU64>,
    /// The watch channel of the epoch.
    epochs: watch::Sender<u64>,
    fetches: OnceLock<FetchBudgets>,
    /// Stored bytes.
    sizes: Mutex<StoredSizes>,
    /// True while the rows refuse a flush.
    flush_refused: AtomicBool,
    /// Start of the write of rows that is under way.
    writing_rows: Mutex<Option<Instant>>,
}

/// A write of rows that is under way: see [`StoreState::write_rows`].
pub struct WritingRows(Arc<StoreState>);

impl Drop for WritingRows {
    fn drop(&mut self) {
        *self.0.writing_rows.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl StoreState {
    /// The state that was found when the store was opened.
    pub fn new(view: View, leases: Leases, alarms: BTreeSet<(i32, u64)>, auth: Auth) -> Self {
        Self {
            view: ArcSwap::from_pointee(view),
            leases: Mutex::new(leases),
            alarms: Mutex::new(alarms),
            auth: Arc::new(SharedAuth::new(auth)),
            index: Mutex::default(),
            committed: AtomicU64::new(Slot::FIRST.0),
            applied: watch::Sender::new(Slot::FIRST),
            known_committed: AtomicU64::new(Slot::FIRST.0),
            compaction: watch::Sender::default(),
            corrupt: AtomicBool::new(false),
            cannot_lead: ArcSwapOption::empty(),
            epoch: Arc::default(),
            epochs: watch::Sender::default(),
            fetches: OnceLock::new(),
            sizes: Mutex::default(),
            flush_refused: AtomicBool::new(false),
            writing_rows: Mutex::default(),
        }
    }

    /// Takes over the content of `other`, which no other task uses.
    pub fn replace(&self, other: &Self) {
        {
            let mut leases = self.leases();
            // Users are never older than a view.
            self.auth.replace(&other.auth);
            let old = self.view.swap(other.view());
            // The new view has an index of its own, which is not built yet.
            old.key_index.close();
            *leases = std::mem::take(&mut *other.leases());
        }
        *self.alarms() = std::mem::take(&mut *other.alarms());
        let index = std::mem::take(&mut *other.index.lock().unwrap_or_else(PoisonError::into_inner));
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = index;
        self.committed.store(other.committed().0, Ordering::Release);
        self.set_applied(other.committed());
        let sizes = other.sizes();
        self.set_written(&sizes);
        self.set_deleted(&sizes);
        self.set_deleted_up_to(other.compaction_progress().borrow().up_to);
        self.set_epoch(other.epoch());
    }

    /// The newest view.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Makes a newer view the one that reads take.
    pub fn publish(&self, view: View) {
        self.view.store(Arc::new(view));
    }

    /// Sets the fetch budgets of [`StoreState::fetches`]. Does nothing after the first use.
    pub fn set_fetches(&self, fetches: FetchBudgets) {
        self.fetches.get_or_init(|| fetches);
    }

    /// The budget for rows that requests read before they are evaluated.
    pub fn fetches(&self) -> &FetchBudgets {
        self.fetches.get_or_init(FetchBudgets::default)
    }

    /// The leases. Held for moments only.
    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of a lease in key order, copied a page at a time, so that the leases are not locked between pages. Keys that are attached
    /// or detached in between may be included.
    pub fn lease_keys(&self, id: LeaseId) -> impl Iterator<Item = Bytes> {
        let mut last: Option<Bytes> = None;
        let pages = std::iter::from_fn(move || {
            let page = self.leases().attached_behind(id, last.as_ref(), KEYS_PER_LEASE_LOCK);
            last = Some(page.last()?.clone());
            Some(page)
        });
        pages.flatten()
    }

    /// The newest view, and the leases and users as of its revision.
    pub fn consistent(&self) -> (Arc<View>, Vec<StoredLease>, Arc<Auth>) {
        let leases = self.leases();
        (self.view(), leases.all_stored(), self.auth.load())
    }

    /// The leases, for those that lock them by themselves.
    pub fn leases_mutex(&self) -> &Mutex<Leases> {
        &self.leases
    }

    /// Raised alarms: etcd's number of the kind, and the member.
    pub fn alarms(&self) -> MutexGuard<'_, BTreeSet<(i32, u64)>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Users, roles and tokens.
    pub fn auth(&self) -> &Arc<SharedAuth> {
        &self.auth
    }

    /// Some member has no space.
    pub fn has_alarm(&self, kind: i32) -> bool {
        self.alarms().iter().any(|(raised, _)| *raised == kind)
    }

    /// Records that all slots before `next` are committed; the batch with base revision `base` began at `first`.
    pub fn commit(&self, base: Revision, first: Slot, next: Slot) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if index
            .last()
            .is_none_or(|(_, last)| first.0 >= last.0 + SLOTS_PER_INDEX_ENTRY)
        {
            index.push((base, first));
        }
        self.committed.store(next.0, Ordering::Release);
    }

    /// Records an announcement that all slots before `next` are committed.
    pub fn observe_commit(&self, next: Slot) {
        self.known_committed.fetch_max(next.0, Ordering::AcqRel);
    }

    /// The highest slot that [`StoreState::observe_commit`] was given.
    pub fn known_committed(&self) -> Slot {
        Slot(self.known_committed.load(Ordering::Acquire))
    }

    /// Returns the number of slots that are committed, by the newest announcement, and not yet in the view.
    pub fn lag(&self) -> u64 {
        let applied = self.applied.borrow().0;
        self.known_committed.load(Ordering::Acquire).saturating_sub(applied)
    }

    /// The first slot that is not committed.
    pub fn committed(&self) -> Slot {
        Slot(self.committed.load(Ordering::Acquire))
    }

    /// Records that all slots before `next` are in the view.
    pub fn set_applied(&self, next: Slot) {
        self.applied.send_replace(next);
    }

    /// Waits until all slots before `slot` are in the view.
    pub async fn wait_applied(&self, slot: Slot) {
        let mut applied = self.applied.subscribe();
        // The sender is this state.
        drop(applied.wait_for(|applied| *applied >= slot).await);
    }

    /// Returns a slot at or before the batch that made `revision`; `None` if it is older than the index.
    pub fn slot_before(&self, revision: Revision) -> Option<Slot> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let after = index.partition_point(|(base, _)| *base < revision);
        after.checked_sub(1).map(|at| index[at].1)
    }

    /// Returns the oldest slot in the index.
    pub fn first_noted(&self) -> Option<Slot> {
        self.index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .first()
            .map(|(_, slot)| *slot)
    }

    /// Removes the slots below `watermark` from the index: they are destroyed.
    pub fn forget_below(&self, watermark: Slot) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = index.partition_point(|(_, slot)| *slot < watermark);
        index.drain(..gone);
    }

    /// Subscribes to the progress of compaction, which changes with every step.
    pub fn compaction_progress(&self) -> watch::Receiver<CompactionProgress> {
        self.compaction.subscribe()
    }

    /// Records that versions superseded up to `revision` are deleted.
    pub fn set_deleted_up_to(&self, revision: Revision) {
        self.compaction.send_modify(|compaction| compaction.up_to = revision);
    }

    /// Records a step in which rows were written or deleted.
    pub fn note_step(&self) {
        self.compaction.send_modify(|compaction| compaction.steps += 1);
    }

    /// True if something stored is damaged.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Acquire)
    }

    /// Stops serving: something stored is damaged.
    pub fn set_corrupt(&self) {
        self.corrupt.store(true, Ordering::Release);
    }

    /// Returns the reason why this member cannot lead now: its storage did not answer in time. `None` if there is none.
    pub fn cannot_lead(&self) -> Option<Arc<String>> {
        self.cannot_lead.load_full()
    }

    /// Records why this member cannot lead, or that it can again.
    pub fn set_cannot_lead(&self, reason: Option<String>) {
        self.cannot_lead.store(reason.map(Arc::new));
    }

    /// True while the rows refuse a flush: nothing more may be acknowledged.
    pub fn is_flush_refused(&self) -> bool {
        self.flush_refused.load(Ordering::Acquire)
    }

    /// Records whether the rows refuse a flush; returns the previous value.
    pub fn set_flush_refused(&self, refused: bool) -> bool {
        self.flush_refused.swap(refused, Ordering::AcqRel)
    }

    /// Returns the time since the write of rows that is under way began; `None` while there is none.
    pub fn writing_rows(&self) -> Option<Duration> {
        let since = *self.writing_rows.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// Records that rows are being written, until the returned guard is dropped.
    pub fn write_rows(self: &Arc<Self>) -> WritingRows {
        *self.writing_rows.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        WritingRows(self.clone())
    }

    /// Returns the stored bytes, as far as this member knows.
    pub fn sizes(&self) -> StoredSizes {
        *self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the bytes that are written up to the view.
    pub fn set_written(&self, sizes: &StoredSizes) {
        let mut known = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        (known.written, known.logged, known.unversioned) = (sizes.written, sizes.logged, sizes.unversioned);
    }

    /// Records the bytes that compaction has deleted.
    pub fn set_deleted(&self, sizes: &StoredSizes) {
        let mut known = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        (known.deleted, known.dropped) = (sizes.deleted, sizes.dropped);
        known.unversioned_dropped = sizes.unversioned_dropped;
    }

    /// Bytes that the store occupies: those of its rows, or the count of all members if the storage is shared. Of a log on local disk only
    /// what rows do not hold as well is counted: etcd counts no log, and deletes its own without a compaction.
    pub fn total_size(&self, rows: &DynRows) -> u64 {
        match rows.size() {
            Some(size) => size + self.sizes().unversioned(),
            None => self.sizes().total(),
        }
    }

    /// Bytes that live and retained versions take of it, about. The sums over the log do not know that values are compressed.
    pub fn size_in_use(&self, rows: &DynRows) -> u64 {
        let in_use = self.sizes().in_use();
        rows.in_use().map_or(in_use, |stored| stored.min(in_use))
    }

    /// The epoch of the leader, which takes the place of etcd's raft term.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the shared cell of the epoch, for callers that put it into every response.
    pub fn epoch_cell(&self) -> Arc<AtomicU64> {
        self.epoch.clone()
    }

    /// Subscribes to the epoch.
    pub fn epochs(&self) -> watch::Receiver<u64> {
        self.epochs.subscribe()
    }

    /// Begins an epoch.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
        self.epochs.send_replace(epoch);
    }
}
