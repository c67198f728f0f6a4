//! What a member has in memory of the store: everything committed up to a slot, applied in the order of the log.
//!
//! Leader and follower differ only in where records come from: the leader's from its own appends, a follower's from its
//! leader or from the log. So a change of leader is no new beginning: who stops leading goes on reading where it
//! stopped, and who begins to lead has only the rest of the log to read.
//!
//! Invariant: the published view holds exactly the records below `next`; what is in no rows of it is in its generations.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::log::{Log, Slot};
use crate::mvcc::apply::Applier;
use crate::mvcc::record::Record;
use crate::mvcc::sizes::Sizes;
use crate::mvcc::view::View;
use crate::mvcc::{Committed, Prev, Revision};
use crate::recent::{Generation, Recent};
use crate::rows::Rows;
use crate::state::{State, since_boot};

pub use lead::{Leadership, OpenError};
pub use load::{check_reach, origin};
pub use newer::{Newer, NewerRows};
pub use tail::Tail;

mod lead;
mod load;
mod newer;
mod reigns;
mod tail;

/// A generation that nobody writes any more: what is to be flushed.
#[derive(Debug)]
pub struct Frozen {
    /// Its versions.
    pub generation: Arc<Generation>,
    /// The slot behind its last record.
    pub marker: Slot,
    /// The slot of its last record.
    pub last: Slot,
    /// The revision behind its last record.
    pub revision: Revision,
    /// The compacted revision behind its last record.
    pub compacted: Revision,
    /// Lease rows that changed; `None` is gone.
    pub lease_rows: Vec<(Bytes, Option<Bytes>)>,
    /// Alarms behind its last record: kind and member.
    pub alarms: Vec<(i32, u64)>,
    /// How much is stored behind its last record.
    pub sizes: Sizes,
}

/// Rows that changed in the background.
#[derive(Debug)]
pub struct Flushed<S> {
    /// The slot behind the last record that is in them, and the revision there; `None` where that did not move.
    pub through: Option<(Slot, Revision)>,
    /// The rows.
    pub snapshot: S,
}

/// See the module.
pub struct Replica<R: Rows> {
    state: Arc<State<R>>,
    applier: Applier,
    recent: Recent,
    /// Sealed generations that are not known to be rows, oldest first.
    sealed: VecDeque<Arc<Frozen>>,
    last_seal: Instant,
    /// All slots before it are in the rows of the view.
    marker: Slot,
    next: Slot,
    /// The last taken slot before it, as far as that is known.
    last: Slot,
    reigns: reigns::Reigns,
}

impl<R: Rows> Replica<R> {
    /// What is published.
    #[must_use]
    pub fn state(&self) -> &Arc<State<R>> {
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
    pub fn recent_bytes(&self) -> usize {
        self.recent.bytes()
    }

    /// Bytes of versions that are not sealed.
    #[must_use]
    pub fn active_bytes(&self) -> usize {
        self.applier.generation.bytes()
    }

    /// Sealed generations that are not known to be rows, oldest first.
    pub fn sealed(&self) -> impl Iterator<Item = &Arc<Frozen>> {
        self.sealed.iter()
    }

    /// When a generation was last sealed.
    #[must_use]
    pub fn last_seal(&self) -> Instant {
        self.last_seal
    }

    /// Something was applied since.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.applier.dirty
    }

    /// Applies the committed batch that stands from slot `first` up to `next`, and shows it. `superseded` are the
    /// versions that its key changes superseded, in their order; empty if they are not known.
    pub fn apply(&mut self, record: Record, superseded: Vec<Prev>, (first, next): (Slot, Slot)) -> Vec<Committed> {
        self.reigns.served();
        let base = record.base;
        let (events, alarms) = {
            let mut leases = self.state.leases();
            self.applier.apply(record, superseded, &mut leases, since_boot())
        };
        for alarm in alarms {
            let mut raised = self.state.alarms();
            if alarm.raised {
                raised.insert((alarm.kind, alarm.member));
            } else {
                raised.remove(&(alarm.kind, alarm.member));
            }
        }
        self.next = next;
        self.last = Slot(next.0.saturating_sub(1));
        self.state.commit(base, first, next);
        self.state.set_written(&self.applier.sizes);
        self.publish(None);
        self.state.show(next);
        events
    }

    /// Notes that everything before `next` is committed, where there is nothing to apply.
    pub fn pass(&mut self, next: Slot) {
        self.next = next;
        self.state.commit(self.applier.revision, next, next);
        self.state.show(next);
    }

    /// Ends the active generation and begins a new one. Answers with it, if there is something in it.
    pub fn seal(&mut self) -> Option<Arc<Frozen>> {
        self.last_seal = Instant::now();
        if !std::mem::take(&mut self.applier.dirty) {
            return None;
        }
        self.recent = self.recent.rotated();
        let generation = std::mem::replace(&mut self.applier.generation, self.recent.active().clone());
        self.publish(None);
        let frozen = Arc::new(Frozen {
            generation,
            marker: self.next,
            last: self.last,
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            lease_rows: std::mem::take(&mut self.applier.lease_rows).into_iter().collect(),
            alarms: self.state.alarms().iter().copied().collect(),
            sizes: self.applier.sizes,
        });
        self.sealed.push_back(frozen.clone());
        Some(frozen)
    }

    /// Lets views read newer rows, without the generations that are in them now.
    pub fn swap_rows(&mut self, flushed: Flushed<R::Snapshot>) {
        let revision = match flushed.through {
            Some((marker, revision)) => {
                self.marker = marker;
                while self.sealed.front().is_some_and(|oldest| oldest.marker <= marker) {
                    if let Some(frozen) = self.sealed.pop_front() {
                        self.recent = self.recent.without(&frozen.generation);
                    }
                }
                revision
            }
            None => self.state.view().rows_revision,
        };
        self.publish(Some((flushed.snapshot, revision)));
    }

    /// Lets views read newer rows, if they hold no more than what is applied, and no less than those that are read now.
    pub fn refresh(&mut self, Newer { snapshot, fence }: Newer<R::Snapshot>) {
        let marker = Slot(fence.marker);
        if (self.marker..=self.next).contains(&marker) && fence.reached() <= self.revision() {
            // Whoever waits for the first looks at the second.
            self.state.set_deleted(&fence.sizes);
            self.state.set_deleted_up_to(fence.deleted_up_to);
            // What stands before is compacted: nobody looks for it.
            self.state.forget_below(marker.min(Slot(fence.deleted_slot)));
            let through = Some((marker, fence.reached()));
            self.swap_rows(Flushed { through, snapshot });
        }
    }

    /// Begins anew from rows, which are ahead: what lies between is not in the log any more. What is published goes on
    /// from there.
    ///
    /// # Errors
    /// As [`Replica::load`].
    pub async fn rebase<L: Log>(&mut self, log: &L, rows: &R) -> Result<(), OpenError> {
        let state = self.state.clone();
        let mut fresh = Self::load(log, rows).await?;
        state.replace(&fresh.state);
        fresh.state = state;
        *self = fresh;
        Ok(())
    }

    fn publish(&self, rows: Option<(R::Snapshot, Revision)>) {
        let old = self.state.view();
        let (rows, rows_revision, hot) = match rows {
            Some((rows, revision)) => (rows, revision, Arc::default()),
            None => (old.rows.clone(), old.rows_revision, old.hot.clone()),
        };
        self.state.publish(View {
            revision: self.applier.revision,
            compacted: self.applier.compacted,
            recent: self.recent.clone(),
            rows,
            rows_revision,
            counts: old.counts.clone(),
            hot,
        });
    }
}
