//! One stream: takes requests, serves its watchers in turn, and sends the responses.
//!
//! It reads nothing and takes no request before the client has taken the previous response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};
use tracing::debug;

use super::progress_request::ProgressRequest;
use super::response::{self, NO_WATCHER};
use super::watchers::{WatcherResponses, Watchers};
use super::{WatchContext, stopped};
use crate::auth::Credentials;
use ::watch::{Chunk, Inbox};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::watch_request::RequestUnion;
use etcd_types::pb::etcdserverpb::{WatchRequest, WatchResponse};
use etcd_types::types::Revision;
use net::require_leader::lost;
use runtime::budget::{Charge, Meter};

type HistoryRead = Pin<Box<dyn Future<Output = Result<Arc<Chunk>, Revision>> + Send>>;

/// One watch stream; see the module.
pub(super) struct WatchStream {
    shared: Arc<WatchContext>,
    requests: Streaming<WatchRequest>,
    /// True if the client sends no more requests; its watchers continue.
    half_closed: bool,
    /// Becomes ready when the server must end the stream.
    ending: BoxFuture<'static, Status>,
    ended: bool,
    inbox: Arc<Inbox>,
    dispatched: watch::Receiver<Revision>,
    watchers: Watchers,
    progress: ProgressRequest,
    ticker: Interval,
    /// The watchers whose progress notification is due.
    ticks: VecDeque<i64>,
    /// The only read of history in progress.
    loading: Option<((Revision, i64), HistoryRead)>,
    /// The responses of one request or turn. All but the first are charged to the client.
    outbound: VecDeque<(WatchResponse, Option<Charge>)>,
}

/// The events that a stream waits for.
enum StreamEvent {
    End(Status),
    Request(Option<Result<WatchRequest, Status>>),
    Tick,
    Loaded((Revision, i64), Result<Arc<Chunk>, Revision>),
    Dispatched(Revision),
    Mail,
    Turn,
}

