//! One watcher: its progress, and the source of its next events.
//!
//! Invariant: every event of the watcher before `next` was returned by [`Subscription::step`] or [`Subscription::replay`], or was
//! filtered; none was returned twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Hub;
use super::history_cache::Chunk;
use super::mailbox::{Mail, Mailbox};
use super::range::KeyRange;
use super::ring::{Entry, Evicted, PrevKv, Run};
use etcd_types::types::{EventKind, Revision};
use runtime::budget::Charge;

/// The kinds of event that a watcher receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFilter {
    /// True if it receives puts.
    pub puts: bool,
    /// True if it receives deletions.
    pub deletes: bool,
}

impl EventFilter {
    /// Receives all events.
    pub const ALL: EventFilter = EventFilter {
        puts: true,
        deletes: true,
    };

    fn contains(self, kind: EventKind) -> bool {
        match kind {
            EventKind::Put => self.puts,
            EventKind::Delete => self.deletes,
        }
    }
}

/// Whole revisions of a watcher's events.
#[derive(Debug)]
pub struct EventBatch {
    /// In order; never empty.
    pub entries: Vec<Arc<Entry>>,
    /// The watcher has received everything up to this revision, this batch included.
    pub revision: Revision,
}

/// The result of one step.
#[derive(Debug)]
pub enum SubscriptionStep {
    /// Events. Step again.
    Batch(EventBatch),
    /// None of the examined events concerns the watcher. Step again.
    Nothing,
    /// All pending events are newer than allowed. Step again when they are allowed.
    Held,
    /// This revision is no longer in the ring: continue with [`Subscription::replay`].
    Missing(Revision),
    /// The previous versions of this revision are too large to be read: the watch cannot continue.
    TooLarge(Revision),
    /// Nothing to do until the inbox lists the watcher.
    Synced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionPhase {
    /// The watcher reads history; the mailbox accepts nothing.
    Behind,
    /// The mailbox accepts everything newer than this revision; older events are read from the ring.
    Joining(Revision),
    /// The mailbox contains everything.
    Live,
}

/// One watcher; see the module. Dropping it ends the watch.
#[derive(Debug)]
pub struct Subscription {
    hub: Hub,
    id: u64,
    mailbox: Arc<Mailbox>,
    range: KeyRange,
    kinds: EventFilter,
    prev_kv: PrevKv,
    /// Events up to this revision are taken without their previous versions.
    prev_kv_floor: Revision,
    phase: SubscriptionPhase,
    next: Revision,
    /// Runs taken from the mailbox whose events are not yet read from the ring.
    runs: VecDeque<Run>,
    /// The charge to its client's memory budget.
    held: Option<Charge>,
}

/// The parts of a new subscription that the hub determines.
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) next: Revision,
    pub(super) live: bool,
}

impl Subscription {
    pub(super) fn new(hub: Hub, range: KeyRange, kinds: EventFilter, registered: Registration) -> Self {
        hub.gauges().watchers.fetch_add(1, Ordering::Relaxed);
        let mut subscription = Self {
            hub,
            id: registered.id,
            mailbox: registered.mailbox,
            range,
            kinds,
            prev_kv: PrevKv::Omitted,
            prev_kv_floor: 0,
            phase: SubscriptionPhase::Live,
            next: registered.next,
            runs: VecDeque::new(),
            held: None,
        };
        if !registered.live {
            subscription.enter(SubscriptionPhase::Behind);
        }
        subscription
    }

    /// Requests events after a revision with their previous versions: those that were not read are fetched from history.
    pub fn want_prev_kv(&mut self, floor: Revision) {
        self.prev_kv_floor = floor;
        if self.prev_kv == PrevKv::Omitted {
            self.hub.gauges().with_prev_kv.fetch_add(1, Ordering::Relaxed);
        }
        self.prev_kv = PrevKv::Included;
    }

    /// Records the compacted revision: previous versions of events up to it are gone, so these events are returned without them.
    pub fn compacted(&mut self, revision: Revision) {
        self.prev_kv_floor = self.prev_kv_floor.max(revision);
    }

    /// Returns true if the ring has all events that the watcher needs next: it needs no history, compacted or not.
    #[must_use]
    pub fn is_in_ring(&self) -> bool {
        self.hub.ring().covers(self.next)
    }

    /// Keeps a charge until the watcher is dropped.
    pub fn hold(&mut self, held: Option<Charge>) {
        self.held = held;
    }

    /// Returns the first revision whose events have not been returned yet.
    #[must_use]
    pub fn next(&self) -> Revision {
        self.next
    }

