//! The whole service over gRPC on a loopback socket, with a model as the store.

mod contract;
mod crowd;
mod random;
mod streams;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Status, Streaming};

use super::{WatchOptions, WatchService};
use ::watch::Hub;
use ::watch::model::ModelHistory;
use etcd_types::pb::etcdserverpb::watch_client::WatchClient;
use etcd_types::pb::etcdserverpb::watch_request::RequestUnion;
use etcd_types::pb::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use etcd_types::pb::mvccpb;
use etcd_types::types::{Committed, Event, EventKind, KeyValue, LeaseId, Revision};
use mvcc::row::size_of;
use runtime::budget::Meter;

const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const CLUSTER: u64 = 7;
const MEMBER: u64 = 8;
const TERM: u64 = 9;

/// A member that only serves watches, and its writer.
struct Member {
    hub: Hub,
    history: ModelHistory,
    keys: std::collections::BTreeMap<Bytes, KeyValue>,
    channel: Channel,
    leader: watch::Sender<bool>,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

/// A change of a key: to a value, or its deletion.
type Change<'a> = (&'a str, Option<&'a [u8]>);

impl Member {
    async fn start(bounds: ::watch::WatchLimits) -> Self {
        Self::start_with(bounds, Duration::from_secs(600), 1536 << 10).await
    }

    async fn start_with(
        bounds: ::watch::WatchLimits,
        progress_notify_interval: Duration,
        max_request_bytes: usize,
    ) -> Self {
        Self::start_metered(bounds, progress_notify_interval, max_request_bytes, Meter::unlimited()).await
    }

