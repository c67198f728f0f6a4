//! The hub: the state shared by the writer, the dispatcher and the watchers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{Notify, watch};
use tracing::warn;

use super::WatchLimits;
use super::index::Index;
use super::mailbox::{Inbox, Mailbox, RunCount, locked};
use super::range::KeyRange;
use super::ring::{Entry, Ring};
use super::subscription::{EventFilter, Registration, Subscription};
use etcd_types::types::{Committed, Revision};

/// The number of watchers of one stream that may be dropped at once.
const MAX_DROPPED_AT_ONCE: usize = 1024;

/// Gauges for the metrics.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Watchers that are open.
    pub watchers: AtomicU64,
    /// Watchers of these that read history, because their events are no longer in the ring.
    pub lagging: AtomicU64,
    /// Streams of clients.
    pub streams: AtomicU64,
    /// Events that were passed to watchers so far.
    pub events: AtomicU64,
    /// Events that wait to be sent.
    pub pending: AtomicU64,
    /// Watchers that want previous versions.
    pub with_prev_kv: Arc<AtomicU64>,
}

/// The revision at which a watch starts.
#[derive(Debug, Clone, Copy)]
pub struct WatchStart {
    /// `None`: the next revision.
    pub start: Option<Revision>,
    /// The revision that clients may have read before the hub has it: it is no news to them.
    pub shown: Revision,
}

/// Passes committed revisions from the writer to the watchers. A cheap handle to shared state.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: WatchLimits,
    /// Runs in all mailboxes.
    runs: Arc<RunCount>,
    pub(super) ring: RwLock<Ring>,
    pub(super) routing: Mutex<Routing>,
    /// The newest revision in the ring.
    revision: AtomicI64,
    /// The newest revision that was delivered to all mailboxes it belongs to.
    pub(super) dispatched: watch::Sender<Revision>,
    pub(super) published: Notify,
    /// Watchers of ended streams, which the dispatcher drops in small steps; `None` after it has stopped.
    ended: Mutex<Option<Vec<Vec<Subscription>>>>,
    gauges: Gauges,
}

/// The watchers of new events.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) index: Index<Arc<Mailbox>>,
    /// The revision up to which the watchers in the index were looked up.
    pub(super) matched: Revision,
    /// The position of the next event to look up watchers for.
    pub(super) cursor: u64,
}