impl WatchStream {
    /// Creates a session. `leader` is given if the client requires that the stream ends when there is no leader.
    pub(super) fn new(
        shared: Arc<WatchContext>,
        requests: Streaming<WatchRequest>,
        leader: Option<watch::Receiver<bool>>,
        client: (Meter, Credentials),
    ) -> Self {
        shared.hub.gauges().streams.fetch_add(1, Ordering::Relaxed);
        let inbox = Arc::new(Inbox::default());
        let interval = shared.options.progress_notify_interval;
        let interval = interval.mul_f64(rand::rng().random_range(1.0..1.1));
        let mut ticker = interval_at(Instant::now() + interval, interval);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            requests,
            half_closed: false,
            ending: ending(&shared, leader),
            ended: false,
            dispatched: shared.hub.dispatched(),
            watchers: Watchers::new(Arc::clone(&shared), Arc::clone(&inbox), client),
            progress: ProgressRequest::default(),
            ticker,
            ticks: VecDeque::new(),
            loading: None,
            outbound: VecDeque::new(),
            inbox,
            shared,
        }
    }

    /// Returns the next response; `None` ends the stream, and so does an error.
    pub(super) async fn next(&mut self) -> Option<Result<WatchResponse, Status>> {
        loop {
            if let Some((response, _)) = self.outbound.pop_front() {
                let gauges = self.shared.hub.gauges();
                gauges
                    .pending
                    .fetch_sub(response.events.len() as u64, Ordering::Relaxed);
                gauges.events.fetch_add(response.events.len() as u64, Ordering::Relaxed);
                return Some(Ok(response));
            }
            if self.ended || (self.half_closed && self.watchers.is_empty()) {
                return None;
            }
            self.watchers.collect();
            self.regulate();
            self.load();
            match self.wait().await {
                StreamEvent::End(status) | StreamEvent::Request(Some(Err(status))) => {
                    self.ended = true;
                    return Some(Err(status));
                }
                StreamEvent::Request(None) => self.half_closed = true,
                StreamEvent::Request(Some(Ok(request))) => self.handle(request),
                StreamEvent::Tick => self.ticks = self.watchers.notified(),
                StreamEvent::Loaded(wanted, loaded) => {
                    let turn = self.watchers.loaded(wanted, loaded);
                    self.conclude(turn);
                }
                StreamEvent::Dispatched(awaited) => {
                    let owing = self.watchers.owing(awaited);
                    let reached = self.progress.begin(owing);
                    self.tell(reached);
                }
                StreamEvent::Mail => {}
                StreamEvent::Turn => {
                    self.turn();
                    tokio::task::coop::consume_budget().await; // a long history without a match must not hog the thread
                }
            }
        }
    }

    async fn wait(&mut self) -> StreamEvent {
        let turn = self.watchers.has_turn() || (!self.ticks.is_empty() && self.progress.frozen().is_none());
        let awaited = self.progress.awaited();
        let loading = async {
            match &mut self.loading {
                Some((wanted, loading)) => (*wanted, loading.await),
                None => std::future::pending().await,
            }
        };
        let dispatched = async {
            match awaited {
                Some(awaited) => self
                    .dispatched
                    .wait_for(|reached| *reached >= awaited)
                    .await
                    .map(|_| awaited),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
        status = &mut self.ending => StreamEvent::End(status),
        request = self.requests.next(), if !self.half_closed => StreamEvent::Request(request),
        _ = self.ticker.tick() => StreamEvent::Tick,
        (wanted, loaded) = loading => {
        self.loading = None;
        StreamEvent::Loaded(wanted, loaded)
        }
        Ok(awaited) = dispatched => StreamEvent::Dispatched(awaited),
        () = self.inbox.filled(), if !turn => StreamEvent::Mail,
        () = std::future::ready(()), if turn => StreamEvent::Turn,
        }
    }

    fn handle(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                let response = self.watchers.create(create);
                if self.watchers.any_begins_after(self.shared.hub.revision()) {
                    self.progress.forget(); // asked again later, it will get its answer
                }
                self.outbound.push_back((response, None));
            }
            Some(RequestUnion::CancelRequest(cancel)) => {
                let canceled = self.watchers.cancel(cancel.watch_id);
                self.outbound.extend(canceled.map(|response| (response, None)));
                self.settle(cancel.watch_id);
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                let revision = self.shared.hub.revision();
                if !self.watchers.is_empty() && !self.watchers.any_begins_after(revision) {
                    self.progress.ask(self.published());
                }
            }
            None => debug!("ignored an empty watch request"),
        }
    }

    /// Serves one watcher, or one progress notification.
    fn turn(&mut self) {
        let frozen = self.progress.frozen();
        if frozen.is_none()
            && let Some(id) = self.ticks.pop_front()
        {
            let dispatched = *self.dispatched.borrow();
            let notification = self.watchers.tick(id, dispatched);
            self.outbound.extend(notification.map(|response| (response, None)));
        } else if let Some(turn) = self.watchers.turn(frozen.unwrap_or(Revision::MAX)) {
            self.conclude(turn);
        }
    }

    /// Freezes or thaws the stream, as the pending progress request requires. Held watchers are also queued again between two freezes,
    /// because the next answer must account for them.
    fn regulate(&mut self) {
        let was_thawed = self.progress.frozen().is_none();
        if !self.progress.is_idle() {
            self.progress.regulate(self.watchers.any_behind(), self.published());
        }
        if was_thawed || self.progress.frozen().is_none() {
            self.watchers.release();
        }
    }

    /// Returns the newest revision that a client may have read. The hub may not have it yet.
    fn published(&self) -> Revision {
        self.shared.hub.revision().max(self.shared.replay.history().published())
    }

    /// Queues the responses of a turn.
    fn conclude(&mut self, turn: WatcherResponses) {
        let id = turn.id;
        let charged = self.watchers.charged(turn);
        let events: usize = charged.iter().map(|(response, _)| response.events.len()).sum();
        self.shared
            .hub
            .gauges()
            .pending
            .fetch_add(events as u64, Ordering::Relaxed);
        self.outbound.extend(charged);
        self.settle(id);
    }

    /// Answers a progress request if `id` was the last watcher with pending events.
    fn settle(&mut self, id: i64) {
        if let Some(revision) = self.progress.owed_by(id)
            && !self.watchers.has_pending(id, revision)
        {
            let reached = self.progress.settle(id);
            self.tell(reached);
        }
    }

    fn tell(&mut self, reached: Option<Revision>) {
        // A stream without watchers has no progress to report.
        let reached = reached.filter(|_| !self.watchers.is_empty());
        let header = reached.map(|revision| self.shared.header(revision));
        self.outbound
            .extend(header.map(|header| (response::progress(header, NO_WATCHER), None)));
    }

    /// Starts the read of history with the highest priority, unless a read is in progress.
    fn load(&mut self) {
        if self.loading.is_none()
            && let Some(wanted) = self.watchers.wanted()
        {
            let shared = Arc::clone(&self.shared);
            let prev_kv = self.watchers.prev_kv(wanted.1);
            let loading = async move { shared.replay.load(wanted.0, prev_kv).await };
            self.loading = Some((wanted, Box::pin(loading)));
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        let unsent: usize = self.outbound.iter().map(|(response, _)| response.events.len()).sum();
        let gauges = self.shared.hub.gauges();
        gauges.pending.fetch_sub(unsent as u64, Ordering::Relaxed);
        gauges.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a future that becomes ready, with the reason, when the server must end a stream.
fn ending(shared: &WatchContext, leader: Option<watch::Receiver<bool>>) -> BoxFuture<'static, Status> {
    let stop = shared.options.stop.clone();
    async move {
        tokio::select! {
        () = stop.cancelled_owned() => stopped(),
        () = lost(leader) => Error::NoLeader.into(),
        }
    }
    .boxed()
}
