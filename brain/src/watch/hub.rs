//! The hub: what the writer, the dispatcher and the watchers share.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{Notify, watch};
use tracing::warn;

use super::Options;
use super::index::Index;
use super::mailbox::{Inbox, Mailbox, locked};
use super::range::KeyRange;
use super::ring::{Entry, Ring};
use super::subscription::{EventFilter, Registered, Subscription};
use crate::types::{Committed, Revision};

/// Watchers of one stream that may be dropped at once.
const AT_ONCE: usize = 1024;

/// Gauges for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) watchers: AtomicU64,
    pub(crate) lagging: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) pending: AtomicU64,
}

/// Where the writer leaves what it committed and watchers find it. A cheap handle to shared state.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) ring: RwLock<Ring>,
    pub(super) routing: Mutex<Routing>,
    /// The newest revision in the ring.
    revision: AtomicI64,
    /// The newest revision that is in all mailboxes it belongs to.
    pub(super) dispatched: watch::Sender<Revision>,
    pub(super) published: Notify,
    /// Watchers of streams that have ended, which the dispatcher drops little by little; `None` when it has stopped.
    ended: Mutex<Option<Vec<Vec<Subscription>>>>,
    gauges: Gauges,
}

/// The watchers of what comes next.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) index: Index<Arc<Mailbox>>,
    /// Up to here the watchers in the index were looked up.
    pub(super) matched: Revision,
    /// Position of the next event to look up watchers for.
    pub(super) cursor: u64,
}

impl Hub {
    /// The hub of a store whose newest revision is `revision`. [`Hub::run`] must be running for events to arrive.
    #[must_use]
    pub fn new(options: Options, revision: Revision) -> Self {
        let routing = Routing {
            index: Index::new(),
            matched: revision,
            cursor: 0,
        };
        let shared = Shared {
            options,
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

    /// Hands `revisions`, ascending, to the watchers: to be called once their view is published and before anyone is
    /// told that they are committed. Costs an append, whoever watches.
    ///
    /// Revisions that are not newer than [`Hub::revision`] are left out. When revisions are skipped, as when a member begins anew
    /// from a later state, every watcher fetches them from history.
    pub fn publish(&self, revisions: impl IntoIterator<Item = Arc<Committed>>) {
        let mut evicted = Vec::new();
        for committed in revisions {
            let revision = committed.revision;
            let entries = Entry::of(&committed).collect();
            let mut ring = self.shared.ring.write().unwrap_or_else(PoisonError::into_inner);
            let newest = ring.through();
            if revision <= newest {
                warn!(revision, newest, "a revision was published twice to the watchers");
                continue;
            }
            ring.push(revision, entries, &mut evicted);
            drop(ring);
            evicted.clear(); // frees memory, without the lock
            self.shared.revision.store(revision, Ordering::Release);
        }
        self.shared.published.notify_one();
    }

    /// Goes on behind `revision`: what lies between is committed, and every watcher fetches it from history.
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

    /// The newest revision that was published.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.revision.load(Ordering::Acquire)
    }

    /// The newest revision of which every watcher's inbox knows.
    #[must_use]
    pub fn dispatched(&self) -> watch::Receiver<Revision> {
        self.shared.dispatched.subscribe()
    }

    /// Watches `range` from revision `start` on, or from the next one when it is `None`. `inbox` will hear `name`
    /// when there is something to read; when the subscription [is behind](Subscription::is_behind) there is at once.
    ///
    /// Answers the revision of the store too: the start, where none was given, is the one after it.
    #[must_use]
    pub fn subscribe(
        &self,
        inbox: &Arc<Inbox>,
        name: i64,
        range: KeyRange,
        kinds: EventFilter,
        start: Option<Revision>,
    ) -> (Subscription, Revision) {
        let mut routing = locked(&self.shared.routing);
        let revision = self.revision();
        let next = start.unwrap_or(revision + 1);
        let live = next > routing.matched;
        let mailbox = Arc::new(if live {
            Mailbox::open(name, Arc::clone(inbox))
        } else {
            Mailbox::closed(name, Arc::clone(inbox))
        });
        let id = routing.index.insert(&range, Arc::clone(&mailbox));
        drop(routing);
        let registered = Registered {
            id,
            mailbox,
            next,
            live,
        };
        (Subscription::new(self.clone(), range, kinds, registered), revision)
    }

    /// The range that a watcher is to have: not longer than any key of the store can be.
    #[must_use]
    pub fn fit(&self, range: KeyRange) -> KeyRange {
        range.fit(self.shared.options.key_bytes)
    }

    /// Takes the watchers of a stream that has ended. Many are dropped little by little, so that nobody waits for it.
    pub fn end(&self, watchers: impl ExactSizeIterator<Item = Subscription>) {
        if watchers.len() <= AT_ONCE {
            return watchers.for_each(drop);
        }
        let mut watchers: Vec<Subscription> = watchers.collect();
        if let Some(ended) = &mut *locked(&self.shared.ended) {
            ended.push(std::mem::take(&mut watchers));
        }
        self.shared.published.notify_one();
        drop(watchers); // without the lock, where nobody took them
    }

    /// Some of the watchers that are to be dropped.
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

    /// The dispatcher stops: from now on watchers are dropped by whoever has them.
    pub(super) fn close(&self) {
        let rest = locked(&self.shared.ended).take();
        drop(rest); // without the lock
    }

    /// Watchers now (`etcd_debugging_mvcc_watcher_total`).
    #[must_use]
    pub fn watchers(&self) -> u64 {
        self.shared.gauges.watchers.load(Ordering::Relaxed)
    }

    /// Watchers now that read older events (`etcd_debugging_mvcc_slow_watcher_total`).
    #[must_use]
    pub fn lagging_watchers(&self) -> u64 {
        self.shared.gauges.lagging.load(Ordering::Relaxed)
    }

    /// Streams now (`etcd_debugging_mvcc_watch_stream_total`).
    #[must_use]
    pub fn streams(&self) -> u64 {
        self.shared.gauges.streams.load(Ordering::Relaxed)
    }

    /// Events sent since the start (`etcd_debugging_mvcc_events_total`).
    #[must_use]
    pub fn events(&self) -> u64 {
        self.shared.gauges.events.load(Ordering::Relaxed)
    }

    /// Events now in responses that are not sent yet (`etcd_debugging_mvcc_pending_events_total`).
    #[must_use]
    pub fn pending_events(&self) -> u64 {
        self.shared.gauges.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.shared.gauges
    }

    /// The bounds that the hub was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(super) fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.shared.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a mailbox, which gets every event after the revision answered.
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