impl Hub {
    /// Creates the hub of a store whose newest revision is `revision`. [`Hub::run`] must be running for events to arrive.
    #[must_use]
    pub fn new(options: WatchLimits, revision: Revision) -> Self {
        let routing = Routing {
            index: Index::new(),
            matched: revision,
            cursor: 0,
        };
        let shared = Shared {
            options,
            runs: Arc::default(),
            ring: RwLock::new(Ring::new(revision, options.ring_bytes)),
            routing: Mutex::new(routing),
            revision: AtomicI64::new(revision),
            dispatched: watch::Sender::new(revision),
            published: Notify::new(),
            ended: Mutex::new(Some(Vec::new())),
            gauges: Gauges::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Publishes `revisions`, in ascending order, to the watchers. Call it after their view is published and before any client learns
    /// that they are committed. Costs an append, independent of the number of watchers.
    ///
    /// Revisions that are not newer than [`Hub::revision`] are skipped. If there is a gap, as when a member restarts from a later
    /// state, every watcher fetches the missing revisions from history.
    pub fn publish(&self, revisions: impl IntoIterator<Item = Arc<Committed>>) {
        let (mut entries, mut evicted) = (Vec::new(), Vec::new());
        for committed in revisions {
            let revision = committed.revision;
            // A revision with more events than fit into the ring gets no entries: none of them would stay.
            let fits = committed.events.len() <= self.shared.options.ring_bytes / Entry::LEAST_WEIGHT;
            entries.clear();
            if fits {
                entries.extend(Entry::of(&committed));
            }
            let mut ring = self.shared.ring.write().unwrap_or_else(PoisonError::into_inner);
            let newest = ring.through();
            if revision <= newest {
                warn!(revision, newest, "published a revision to the watchers twice");
                continue;
            }
            match fits {
                true => ring.push(revision, &mut entries, &mut evicted),
                false => ring.skip_to(revision, &mut evicted),
            }
            drop(ring);
            evicted.clear(); // frees memory, without the lock
            self.shared.revision.store(revision, Ordering::Release);
        }
        self.shared.published.notify_one();
    }

    /// Continues after `revision`: the revisions in between are committed, and every watcher fetches them from history.
    pub fn skip_to(&self, revision: Revision) {
        let mut evicted = Vec::new();
        {
            let mut ring = self.shared.ring.write().unwrap_or_else(PoisonError::into_inner);
            if revision <= ring.through() {
                return;
            }
            ring.skip_to(revision, &mut evicted);
        }
        drop(evicted);
        self.shared.revision.store(revision, Ordering::Release);
        self.shared.published.notify_one();
    }

    /// The number of watchers that want previous versions: while it is 0, writers need not read those that no request needs.
    #[must_use]
    pub fn watchers_with_prev_kv(&self) -> Arc<AtomicU64> {
        self.shared.gauges.with_prev_kv.clone()
    }

    /// Returns the newest revision that was published.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.revision.load(Ordering::Acquire)
    }

    /// Subscribes to the newest revision that was delivered to every watcher's inbox.
    #[must_use]
    pub fn dispatched(&self) -> watch::Receiver<Revision> {
        self.shared.dispatched.subscribe()
    }

    /// Watches `range` from the given start on. `inbox` gets `name` when there is something
    /// to read; if the subscription [is behind](Subscription::is_behind), it can be read at once.
    ///
    /// Also returns the revision of the store, which is at least the shown one: without a start, the watch starts after it.
    #[must_use]
    pub fn subscribe(
        &self,
        inbox: &Arc<Inbox>,
        name: i64,
        range: KeyRange,
        kinds: EventFilter,
        WatchStart { start, shown }: WatchStart,
    ) -> (Subscription, Revision) {
        let mut routing = locked(&self.shared.routing);
        let revision = self.revision().max(shown);
        let next = start.unwrap_or(revision + 1);
        let live = next > routing.matched;
        let mailbox = Arc::new(if live {
            Mailbox::open(name, Arc::clone(inbox), Arc::clone(&self.shared.runs))
        } else {
            Mailbox::closed(name, Arc::clone(inbox), Arc::clone(&self.shared.runs))
        });
        let id = routing.index.insert(&range, Arc::clone(&mailbox));
        drop(routing);
        let registered = Registration {
            id,
            mailbox,
            next,
            live,
        };
        (Subscription::new(self.clone(), range, kinds, registered), revision)
    }

    /// Returns the range to watch: its bounds are cut to the length of the longest possible key.
    #[must_use]
    pub fn fit(&self, range: KeyRange) -> KeyRange {
        range.fit(self.shared.options.key_bytes)
    }

    /// Takes the watchers of an ended stream. Large numbers are dropped in small steps, so that nothing waits for it.
    pub fn end(&self, watchers: impl ExactSizeIterator<Item = Subscription>) {
        if watchers.len() <= MAX_DROPPED_AT_ONCE {
            return watchers.for_each(drop);
        }
        let mut watchers: Vec<Subscription> = watchers.collect();
        if let Some(ended) = &mut *locked(&self.shared.ended) {
            ended.push(std::mem::take(&mut watchers));
        }
        self.shared.published.notify_one();
        drop(watchers); // without the lock, if they were not taken
    }

    /// Returns some of the watchers that must be dropped.
    pub(super) fn take_ended(&self, most: usize) -> Vec<Subscription> {
        let mut ended = locked(&self.shared.ended);
        let Some(ended) = &mut *ended else { return Vec::new() };
        let Some(stream) = ended.last_mut() else {
            return Vec::new();
        };
        let some = stream.split_off(stream.len().saturating_sub(most));
        if stream.is_empty() {
            ended.pop();
        }
        some
    }

    /// Ends the dispatcher: from now on the owners of watchers drop them.
    pub(super) fn close(&self) {
        let rest = locked(&self.shared.ended).take();
        drop(rest); // without the lock
    }

    /// Returns the current number of watchers (`etcd_debugging_mvcc_watcher_total`).
    #[must_use]
    pub fn watchers(&self) -> u64 {
        self.shared.gauges.watchers.load(Ordering::Relaxed)
    }

    /// Returns the current number of watchers that read older events (`etcd_debugging_mvcc_slow_watcher_total`).
    #[must_use]
    pub fn lagging_watchers(&self) -> u64 {
        self.shared.gauges.lagging.load(Ordering::Relaxed)
    }

    /// Returns the current number of streams (`etcd_debugging_mvcc_watch_stream_total`).
    #[must_use]
    pub fn streams(&self) -> u64 {
        self.shared.gauges.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of events sent since the start (`etcd_debugging_mvcc_events_total`).
    #[must_use]
    pub fn events(&self) -> u64 {
        self.shared.gauges.events.load(Ordering::Relaxed)
    }

    /// Returns the current number of events in responses that are not sent yet (`etcd_debugging_mvcc_pending_events_total`).
    #[must_use]
    pub fn pending_events(&self) -> u64 {
        self.shared.gauges.pending.load(Ordering::Relaxed)
    }

    /// Returns the counts of watchers and pending events. The code that passes events on keeps them up to date.
    #[must_use]
    pub fn gauges(&self) -> &Gauges {
        &self.shared.gauges
    }

    /// Returns the limits that the hub was created with.
    #[must_use]
    pub fn options(&self) -> &WatchLimits {
        &self.shared.options
    }

    pub(super) fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.shared.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a mailbox, which gets every event after the returned revision.
    pub(super) fn join(&self, mailbox: &Mailbox) -> Revision {
        let routing = locked(&self.shared.routing);
        mailbox.join();
        routing.matched
    }

    pub(super) fn forget(&self, range: &KeyRange, id: u64) {
        let mailbox = locked(&self.shared.routing).index.remove(range, id);
        drop(mailbox); // without the lock
    }
}
