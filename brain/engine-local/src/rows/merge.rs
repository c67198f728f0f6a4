//! Merging tables, in a thread of its own: a merge takes seconds where there are millions of rows, and nothing waits for it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::anyhow;
use lsm_tree::{AbstractTree as _, TableId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::counts::{MAX_LEFT_OVER_BYTES, TableCounts};
use super::guard::{RowsHealth, describe};
use super::inspect;
use super::live_bytes::LiveBytes;
use super::quota::{RowsQuota, RowsUsage};
use super::read::LiveViews;
use super::shape::{Levels, MergeShape};
use super::tree::RowsTree;
use super::{VIEW_RENEWAL_POLL_INTERVAL, VIEW_RENEWAL_TIMEOUT};
use engine::rows::RowsError;

mod compactions;

/// The multiple of the reserve that must stay free while more than `MAX_LEFT_OVER_BYTES` of merged tables are still there.
const FREE_RESERVE_FACTOR: u64 = 6;

/// Space is short if fewer tables as they come from memory would fit than level 0 and the level below may hold, with what merges add.
const TIGHT_MEMTABLES: u64 = 88;

/// The factor by which tables are made larger where lsm-tree merges them no other way.
const LARGE_TABLE_FACTOR: u64 = 16;

/// Maximum size of two levels that are merged whole, in tables as they come from memory.
const MAX_PULLED_MEMTABLES: u64 = 32;

/// The size of the tables that a merge of everything makes, in bytes.
const FULL_MERGE_TABLE_BYTES: u64 = 64_000_000;

/// The time without a batch after which the rows are idle. Merges that can wait begin then, beside no flush and no compaction.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Bytes of tables that are merged all at once if the quota asks for space.
const MAX_FULL_MERGE_BYTES: u64 = 256 << 20;

/// The limits of merges.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeLimits {
    /// Bytes of a table as it comes from memory.
    pub(super) memtable_bytes: u64,
    /// Bytes that must stay free.
    pub(super) reserve_bytes: u64,
    /// Bytes that the rows may occupy.
    pub(super) quota: Option<RowsQuota>,
}

/// The rows whose tables are merged.
pub(super) struct MergeTarget {
    pub(super) dir: PathBuf,
    pub(super) tree: RowsTree,
    pub(super) live: LiveViews,
    pub(super) health: RowsHealth,
    /// Asks for younger views.
    pub(super) renewal: Arc<Notify>,
    pub(super) limits: MergeLimits,
}

/// The thread that merges, as the one that removes tables sees it.
pub(super) struct MergerHandle(Arc<MergeWork>);

impl MergerHandle {
    /// Returns true if space is so short that removals must not take longer than they need.
    pub(super) fn is_tight(&self) -> bool {
        self.0.is_tight()
    }

    /// Looks again for merges that there was no space for.
    pub(super) fn note_removed(&self) {
        if let Err(error) = self.0.count_left_over() {
            tracing::debug!(error = describe(&error), "cannot look for the files of tables");
        }
        self.0.ask();
    }
}

/// The thread that merges. It ends with this, after the merge under way.
pub(super) struct Merger {
    work: Arc<MergeWork>,
    thread: Option<JoinHandle<()>>,
}

struct MergeWork {
    dir: PathBuf,
    tree: RowsTree,
    live: LiveViews,
    health: RowsHealth,
    renewal: Arc<Notify>,
    limits: MergeLimits,
    /// True if the last merge that the quota asked for could not be done.
    is_reclaim_refused: AtomicBool,
    /// The watermark of views when all tables were merged because of the quota, and when views were last not renewed in time.
    merged_at: AtomicU64,
    kept_at: AtomicU64,
    /// Held while a merge runs.
    turn: Mutex<()>,
    /// Numbers of tables that merges or writes began and could not finish, and of those that were made in the same time.
    unfinished: Mutex<BTreeSet<TableId>>,
    /// Bytes that the merge under way may write.
    under_way: AtomicU64,
    /// Bytes that the next ones will need.
    to_come: AtomicU64,
    live_bytes: Mutex<LiveBytes>,
    /// Bytes of the rows that are not dead, as the store counts them.
    in_use: AtomicU64,
    /// When the last batch was applied.
    applied: Mutex<Option<Instant>>,
    /// Deletions that are in memory only.
    unwritten_deletions: AtomicU64,
    /// Bytes that the tables occupied in addition to those when all was in the last level: no merge removes them.
    surplus: AtomicU64,
    /// True while a merge waits for younger views, and while many merged tables do.
    is_view_awaited: AtomicBool,
    has_left_over: AtomicBool,
    state: Mutex<MergerState>,
    changed: Condvar,
}

