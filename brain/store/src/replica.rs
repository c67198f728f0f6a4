//! The replica of the store in a member's memory: everything committed up to a slot, applied in the order of the log.
//!
//! Leader and follower differ only in where records come from: the leader's from its own appends, a follower's from its
//! leader or from the log. So a change of leader needs no reload: a former leader continues to read where it stopped, and
//! a new leader has only the rest of the log to read.
//!
//! Invariant: the published view holds exactly the records below `next`; those that are not in its rows are in its memtables.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::state::StoreState;
use engine::log::{DynLog, Slot};
use engine::rows::{DynRows, DynSnapshot};
use etcd_types::types::{Committed, Prev, Revision};
use mvcc::apply::{Applier, Effect};
use mvcc::memtable::{Memtable, MemtableSet};
use mvcc::record::Record;
use mvcc::sizes::StoredSizes;
use mvcc::view::View;
use runtime::clock::since_boot;

pub use lead::{Leadership, StoreOpenError, TakeOver};
pub use load::{check_reach, load_auth, origin};
pub use refresh::{RefreshedRows, RowsRefresher};
pub use tail::LogTail;

mod lead;
mod load;
mod prior_leases;
mod refresh;
mod tail;

/// A memtable that takes no more versions, to be flushed.
#[derive(Debug)]
pub struct ImmutableMemtable {
    /// Its versions.
    pub memtable: Arc<Memtable>,
    /// The slot after its last record.
    pub applied_slot: Slot,
    /// The slot of its last record.
    pub last: Slot,
    /// The revision after its last record.
    pub revision: Revision,
    /// The compacted revision after its last record.
    pub compacted: Revision,
    /// Rows of leases, users and roles that changed; `None` for those that were deleted.
    pub state_rows: Vec<(Bytes, Option<Bytes>)>,
    /// Users or roles were ever changed.
    pub has_auth: bool,
    /// Alarms after its last record: kind and member.
    pub alarms: Vec<(i32, u64)>,
    /// Stored bytes after its last record.
    pub sizes: StoredSizes,
}

/// Rows that changed in the background.
pub struct FlushResult {
    /// The slot after the last record that is in them, and the revision there; `None` if that did not change.
    pub through: Option<(Slot, Revision)>,
    /// The rows.
    pub snapshot: DynSnapshot,
}

/// See the module.
pub struct Replica {
    state: Arc<StoreState>,
    applier: Applier,
    memtables: MemtableSet,
    /// Immutable memtables that are not known to be rows, oldest first.
    immutables: VecDeque<Arc<ImmutableMemtable>>,
    last_rotation: Instant,
    /// All slots before it are in the rows of the view.
    applied_slot: Slot,
    next: Slot,
    /// The last taken slot before it, as far as that is known.
    last: Slot,
    prior_leases: prior_leases::PriorLeases,
}

impl Replica {
    /// The published state.
    #[must_use]
    pub fn state(&self) -> &Arc<StoreState> {
        &self.state
    }

    /// The first slot whose record is not applied: an item of the log begins there.
    #[must_use]
    pub fn next(&self) -> Slot {
        self.next
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.applier.revision
    }

    /// The compacted revision.
    #[must_use]
    pub fn compacted(&self) -> Revision {
        self.applier.compacted
    }

    /// Bytes of versions that are in memory.
    #[must_use]
    pub fn memtable_bytes(&self) -> usize {
        self.memtables.bytes()
    }

    /// Bytes of versions in the active memtable.
    #[must_use]
    pub fn active_bytes(&self) -> usize {
        self.applier.memtable.bytes()
    }

    /// Immutable memtables that are not known to be rows, oldest first.
    pub fn immutables(&self) -> impl Iterator<Item = &Arc<ImmutableMemtable>> {
        self.immutables.iter()
    }

    /// When the active memtable was last rotated.
    #[must_use]
    pub fn last_rotation(&self) -> Instant {
        self.last_rotation
    }

