//! The watchers of one stream, and the order in which they are served.
//!
//! Invariant: a watcher with events to send is in `queue`, `waiting` or `held`, or in the inbox.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::iter;
use std::sync::Arc;

use bytes::Bytes;

use super::progress_notify::ProgressNotify;
use super::request::{CancelReason, CreateRequest, ResponseFormat};
use super::{WatchContext, response};
use crate::auth::Credentials;
use ::watch::{Chunk, EventBatch, Inbox, PrevKv, Subscription, SubscriptionStep, WatchStart};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::{WatchCreateRequest, WatchResponse};
use etcd_types::types::Revision;
use mvcc::op::Span;
use runtime::budget::{Charge, Meter};

/// The number of watchers ended by the server whose ids stay taken until the client cancels them, as etcd's do. If there are more,
/// the oldest ids are forgotten.
const MAX_ENDED_IDS: usize = 1024;

pub(super) struct Watcher {
    pub(super) subscription: Subscription,
    form: ResponseFormat,
    pub(super) notify: ProgressNotify,
    pub(super) start: Option<Revision>,
    /// The compacted revision when the watcher was created: events up to it are sent without their previous versions.
    floor: Revision,
    queued: bool,
}

impl Watcher {
    /// Returns true if its next events were not compacted when it began, and are in the ring: a later compaction does not end it.
    fn needs_no_history(&self) -> bool {
        self.subscription.next() >= self.floor && self.subscription.is_in_ring()
    }
}

/// Responses for one watcher.
#[derive(Debug)]
pub(super) struct WatcherResponses {
    pub(super) id: i64,
    /// To be sent without other responses in between.
    pub(super) responses: Vec<WatchResponse>,
}

/// The watchers of one stream; see the module.
pub(super) struct Watchers {
    pub(super) shared: Arc<WatchContext>,
    inbox: Arc<Inbox>,
    /// Charges the connection for its watchers.
    meter: Meter,
    /// The credentials of the client.
    credentials: Credentials,
    pub(super) by_id: BTreeMap<i64, Watcher>,
    ended: BTreeSet<i64>,
    next_id: i64,
    queue: VecDeque<i64>,
    /// The watchers that need history, by the revision they need.
    waiting: BTreeSet<(Revision, i64)>,
    /// History for watchers in the queue, as long as there are any, if it is too large for the cache.
    chunk: Option<(Arc<Chunk>, Option<Charge>)>,
    /// The watchers whose pending events may not be sent yet.
    held: Vec<i64>,
    /// The watchers that are behind.
    behind: HashSet<i64>,
    /// The revisions at which watchers begin.
    starts: BTreeSet<(Revision, i64)>,
}

impl Watchers {
    pub(super) fn new(
        shared: Arc<WatchContext>,
        inbox: Arc<Inbox>,
        (meter, credentials): (Meter, Credentials),
    ) -> Self {
        Self {
            shared,
            inbox,
            meter,
            credentials,
            by_id: BTreeMap::new(),
            ended: BTreeSet::new(),
            next_id: 0,
            queue: VecDeque::new(),
            waiting: BTreeSet::new(),
            chunk: None,
            held: Vec::new(),
            behind: HashSet::new(),
            starts: BTreeSet::new(),
        }
    }