    /// Returns true if the watcher still reads events published before it was live.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.phase != SubscriptionPhase::Live
    }

    /// Returns true if an event at or before `revision`, which the hub must have dispatched, may still be pending.
    #[must_use]
    pub fn has_pending(&self, revision: Revision) -> bool {
        if self.is_behind() {
            return self.next <= revision;
        }
        let oldest = self
            .runs
            .front()
            .map(|run| run.revision)
            .or_else(|| self.mailbox.oldest());
        oldest.is_some_and(|oldest| oldest.max(self.next) <= revision)
    }

    /// Reads events from the mailbox and the ring. A live watcher gets none after revision `through`.
    pub fn step(&mut self, through: Revision) -> SubscriptionStep {
        match self.phase {
            SubscriptionPhase::Live => self.step_live(through),
            SubscriptionPhase::Joining(through) => self.step_joining(through),
            SubscriptionPhase::Behind => {
                if !self.hub.ring().covers(self.next) {
                    return SubscriptionStep::Missing(self.next);
                }
                let through = self.hub.join(&self.mailbox);
                self.enter(SubscriptionPhase::Joining(through));
                self.step_joining(through)
            }
        }
    }

    /// Reads events from a chunk of history, which must cover [`Subscription::next`].
    pub fn replay(&mut self, chunk: &Chunk) -> SubscriptionStep {
        let published = self.hub.revision();
        let limit = self.hub.options().batch(published);
        let (mut entries, mut next) = chunk.scan(&self.range, self.next, limit);
        if let Some(lacking) = self.first_lacking(&entries) {
            entries.retain(|entry| entry.revision() < lacking);
            if entries.is_empty() {
                return SubscriptionStep::TooLarge(lacking);
            }
            next = lacking;
        }
        self.advance(entries, next, published)
    }

    fn step_live(&mut self, through: Revision) -> SubscriptionStep {
        if self.runs.is_empty() {
            match self.mailbox.take() {
                Mail::Lost(from) => return self.fall_behind(from),
                Mail::Runs(runs) if runs.is_empty() => return SubscriptionStep::Synced,
                Mail::Runs(runs) => self.runs = runs,
            }
        }
        let oldest = self.runs.front().map_or(self.next, |run| run.revision);
        let limit = self.hub.options().batch(through);
        let taken = self.hub.ring().take_runs(&mut self.runs, limit);
        if self.runs.is_empty() {
            self.runs = VecDeque::new(); // an idle watcher keeps no memory
        }
        match taken {
            Err(Evicted) => self.fall_behind(oldest),
            Ok(entries) if entries.is_empty() && !self.runs.is_empty() => SubscriptionStep::Held,
            Ok(entries) if self.first_lacking(&entries).is_some() => self.fall_behind(oldest),
            Ok(entries) => {
                let next = entries
                    .last()
                    .map_or(self.next, |last| last.revision() + 1)
                    .max(self.next);
                self.advance(entries, next, next - 1)
            }
        }
    }

    fn step_joining(&mut self, through: Revision) -> SubscriptionStep {
        if self.next > through {
            self.enter(SubscriptionPhase::Live);
            return SubscriptionStep::Nothing;
        }
        let limit = self.hub.options().batch(through);
        let (mut entries, mut next) = {
            let ring = self.hub.ring();
            if !ring.covers(self.next) {
                drop(ring);
                self.mailbox.leave();
                self.enter(SubscriptionPhase::Behind);
                return SubscriptionStep::Missing(self.next);
            }
            ring.scan(&self.range, self.next, limit)
        };
        if let Some(lacking) = self.first_lacking(&entries) {
            entries.retain(|entry| entry.revision() < lacking);
            if entries.is_empty() {
                // The events are in the ring, but not all of their previous versions.
                self.fall_behind(lacking);
                return SubscriptionStep::Missing(lacking);
            }
            next = lacking;
        }
        if next > through {
            self.enter(SubscriptionPhase::Live);
        }
        self.advance(entries, next, through)
    }

    /// Returns the new events of `entries` that pass the filter; `entries` are all events of the watcher before `next`. `reached`
    /// is the revision to report when `next` passes it.
    fn advance(&mut self, mut entries: Vec<Arc<Entry>>, next: Revision, reached: Revision) -> SubscriptionStep {
        let (seen, kinds) = (self.next, self.kinds);
        self.next = next.max(seen);
        entries.retain(|entry| entry.revision() >= seen && kinds.contains(entry.event().kind));
        let Some(last) = entries.last().map(|entry| entry.revision()) else {
            return SubscriptionStep::Nothing;
        };
        let revision = if next > reached { reached.max(last) } else { last };
        SubscriptionStep::Batch(EventBatch { entries, revision })
    }

    fn fall_behind(&mut self, from: Revision) -> SubscriptionStep {
        self.mailbox.leave();
        self.runs = VecDeque::new();
        self.next = self.next.max(from);
        self.enter(SubscriptionPhase::Behind);
        SubscriptionStep::Nothing
    }

    /// Returns the first revision of these events that lacks previous versions which the watcher wants and which were not read.
    fn first_lacking(&self, entries: &[Arc<Entry>]) -> Option<Revision> {
        let is_lacking = |entry: &&Arc<Entry>| {
            let event = entry.event();
            event.is_prev_unread && self.kinds.contains(event.kind) && entry.revision() > self.prev_kv_floor
        };
        let mut entries = entries.iter().filter(|_| self.prev_kv == PrevKv::Included);
        entries.find(is_lacking).map(|entry| entry.revision())
    }

    fn enter(&mut self, phase: SubscriptionPhase) {
        let lagging = &self.hub.gauges().lagging;
        match (self.phase == SubscriptionPhase::Live, phase == SubscriptionPhase::Live) {
            (true, false) => drop(lagging.fetch_add(1, Ordering::Relaxed)),
            (false, true) => drop(lagging.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        self.phase = phase;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.enter(SubscriptionPhase::Live);
        self.hub.gauges().watchers.fetch_sub(1, Ordering::Relaxed);
        if self.prev_kv == PrevKv::Included {
            self.hub.gauges().with_prev_kv.fetch_sub(1, Ordering::Relaxed);
        }
        self.hub.forget(&self.range, self.id);
    }
}

#[cfg(test)]
mod tests;