    /// Something was applied since.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.applier.dirty
    }

    /// Applies the committed batch in these slots, and publishes it. `superseded` are the versions that its key
    /// changes superseded, in their order; empty if they are not known.
    pub fn apply(&mut self, record: Record, superseded: Vec<Prev>, slots: Range<Slot>) -> Vec<Committed> {
        self.prior_leases.served();
        let base = record.base;
        let state = self.state.clone();
        // Held until the view is published, so that others see leases and view of one revision.
        let mut leases = state.leases();
        let (events, effects) = self.applier.apply(record, superseded, &mut leases, since_boot());
        effects.into_iter().for_each(|effect| self.take_effect(effect));
        let next = slots.end;
        self.next = next;
        self.last = Slot(next.0.saturating_sub(1));
        self.state.commit(base, slots.start, next);
        self.state.set_written(&self.applier.sizes);
        self.publish(None);
        drop(leases);
        self.state.set_applied(next);
        events
    }

    fn take_effect(&self, effect: Effect) {
        match effect {
            Effect::Alarm(alarm) if alarm.raised => drop(self.state.alarms().insert((alarm.kind, alarm.member))),
            Effect::Alarm(alarm) => drop(self.state.alarms().remove(&(alarm.kind, alarm.member))),
            Effect::Auth(change) => self.state.auth().apply(&change),
            Effect::Token(token) => self.state.auth().add_token(&token),
        }
    }

    /// Records that everything before `next` is committed, if there is nothing to apply.
    pub fn pass(&mut self, next: Slot) {
        self.next = next;
        self.state.commit(self.applier.revision, next, next);
        self.state.set_applied(next);
    }

    /// Ends the active memtable and begins a new one. Answers with it, if there is something in it.
    pub fn rotate(&mut self) -> Option<Arc<ImmutableMemtable>> {
        self.last_rotation = Instant::now();
        if !std::mem::take(&mut self.applier.dirty) {
            return None;
        }
        self.memtables = self.memtables.rotated();
        let memtable = std::mem::replace(&mut self.applier.memtable, self.memtables.active().clone());
        self.publish(None);
        let immutable = Arc::new(ImmutableMemtable {
            memtable,
            applied_slot: self.next,
            last: self.last,
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            state_rows: std::mem::take(&mut self.applier.state_rows).into_iter().collect(),
            has_auth: self.state.auth().load().was_changed(),
            alarms: self.state.alarms().iter().copied().collect(),
            sizes: self.applier.sizes,
        });
        self.immutables.push_back(immutable.clone());
        Some(immutable)
    }

    /// Lets views read newer rows, without the memtables that are in them now.
    pub fn swap_rows(&mut self, flushed: FlushResult) {
        let revision = match flushed.through {
            Some((applied_slot, revision)) => {
                self.applied_slot = applied_slot;
                while self
                    .immutables
                    .front()
                    .is_some_and(|oldest| oldest.applied_slot <= applied_slot)
                {
                    if let Some(immutable) = self.immutables.pop_front() {
                        self.memtables = self.memtables.without(&immutable.memtable);
                    }
                }
                revision
            }
            None => self.state.view().rows_revision,
        };
        self.publish(Some((flushed.snapshot, revision)));
    }

    /// Lets views read newer rows, if they hold no more than is applied, and no less than the current ones.
    pub fn refresh(&mut self, RefreshedRows { snapshot, manifest }: RefreshedRows) {
        let applied_slot = Slot(manifest.applied_slot);
        if (self.applied_slot..=self.next).contains(&applied_slot) && manifest.reached() <= self.revision() {
            // The sizes are set before the progress, because the callers that wait for the progress then read the sizes.
            self.state.set_deleted(&manifest.sizes);
            self.state.set_deleted_up_to(manifest.deleted_up_to);
            // Slots before that are compacted: no reader looks them up.
            self.state.forget_below(applied_slot.min(Slot(manifest.deleted_slot)));
            let through = Some((applied_slot, manifest.reached()));
            self.swap_rows(FlushResult { through, snapshot });
        }
    }

    /// Resets from the rows, which are ahead: the records between are not in the log any more. Published state continues from
    /// there.
    ///
    /// # Errors
    /// As [`Replica::load`].
    pub async fn reset_from_snapshot(&mut self, log: &DynLog, rows: &DynRows) -> Result<(), StoreOpenError> {
        let state = self.state.clone();
        let mut fresh = Self::load(log, rows).await?;
        state.replace(&fresh.state);
        fresh.state = state;
        *self = fresh;
        Ok(())
    }

    fn publish(&self, rows: Option<(DynSnapshot, Revision)>) {
        let old = self.state.view();
        let (rows, rows_revision, hot) = match rows {
            Some((rows, revision)) => (rows, revision, Arc::default()),
            None => (old.rows.clone(), old.rows_revision, old.hot.clone()),
        };
        self.state.publish(View {
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            memtables: self.memtables.clone(),
            rows,
            dictionaries: old.dictionaries.clone(),
            rows_revision,
            page_counts: old.page_counts.clone(),
            key_index: self.applier.key_index.clone(),
            hot,
        });
    }
}