    /// Returns the responses of a turn, with charges for all but the first. A revision is sent completely, however long it is; the watcher
    /// ends if there is no memory for it.
    pub(super) fn charged(&mut self, turn: WatcherResponses) -> Vec<(WatchResponse, Option<Charge>)> {
        let bytes = |response: &WatchResponse| -> usize {
            let events = response.events.iter().map(|event| event.len() + size_of::<Bytes>());
            events.sum()
        };
        // The first one is sent next, and charged in that form.
        let held: Result<Vec<_>, _> = turn
            .responses
            .iter()
            .skip(1)
            .map(|later| self.meter.hold(bytes(later)))
            .collect();
        let (responses, held) = match (held, turn.responses.last()) {
            (Err(_), Some(last)) => {
                let revision = last.header.as_ref().map_or(0, |header| header.revision);
                let end = response::too_many_requests(self.shared.header(0), turn.id, revision);
                (self.end(turn.id, end).responses, Vec::new())
            }
            (held, _) => (turn.responses, held.unwrap_or_default()),
        };
        let charges = iter::once(None).chain(held).chain(iter::repeat_with(|| None));
        responses.into_iter().zip(charges).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns true if a watcher begins after `revision`.
    pub(super) fn any_begins_after(&self, revision: Revision) -> bool {
        self.starts.last().is_some_and(|(start, _)| *start > revision)
    }

    /// Creates a watcher, or returns the reason why not.
    pub(super) fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        match self.try_create(request) {
            Ok((id, revision)) => response::created(self.shared.header(revision), id),
            Err(why) => response::refused(self.shared.header(self.shared.hub.revision()), &why),
        }
    }

    fn try_create(&mut self, request: WatchCreateRequest) -> Result<(i64, Revision), CancelReason> {
        self.permit(&request)?;
        let create = CreateRequest::try_from(request)?;
        let hub = self.shared.hub.clone();
        let range = hub.fit(create.range);
        let held = self.meter.hold(range.watcher_bytes());
        let held = held.map_err(|_| CancelReason::TooMany(Error::TooManyRequests))?;
        let id = self.choose_id(create.id)?;
        let from = WatchStart {
            start: create.start,
            shown: self.shared.replay.history().published(),
        };
        let (mut subscription, revision) = hub.subscribe(&self.inbox, id, range, create.kinds, from);
        subscription.hold(held);
        let floor = self.shared.replay.history().compacted();
        if create.form.prev_kv == PrevKv::Included {
            subscription.want_prev_kv(floor);
        }
        let behind = subscription.is_behind();
        self.starts.extend(create.start.map(|start| (start, id)));
        let watcher = Watcher {
            subscription,
            form: create.form,
            notify: if create.progress_notify {
                ProgressNotify::Due
            } else {
                ProgressNotify::Never
            },
            start: create.start,
            floor,
            queued: false,
        };
        self.by_id.insert(id, watcher);
        if behind {
            self.behind.insert(id);
            self.enqueue(id);
        }
        Ok((id, revision))
    }

    /// Checks that the client may read the range that it wants to watch. As in etcd, a watcher continues when the permission is revoked.
    fn permit(&self, request: &WatchCreateRequest) -> Result<(), CancelReason> {
        let Some(guard) = self.shared.options.guard.as_ref().filter(|guard| guard.is_enabled()) else {
            return Ok(());
        };
        if request.start_revision < 0 {
            return Ok(()); // refused for that, as in etcd
        }
        let first = Bytes::from_static(&[0]);
        let span = Span {
            key: if request.key.is_empty() {
                first
            } else {
                request.key.clone()
            },
            end: request.range_end.clone(),
        };
        let permitted = guard.check_read(&self.credentials, &span);
        permitted.map_err(CancelReason::NotPermitted)
    }

    fn choose_id(&mut self, asked: Option<i64>) -> Result<i64, CancelReason> {
        let taken = |id: &i64| self.by_id.contains_key(id) || self.ended.contains(id);
        match asked {
            Some(id) if taken(&id) => Err(CancelReason::DuplicateId),
            Some(id) => Ok(id),
            None => {
                let id = (self.next_id..)
                    .find(|id| !taken(id))
                    .ok_or(CancelReason::DuplicateId)?;
                self.next_id = id.saturating_add(1);
                Ok(id)
            }
        }
    }

    /// Cancels a watcher at the client's request; returns no response if there is none.
    pub(super) fn cancel(&mut self, id: i64) -> Option<WatchResponse> {
        if !self.remove(id) && !self.ended.remove(&id) {
            return None;
        }
        let header = self.shared.header(self.shared.hub.revision());
        Some(response::canceled(header, id))
    }