/// The time of the next merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextMerge {
    /// When new tables or younger views ask for it.
    WhenAsked,
    After(Duration),
    /// As soon as views are younger.
    WithYoungerViews,
}

#[derive(Default)]
struct MergerState {
    /// There may be something to merge.
    asked: bool,
    stop: bool,
}

impl Merger {
    /// Waits to be asked.
    pub(super) fn start(merged: MergeTarget) -> std::io::Result<Self> {
        let work = Arc::new(MergeWork {
            dir: merged.dir,
            tree: merged.tree,
            live: merged.live,
            health: merged.health,
            renewal: merged.renewal,
            limits: merged.limits,
            is_reclaim_refused: AtomicBool::new(false),
            merged_at: AtomicU64::new(0),
            kept_at: AtomicU64::new(0),
            turn: Mutex::default(),
            unfinished: Mutex::default(),
            under_way: AtomicU64::new(0),
            to_come: AtomicU64::new(0),
            live_bytes: Mutex::default(),
            in_use: AtomicU64::new(u64::MAX),
            applied: Mutex::default(),
            unwritten_deletions: AtomicU64::new(0),
            surplus: AtomicU64::new(0),
            is_view_awaited: AtomicBool::new(false),
            has_left_over: AtomicBool::new(false),
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
        self.work.ask();
    }

    pub(super) fn handle(&self) -> MergerHandle {
        MergerHandle(Arc::clone(&self.work))
    }

    /// Returns true if there is something to merge, or [`RowsError::Full`] if there is no space for it, so that the merge will not begin.
    pub(super) fn has_work(&self) -> Result<bool, RowsError> {
        match self.work.next(&Levels::of(&self.work.tree), self.work.busy_for()) {
            Some((_, need)) => self.work.require_space(need).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns true if this many deletions, which are in memory, are a large part of the rows in tables.
    pub(super) fn are_many(&self, deletions: u64) -> bool {
        let counts = TableCounts::of(&self.work.tree);
        counts.are_many(deletions)
    }

    /// Returns true if merges that the quota asks for may give space back.
    pub(super) fn may_reclaim(&self) -> bool {
        !self.work.is_reclaim_refused.load(Ordering::Acquire) && self.work.is_reclaim_due()
    }

    /// Returns true if the quota is used up and deleted rows go once views are younger.
    pub(super) fn is_over_quota_by_deleted(&self) -> bool {
        self.work.is_over_quota_by_deleted()
    }

    /// Returns true if space is so short that merges are small, and L0 must not grow.
    pub(super) fn is_tight(&self) -> bool {
        self.work.is_tight()
    }

    /// Bytes that the merge under way may write yet.
    pub(super) fn under_way(&self) -> u64 {
        self.work.under_way.load(Ordering::Acquire)
    }

    /// Returns true if all views are younger than all rows in tables.
    pub(super) fn are_views_younger(&self) -> bool {
        self.work.are_views_younger()
    }

    /// Returns true if much in the last level is deleted, and goes once views are younger.
    pub(super) fn waits_for_views(&self) -> bool {
        TableCounts::of(&self.work.tree).is_last_much_deleted() && !self.work.are_views_younger()
    }

    /// Returns the bytes of tables that deleted rows occupy, about.
    pub(super) fn deleted_bytes(&self) -> u64 {
        let unwritten = self.work.unwritten_deletions.load(Ordering::Acquire);
        TableCounts::of(&self.work.tree).deleted_bytes(unwritten)
    }

    /// Records the bytes of the rows that are not dead: tables that occupy many more are merged.
    pub(super) fn set_in_use(&self, bytes: u64) {
        self.work.in_use.store(bytes, Ordering::Release);
    }

    /// Records that a batch is applied: the rows are not idle.
    pub(super) fn note_batch(&self) {
        *self.work.applied() = Some(Instant::now());
    }

    /// Records how many deletions are in no table yet.
    pub(super) fn set_unwritten_deletions(&self, deletions: u64) {
        self.work.unwritten_deletions.store(deletions, Ordering::Release);
    }

    /// Returns true if the rows are idle and much of the tables is dead: deletions that are in memory are worth a table.
    pub(super) fn is_idle_and_dead(&self) -> bool {
        self.work.busy_for().is_zero() && self.work.is_much_dead()
    }

    /// Returns true if views must be renewed soon.
    pub(super) fn is_renewal_due(&self) -> bool {
        self.work.is_view_awaited.load(Ordering::Acquire) || self.work.has_left_over.load(Ordering::Acquire)
    }

    /// Looks again whether merged tables wait for younger views.
    pub(super) fn count_left_over(&self) -> Result<(), RowsError> {
        self.work.count_left_over()
    }

    /// Additional bytes that the next small merges, and the next table that comes from memory, need.
    pub(super) fn to_come(&self) -> u64 {
        self.work.limits.memtable_bytes + self.work.to_come.load(Ordering::Acquire)
    }

    /// Records the tables from number `first` on as unfinished. The caller holds the lock of flushes.
    pub(super) fn note_unfinished(&self, first: TableId) {
        self.work.note_unfinished(first);
    }

    /// Merges all tables of level 0.
    #[cfg(test)]
    pub(super) fn merge_level0(&self) -> Result<(), RowsError> {
        let _turn = self.work.begin();
        let strategy = lsm_tree::compaction::Leveled::default().with_l0_threshold(1);
        self.work.merge(strategy, 0).map(|_| ())
    }

    /// Does one merge of this shape. Returns [`RowsError::Full`] if there is no space for it.
    #[cfg(test)]
    pub(super) fn step(&self, shape: MergeShape) -> Result<bool, RowsError> {
        self.work.step(shape)
    }

    #[cfg(test)]
    pub(super) fn is_dead_mergeable(&self) -> bool {
        self.work.is_dead_mergeable()
    }

    /// Bytes that would be left of all tables.
    #[cfg(test)]
    pub(super) fn live_bytes(&self) -> Result<u64, RowsError> {
        self.work.live_bytes(|| false)
    }

    /// Merges all tables at once, if there is space to spare. Blocks. Returns true if it was done, or [`RowsError::Full`] if the space was
    /// used up during the merge.
    pub(super) fn merge_everything(&self) -> Result<bool, RowsError> {
        self.work.merge_everything()
    }

    /// Pushes some tables one level down, so that in the end all rows are in the last one. Returns false if they are, or
    /// [`RowsError::Full`] if there is no space even for that.
    pub(super) fn push_down(&self) -> Result<bool, RowsError> {
        self.work.push_down()
    }

    /// Writes the last level again without the versions of rows that no view needs. Tables of the last level are not merged any more, so
    /// versions that views still needed when they came there would stay. Returns [`RowsError::Full`] if much is deleted and there is no
    /// space for it.
    pub(super) fn rewrite_last(&self) -> Result<bool, RowsError> {
        self.work.rewrite_last(u64::MAX)
    }
}

impl Merger {
    /// Stops after the merge that is under way.
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

impl MergeWork {
    fn ask(&self) {
        self.state().asked = true;
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, MergerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut again = None;
        while self.is_asked(again) {
            match self.merge_all() {
                Ok(next) => {
                    self.ask_for_views(&self.is_view_awaited, next == NextMerge::WithYoungerViews);
                    again = match next {
                        NextMerge::After(time) => Some(time),
                        NextMerge::WhenAsked | NextMerge::WithYoungerViews => None,
                    };
                }
                Err(error) => {
                    // New tables that it has written stay until the next start: the merge is not repeated.
                    tracing::error!(error = describe(&error), "cannot merge tables of the rows");
                    self.health.fail(&error);
                    return;
                }
            }
        }
    }

    /// Waits for a merge, at most for `again`; false if the thread must end.
    fn is_asked(&self, again: Option<Duration>) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        while !state.asked && !state.stop {
            let Some(again) = again else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = again.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.asked = false;
        !state.stop
    }

    /// Merges until there is nothing to merge.
    fn merge_all(&self) -> Result<NextMerge, RowsError> {
        loop {
            if self.state().stop {
                return Ok(NextMerge::WhenAsked);
            }
            if self.is_reclaim_due() && self.reclaim()? {
                continue;
            }
            if !self.unfinished().is_empty() {
                drop(self.begin());
            }
            let (levels, busy) = (self.levels(), self.busy_for());
            let may_take_long = busy.is_zero() || self.is_tight();
            let merged = match self.next(&levels, busy) {
                Some((shape, _)) => self.step(shape),
                None if self.is_stuck(&levels) || may_take_long && self.is_much_deleted() => self.push_down(),
                None if may_take_long && self.is_last_much_deleted() => {
                    self.rewrite_last(MAX_PULLED_MEMTABLES * self.limits.memtable_bytes)
                }
                None => match self.until_idle(&levels, busy) {
                    Some(next) => return Ok(next),
                    None => self.push_down(),
                },
            };
            match merged {
                Ok(true) => {}
                Ok(false) => return Ok(NextMerge::WhenAsked),
                Err(RowsError::Full(reason)) => {
                    tracing::debug!(reason = format!("{reason:#}"), "no space to merge tables of the rows");
                    return Ok(NextMerge::WhenAsked);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the time of the next merge that is not urgent; `None` if much is dead, and is merged now.
    fn until_idle(&self, levels: &Levels, busy: Duration) -> Option<NextMerge> {
        let is_dead = self.is_dead_mergeable();
        if !busy.is_zero() {
            let is_due = is_dead
                || self.is_much_deleted()
                || self.is_last_much_deleted()
                || levels.need(MergeShape::ample(self.limits.memtable_bytes)).is_some();
            return Some(match is_due {
                true => NextMerge::After(busy),
                false => NextMerge::WhenAsked,
            });
        }
        match is_dead {
            true if self.do_views_let_go() => None,
            true => Some(NextMerge::WithYoungerViews),
            false => Some(NextMerge::WhenAsked),
        }
    }

    fn usage(&self, quota_bytes: u64) -> Option<RowsUsage> {
        let bytes = self.tree.bytes();
        // Nothing is due before; tables are counted one by one.
        if bytes <= quota_bytes / 2 {
            return None;
        }
        let counts = TableCounts::of(&self.tree);
        Some(RowsUsage {
            bytes,
            above: counts.bytes - counts.last.bytes,
            last: counts.last.bytes,
            deleted: counts.deleted,
            last_deleted: counts.last.deleted,
        })
    }

    /// Returns true if tables must be merged because of the quota.
    fn is_reclaim_due(&self) -> bool {
        let Some(quota) = self.limits.quota else {
            return false;
        };
        self.usage(quota.0)
            .is_some_and(|usage| quota.is_merge_due(usage, || self.are_views_younger()))
    }

    fn is_over_quota_by_deleted(&self) -> bool {
        let Some(quota) = self.limits.quota else {
            return false;
        };
        self.usage(quota.0)
            .is_some_and(|usage| usage.bytes > quota.0 && usage.deleted + usage.last_deleted > 0)
    }

    /// Does a merge that the quota asks for. Returns false if there is no space for it on the disk, or if views keep everything that it would
    /// remove: writes do not wait for it then.
    fn reclaim(&self) -> Result<bool, RowsError> {
        self.wait_for_views();
        let watermark = self.live.watermark();
        let merged = match watermark == self.merged_at.load(Ordering::Acquire) {
            true => Ok(false),
            false => self.merge_down(),
        };
        let done = match merged {
            Err(RowsError::Full(reason)) => {
                tracing::debug!(reason = format!("{reason:#}"), "no space to merge because of the quota");
                false
            }
            outcome => outcome?,
        };
        if done && !Levels::of(&self.tree).is_spread() {
            self.merged_at.store(watermark, Ordering::Release);
        }
        self.is_reclaim_refused.store(!done, Ordering::Release);
        Ok(done)
    }

    /// Merges everything at once where it is little, else some tables; and the last level with itself when nothing is above it.
    fn merge_down(&self) -> Result<bool, RowsError> {
        if self.tree.disk_space() <= MAX_FULL_MERGE_BYTES && self.merge_everything()? {
            return Ok(true);
        }
        match Levels::of(&self.tree).is_spread() {
            true => self.push_down(),
            false => self.rewrite_last(u64::MAX),
        }
    }

    /// Waits until views see nothing that newer rows in tables replaced, if it does not take long: a merge keeps what they see.
    fn wait_for_views(&self) {
        let newest = self.tree.get_highest_persisted_seqno();
        let begun = Instant::now();
        loop {
            let watermark = self.live.watermark();
            if newest <= Some(watermark) || watermark == self.kept_at.load(Ordering::Acquire) || self.state().stop {
                return;
            }
            if begun.elapsed() >= VIEW_RENEWAL_TIMEOUT {
                self.kept_at.store(watermark, Ordering::Release);
                return;
            }
            self.renewal.notify_one();
            std::thread::sleep(VIEW_RENEWAL_POLL_INTERVAL);
        }
    }

    /// Returns true if the tables delete many rows of the last level, and no view is so old that merges would keep those rows.
    fn is_much_deleted(&self) -> bool {
        let counts = TableCounts::of(&self.tree);
        counts.are_many(counts.deleted) && self.do_views_let_go()
    }

    /// Returns true if much of what the tables hold is dead.
    fn is_much_dead(&self) -> bool {
        let (counts, in_use) = (TableCounts::of(&self.tree), self.in_use.load(Ordering::Acquire));
        counts.are_dead(in_use.saturating_add(self.surplus.load(Ordering::Acquire)))
    }

    /// Returns true if much of what the tables hold is dead, and merges remove it: they do not see deletions in memory, and find nothing to
    /// remove where all is in the last level.
    fn is_dead_mergeable(&self) -> bool {
        if self.unwritten_deletions.load(Ordering::Acquire) > 0 {
            return false;
        }
        let counts = TableCounts::of(&self.tree);
        if counts.are_spread() {
            return self.is_much_dead();
        }
        if counts.last.deleted == 0 {
            let in_use = self.in_use.load(Ordering::Acquire);
            let surplus = counts.bytes.saturating_sub(in_use);
            self.surplus.store(surplus, Ordering::Release);
        }
        false
    }

    /// Returns true if no view is so old that merges would keep rows that were deleted since.
    fn do_views_let_go(&self) -> bool {
        self.tree.get_highest_persisted_seqno() <= Some(self.live.watermark())
    }

    fn applied(&self) -> MutexGuard<'_, Option<Instant>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time until the rows are idle.
    fn busy_for(&self) -> Duration {
        self.applied()
            .map_or(Duration::ZERO, |applied| IDLE_AFTER.saturating_sub(applied.elapsed()))
    }

    /// Asks for younger views when they become due. It asks once: the owner of the views looks at [`Merger::is_renewal_due`] from then on.
    fn ask_for_views(&self, due: &AtomicBool, is_due: bool) {
        if !due.swap(is_due, Ordering::AcqRel) && is_due {
            self.renewal.notify_one();
        }
    }

    /// Asks for younger views if many merged tables wait for them.
    fn count_left_over(&self) -> Result<(), RowsError> {
        self.ask_for_views(&self.has_left_over, left_over(&self.tree)? > MAX_LEFT_OVER_BYTES);
        Ok(())
    }

    /// Returns true if the last level holds many deletions, and no view is so old that writing it again would keep them.
    fn is_last_much_deleted(&self) -> bool {
        TableCounts::of(&self.tree).is_last_much_deleted() && self.are_views_younger()
    }

    fn are_views_younger(&self) -> bool {
        self.tree.get_highest_persisted_seqno() < Some(self.live.watermark())
    }

    /// Returns true if a level is too large and lsm-tree finds no merge for it: then it looks at no other level either. Only where there is space
    /// for any other merge, too.
    fn is_stuck(&self, levels: &Levels) -> bool {
        let ample = MergeShape::ample(self.limits.memtable_bytes);
        levels.fullest(ample).is_some() && levels.need(ample).is_none() && self.is_ample(levels.bytes())
    }

    /// Returns true if space does not become short during a merge that needs `need` bytes.
    fn is_ample(&self, need: u64) -> bool {
        inspect::require_space(&self.dir, self.tight_below() + with_overhead(need)).is_ok()
    }

    /// Bytes that must be free, or space is short.
    fn tight_below(&self) -> u64 {
        let MergeLimits {
            memtable_bytes,
            reserve_bytes,
            ..
        } = self.limits;
        reserve_bytes + TIGHT_MEMTABLES * memtable_bytes
    }

    fn is_tight(&self) -> bool {
        inspect::require_space(&self.dir, self.tight_below()).is_err()
    }

    /// Returns the current tables. Records the bytes that the next merges will need.
    fn levels(&self) -> Levels {
        let levels = Levels::of(&self.tree);
        let need = levels.most_need(MergeShape::tight(self.limits.memtable_bytes));
        self.to_come.store(with_overhead(need), Ordering::Release);
        levels
    }

    /// Returns the next merge, of rows that are busy for some time yet: its shape, and the bytes it needs. It is a small one if space would
    /// become short while a large one lasts.
    fn next(&self, levels: &Levels, busy: Duration) -> Option<(MergeShape, u64)> {
        let memtable_bytes = self.limits.memtable_bytes;
        let ample = match busy {
            Duration::ZERO => MergeShape::ample(memtable_bytes),
            _ => MergeShape::busy(memtable_bytes),
        };
        let tight = MergeShape::tight(memtable_bytes);
        let need = levels.need(ample);
        if self.is_ample(need.unwrap_or(0)) {
            return need.map(|need| (ample, need));
        }
        levels.need(tight).map(|need| (tight, need))
    }

    /// Checks the space for a merge. The new tables exist beside the old ones until they are complete, and the old ones until no view
    /// needs them.
    fn require_space(&self, need: u64) -> Result<(), RowsError> {
        let left_over = left_over(&self.tree)?;
        let to_come = self.to_come.load(Ordering::Acquire);
        if left_over > to_come.max(MAX_LEFT_OVER_BYTES) && self.is_tight() {
            return Err(RowsError::Full(anyhow!(
                "views keep {left_over} bytes of tables that were merged"
            )));
        }
        // While merged tables are about to be deleted, more space is kept free, so that none is missing elsewhere.
        let floor = match left_over > MAX_LEFT_OVER_BYTES {
            true => self.limits.reserve_bytes.saturating_mul(FREE_RESERVE_FACTOR),
            false => self.limits.reserve_bytes,
        };
        inspect::require_space(&self.dir, floor + with_overhead(need))
    }
}

/// Returns the bytes of files of tables that were merged: they are deleted once views are renewed.
pub(super) fn left_over(tree: &RowsTree) -> Result<u64, RowsError> {
    let files = inspect::table_bytes(tree.path())?;
    Ok(files.saturating_sub(tree.disk_space()))
}

/// New tables may compress a little worse than those that they are made of.
fn with_overhead(need: u64) -> u64 {
    need + need / 4
}
