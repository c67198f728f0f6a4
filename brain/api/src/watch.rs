//! The service `etcdserverpb.Watch`: streams of watchers.
//!
//! A stream is driven only while its client reads: responses are pulled through HTTP/2's flow control, and a stream that is not
//! read keeps a single batch in memory. Its watchers lag and read history later.

mod progress_notify;
mod progress_request;
mod request;
mod response;
mod session;
mod watchers;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::Stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

use self::session::WatchStream;
use super::auth::{Credentials, Guard};
use super::kv::meter;
use ::watch::{DynHistory, Hub, Replay};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::watch_server::{Watch, WatchServer};
use etcd_types::pb::etcdserverpb::{ResponseHeader, WatchRequest, WatchResponse};
use etcd_types::types::Revision;
use net::require_leader::is_required;

/// A fragment may be longer than a request by this much (etcd's overhead for its own fields).
const FRAGMENT_OVERHEAD_BYTES: usize = 512 << 10;
/// Shorter intervals are raised to this one, as etcd does.
const MIN_PROGRESS_NOTIFY_INTERVAL: Duration = Duration::from_millis(100);

/// Options of the service.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// `--max-request-bytes`; responses that may be fragmented are split if they exceed it by more than 512 KiB.
    pub max_request_bytes: usize,
    /// `--watch-progress-notify-interval`; each stream adds up to a tenth of it.
    pub progress_notify_interval: Duration,
    /// Sent in every header.
    pub cluster_id: u64,
    /// Sent in every header.
    pub member_id: u64,
    /// Sent in every header, with its value at that time.
    pub raft_term: Arc<AtomicU64>,
    /// True if the member reaches a leader. While it is false, streams of clients that require one end and are refused.
    pub has_leader: watch::Receiver<bool>,
    /// Ends all streams.
    pub stop: CancellationToken,
    /// The users, and how clients are identified; `None`: nothing is checked.
    pub guard: Option<Guard>,
}

/// The service; `history` is the store's.
pub struct WatchService {
    shared: Arc<WatchContext>,
}

/// State shared by all streams.
struct WatchContext {
    hub: Hub,
    replay: Arc<Replay>,
    options: WatchOptions,
}

impl WatchContext {
    fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.options.cluster_id,
            member_id: self.options.member_id,
            revision,
            raft_term: self.options.raft_term.load(Ordering::Relaxed),
        }
    }

    fn max_fragment_bytes(&self) -> usize {
        self.options.max_request_bytes.saturating_add(FRAGMENT_OVERHEAD_BYTES)
    }
}

impl WatchService {
    /// Creates a service over the events that `hub` publishes and those that `history` keeps.
    #[must_use]
    pub fn new(hub: Hub, history: DynHistory, mut options: WatchOptions) -> Self {
        if options.progress_notify_interval < MIN_PROGRESS_NOTIFY_INTERVAL {
            warn!(raised_to = ?MIN_PROGRESS_NOTIFY_INTERVAL, "the watch progress notify interval is too short");
            options.progress_notify_interval = MIN_PROGRESS_NOTIFY_INTERVAL;
        }
        let shared = WatchContext {
            replay: Arc::new(Replay::new(history, *hub.options())),
            hub,
            options,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns its reader of history, for others that watch.
    #[must_use]
    pub fn replay(&self) -> Arc<Replay> {
        Arc::clone(&self.shared.replay)
    }

    /// Returns the service as tonic's router takes it, with etcd's limit for requests.
    #[must_use]
    pub fn into_server(self) -> WatchServer<Self> {
        let longest = self.shared.max_fragment_bytes();
        WatchServer::new(self).max_decoding_message_size(longest)
    }
}

impl fmt::Debug for WatchService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchService")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let leader = is_required(request.metadata().as_ref()).then(|| self.shared.options.has_leader.clone());
        if leader.as_ref().is_some_and(|leader| !*leader.borrow()) {
            return Err(Error::NoLeader.into());
        }
        let (meter, credentials) = (meter(&request), Credentials::of(&request));
        if let Some(guard) = &self.shared.options.guard {
            // Each watcher is checked by itself: this only waits for the record of the token, if this member is behind.
            drop(guard.identify_soon(&credentials).await);
        }
        let requests = request.into_inner();
        let session = Box::new(WatchStream::new(
            Arc::clone(&self.shared),
            requests,
            leader,
            (meter, credentials),
        ));
        let responses = futures::stream::unfold(session, async |mut session| {
            let item = session.next().await?;
            Some((item, session))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}

fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

#[cfg(test)]
mod tests;