    fn remove(&mut self, id: i64) -> bool {
        let Some(watcher) = self.by_id.remove(&id) else {
            return false;
        };
        self.behind.remove(&id);
        self.waiting.remove(&(watcher.subscription.next(), id));
        if let Some(start) = watcher.start {
            self.starts.remove(&(start, id));
        }
        true
    }

    /// Queues every watcher in the inbox.
    pub(super) fn collect(&mut self) {
        let inbox = Arc::clone(&self.inbox);
        inbox.drain(|id| self.enqueue(id));
    }

    pub(super) fn has_turn(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn any_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Queues every held watcher.
    pub(super) fn release(&mut self) {
        for id in std::mem::take(&mut self.held) {
            self.enqueue(id);
        }
    }

    /// Serves the first watcher in the queue, and puts it back at the end if it may have more events. A watcher that has caught up is sent
    /// nothing after revision `through`.
    pub(super) fn turn(&mut self, through: Revision) -> Option<WatcherResponses> {
        let id = self.queue.pop_front()?;
        let Some(watcher) = self.by_id.get_mut(&id) else {
            return Some(WatcherResponses::nothing(id));
        };
        watcher.queued = false;
        let subscription = &mut watcher.subscription;
        // It may have been queued again while it waits for history.
        self.waiting.remove(&(subscription.next(), id));
        if subscription.is_behind() || watcher.form.prev_kv == PrevKv::Included {
            let compacted = self.shared.replay.history().compacted();
            subscription.compacted(compacted);
            if subscription.is_behind() && subscription.next() < compacted && !watcher.needs_no_history() {
                return Some(self.end_compacted(id, compacted));
            }
        }
        let subscription = &mut watcher.subscription;
        let step = match subscription.step(through) {
            SubscriptionStep::Missing(next) => match self.shared.replay.cached(next, watcher.form.prev_kv) {
                Some(chunk) => subscription.replay(&chunk),
                None => SubscriptionStep::Missing(next),
            },
            step => step,
        };
        if self.queue.is_empty() {
            self.chunk = None;
        }
        Some(self.conclude(id, step))
    }

    /// Returns the revision of history that must be loaded next, and its watcher.
    pub(super) fn wanted(&self) -> Option<(Revision, i64)> {
        self.waiting.first().copied()
    }

    /// Returns whether a watcher that waits for history requested `prev_kv`.
    pub(super) fn prev_kv(&self, id: i64) -> PrevKv {
        let watcher = self.by_id.get(&id);
        watcher.map_or(PrevKv::Omitted, |watcher| watcher.form.prev_kv)
    }

    /// Applies the history that was [wanted](Watchers::wanted), or the revision at which it is compacted.
    pub(super) fn loaded(&mut self, wanted: (Revision, i64), loaded: Result<Arc<Chunk>, Revision>) -> WatcherResponses {
        let id = wanted.1;
        let is_current = self.waiting.remove(&wanted);
        let others = match &loaded {
            Ok(chunk) => self
                .waiting
                .range((chunk.from(), i64::MIN)..=(chunk.through(), i64::MAX)),
            Err(compacted) => self.waiting.range(..(*compacted, i64::MIN)),
        };
        let others: Vec<_> = others.copied().collect();
        self.chunk = match &loaded {
            Ok(chunk) if !others.is_empty() && self.shared.replay.is_large(chunk) => {
                let held = self.meter.hold(chunk.weight()).ok();
                held.map(|held| (Arc::clone(chunk), held))
            }
            _ => None,
        };
        for other in others {
            self.waiting.remove(&other);
            self.enqueue(other.1);
        }
        let Some(watcher) = self.by_id.get_mut(&id).filter(|_| is_current) else {
            return WatcherResponses::nothing(id);
        };
        match loaded {
            // A new watcher with the same id was created during the read.
            Ok(chunk) if !chunk.has(watcher.form.prev_kv) => {
                self.enqueue(id);
                WatcherResponses::nothing(id)
            }
            Ok(chunk) => {
                let step = watcher.subscription.replay(&chunk);
                self.conclude(id, step)
            }
            // A compaction since was faster than the read, for which the ring may not have been enough.
            Err(_) if watcher.needs_no_history() => {
                self.enqueue(id);
                WatcherResponses::nothing(id)
            }
            Err(compacted) => self.end_compacted(id, compacted),
        }
    }

    fn conclude(&mut self, id: i64, step: SubscriptionStep) -> WatcherResponses {
        if self
            .by_id
            .get(&id)
            .is_some_and(|watcher| watcher.subscription.is_behind())
        {
            self.behind.insert(id);
        } else {
            self.behind.remove(&id);
        }
        match step {
            SubscriptionStep::Synced => WatcherResponses::nothing(id),
            SubscriptionStep::Held => {
                self.held.push(id);
                WatcherResponses::nothing(id)
            }
            SubscriptionStep::Missing(next) => {
                self.waiting.insert((next, id));
                WatcherResponses::nothing(id)
            }
            SubscriptionStep::Nothing => {
                self.enqueue(id);
                WatcherResponses::nothing(id)
            }
            SubscriptionStep::TooLarge(revision) => {
                self.end(id, response::too_large(self.shared.header(0), id, revision))
            }
            SubscriptionStep::Batch(batch) => {
                self.enqueue(id);
                let responses = self.respond(id, &batch);
                WatcherResponses { id, responses }
            }
        }
    }

    fn respond(&mut self, id: i64, batch: &EventBatch) -> Vec<WatchResponse> {
        let Some(watcher) = self.by_id.get_mut(&id) else {
            return Vec::new();
        };
        if watcher.notify == ProgressNotify::Due {
            watcher.notify = ProgressNotify::Elided;
        }
        let header = self.shared.header(batch.revision);
        let limit = self.shared.max_fragment_bytes();
        response::events(header, id, &batch.entries, watcher.form, watcher.floor, limit)
    }

    /// Ends a watcher that needs compacted events.
    fn end_compacted(&mut self, id: i64, compacted: Revision) -> WatcherResponses {
        self.end(id, response::compacted(self.shared.header(0), id, compacted))
    }

    /// Ends a watcher with its last response.
    fn end(&mut self, id: i64, response: WatchResponse) -> WatcherResponses {
        self.remove(id);
        self.ended.insert(id);
        if self.ended.len() > MAX_ENDED_IDS {
            self.ended.pop_first();
        }
        WatcherResponses {
            id,
            responses: vec![response],
        }
    }

    /// Returns the watchers that have events to send at or before `revision`, which must be dispatched.
    pub(super) fn owing(&mut self, revision: Revision) -> HashSet<i64> {
        self.collect();
        let waiting = self.waiting.iter().map(|(_, id)| *id);
        self.queue
            .iter()
            .copied()
            .chain(waiting)
            .filter(|id| self.has_pending(*id, revision))
            .collect()
    }

    pub(super) fn has_pending(&self, id: i64, revision: Revision) -> bool {
        self.by_id
            .get(&id)
            .is_some_and(|watcher| watcher.subscription.has_pending(revision))
    }

    fn enqueue(&mut self, id: i64) {
        if let Some(watcher) = self.by_id.get_mut(&id)
            && !std::mem::replace(&mut watcher.queued, true)
        {
            self.queue.push_back(id);
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        let watchers = std::mem::take(&mut self.by_id);
        self.shared
            .hub
            .end(watchers.into_values().map(|watcher| watcher.subscription));
    }
}

impl WatcherResponses {
    fn nothing(id: i64) -> Self {
        Self {
            id,
            responses: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