    /// Starts a member that charges all clients to one connection.
    async fn start_metered(
        bounds: ::watch::WatchLimits,
        progress_notify_interval: Duration,
        max_request_bytes: usize,
        meter: Meter,
    ) -> Self {
        let hub = Hub::new(bounds, 1);
        let history = ModelHistory::new();
        let (leader, has_leader) = watch::channel(true);
        let (stop, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let options = WatchOptions {
            max_request_bytes,
            progress_notify_interval,
            cluster_id: CLUSTER,
            member_id: MEMBER,
            raft_term: Arc::new(AtomicU64::new(TERM)),
            has_leader,
            stop: stop.clone(),
            guard: None,
        };
        let service = WatchService::new(hub.clone(), Arc::new(history.clone()), options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let metered = InterceptorLayer::new(move |mut request: Request<()>| {
                request.extensions_mut().insert(meter.clone());
                Ok(request)
            });
            let server = Server::builder().layer(metered).add_service(service.into_server());
            server
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        let dispatcher = hub.clone().run(shutdown);
        tasks.spawn(async move { dispatcher.await.unwrap() });
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self {
            hub,
            history,
            keys: std::collections::BTreeMap::new(),
            channel: endpoint.connect().await.unwrap(),
            leader,
            stop,
            tasks,
        }
    }

    async fn bounded() -> Self {
        Self::start(::watch::WatchLimits::default()).await
    }

    /// Commits a revision to history and publishes it to the watchers.
    fn commit(&mut self, changes: &[Change<'_>]) -> Revision {
        let committed = self.remember(changes);
        self.hub.publish([Arc::clone(&committed)]);
        committed.revision
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Revision {
        self.commit(&[(key, Some(value))])
    }

    /// Deletes a key whose value is too large to be read.
    fn delete_unread(&mut self, key: &str) {
        use ::watch::History;
        let revision = self.history.published() + 1;
        let event = Event {
            prev_kv: None,
            is_prev_unread: true,
            ..self.apply(revision, key, None)
        };
        let events = vec![event];
        let committed = Arc::new(Committed { revision, events });
        self.history.append(&committed);
        self.hub.publish([committed]);
    }

    /// Commits a revision to history without publishing it to the watchers.
    fn remember(&mut self, changes: &[Change<'_>]) -> Arc<Committed> {
        use ::watch::History;
        let revision = self.history.published() + 1;
        let events = changes
            .iter()
            .map(|(key, value)| self.apply(revision, key, *value))
            .collect();
        let committed = Arc::new(Committed { revision, events });
        self.history.append(&committed);
        committed
    }

    fn apply(&mut self, revision: Revision, key: &str, value: Option<&[u8]>) -> Event {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let prev_kv = self.keys.remove(&key);
        let Some(value) = value else {
            let kv = KeyValue {
                key,
                mod_revision: revision,
                ..KeyValue::default()
            };
            return Event {
                kind: EventKind::Delete,
                kv,
                prev_kv,
                is_prev_unread: false,
            };
        };
        let kv = KeyValue {
            key: key.clone(),
            value: Bytes::copy_from_slice(value),
            size: size_of(value),
            create_revision: prev_kv.as_ref().map_or(revision, |prev| prev.create_revision),
            mod_revision: revision,
            version: prev_kv.as_ref().map_or(1, |prev| prev.version + 1),
            lease: LeaseId(-5),
        };
        self.keys.insert(key, kv.clone());
        Event {
            kind: EventKind::Put,
            kv,
            prev_kv,
            is_prev_unread: false,
        }
    }

    async fn stream(&self) -> Stream {
        self.try_stream(false).await.unwrap()
    }

    async fn try_stream(&self, require_leader: bool) -> Result<Stream, Status> {
        let (requests, outgoing) = mpsc::channel(64);
        let mut request = Request::new(ReceiverStream::new(outgoing));
        if require_leader {
            request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        }
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let responses = client.watch(request).await?.into_inner();
        Ok(Stream {
            requests: Some(requests),
            responses,
        })
    }
}

/// The client's side of a stream.
struct Stream {
    requests: Option<mpsc::Sender<WatchRequest>>,
    responses: Streaming<WatchResponse>,
}

impl Stream {
    async fn send(&self, union: RequestUnion) {
        let request = WatchRequest {
            request_union: Some(union),
        };
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    /// Creates a watcher and returns the response.
    async fn create(&mut self, create: WatchCreateRequest) -> WatchResponse {
        self.send(RequestUnion::CreateRequest(create)).await;
        let created = self.response().await;
        assert!(created.created, "{created:?}");
        created
    }

    async fn cancel(&self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }))
            .await;
    }

    async fn ask_progress(&self) {
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    }

    async fn next(&mut self) -> Result<Option<WatchResponse>, Status> {
        tokio::time::timeout(EVENT_TIMEOUT, self.responses.message())
            .await
            .expect("a response in time")
    }

    async fn response(&mut self) -> WatchResponse {
        let response = self.next().await.unwrap().expect("a response");
        let header = response.header.as_ref().expect("a header");
        assert_eq!(
            (header.cluster_id, header.member_id, header.raft_term),
            (CLUSTER, MEMBER, TERM)
        );
        response
    }

    /// Asserts that no response is in flight: a new watcher's response must come first.
    async fn assert_quiet(&mut self) {
        let id = self.create(one("a key of no one")).await.watch_id;
        self.cancel(id).await;
        let canceled = self.response().await;
        assert!(canceled.canceled && canceled.watch_id == id, "{canceled:?}");
    }
}

fn one(key: &'static str) -> WatchCreateRequest {
    WatchCreateRequest {
        key: Bytes::from_static(key.as_bytes()),
        ..WatchCreateRequest::default()
    }
}

fn span(key: &'static str, range_end: &'static str) -> WatchCreateRequest {
    WatchCreateRequest {
        range_end: Bytes::from_static(range_end.as_bytes()),
        ..one(key)
    }
}

fn fragmented(create: WatchCreateRequest) -> WatchCreateRequest {
    WatchCreateRequest {
        fragment: true,
        ..create
    }
}

fn from(start_revision: Revision, create: WatchCreateRequest) -> WatchCreateRequest {
    WatchCreateRequest {
        start_revision,
        ..create
    }
}

fn revision(response: &WatchResponse) -> Revision {
    response.header.as_ref().unwrap().revision
}

fn is_progress(response: &WatchResponse) -> bool {
    response.events.is_empty() && !response.created && !response.canceled && response.compact_revision == 0
}

fn events(response: &WatchResponse) -> Vec<mvccpb::Event> {
    response
        .events
        .iter()
        .map(|event| mvccpb::Event::decode(event.clone()).unwrap())
        .collect()
}

/// Events as `key@revision`, with a minus before deletions.
fn brief(response: &WatchResponse) -> String {
    let brief = |event: &mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        let sign = if event.r#type == 1 { "-" } else { "" };
        format!("{sign}{}@{}", String::from_utf8_lossy(&kv.key), kv.mod_revision)
    };
    events(response).iter().map(brief).collect::<Vec<_>>().join(" ")
}
