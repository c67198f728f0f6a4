//! RPCs started and completed, by method.
//!
//! Every method of the API has its counters from the start, as in etcd, so that counting costs a look-up and an addition. Calls of
//! methods that do not exist are not counted, because clients choose their names.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use prometheus::{Histogram, IntCounter, IntCounterVec};
use tokio::time::Instant;
use tonic::Code;

use super::Registrar;

/// The codes in the order of their numbers, with their names in metrics.
const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

const UNARY: &str = "unary";
const SERVER_STREAM: &str = "server_stream";
const BIDI_STREAM: &str = "bidi_stream";

/// Every method of the API, by service.
#[rustfmt::skip]
const SERVICES: &[(&str, &[(&str, &str)])] = &[
    ("etcdserverpb.KV", &[
        ("Range", UNARY), ("RangeStream", SERVER_STREAM), ("Put", UNARY), ("DeleteRange", UNARY), ("Txn", UNARY), ("Compact", UNARY),
    ]),
    ("etcdserverpb.Watch", &[("Watch", BIDI_STREAM)]),
    ("etcdserverpb.Lease", &[
        ("LeaseGrant", UNARY), ("LeaseRevoke", UNARY), ("LeaseKeepAlive", BIDI_STREAM), ("LeaseTimeToLive", UNARY), ("LeaseLeases", UNARY),
    ]),
    ("etcdserverpb.Cluster", &[
        ("MemberAdd", UNARY), ("MemberRemove", UNARY), ("MemberUpdate", UNARY), ("MemberList", UNARY), ("MemberPromote", UNARY),
    ]),
    ("etcdserverpb.Maintenance", &[
        ("Alarm", UNARY), ("Status", UNARY), ("Defragment", UNARY), ("Hash", UNARY), ("HashKV", UNARY), ("Snapshot", SERVER_STREAM),
        ("MoveLeader", UNARY), ("Downgrade", UNARY),
    ]),
    ("etcdserverpb.Auth", &[
        ("AuthEnable", UNARY), ("AuthDisable", UNARY), ("AuthStatus", UNARY), ("Authenticate", UNARY),
        ("UserAdd", UNARY), ("UserGet", UNARY), ("UserList", UNARY), ("UserDelete", UNARY), ("UserChangePassword", UNARY),
        ("UserGrantRole", UNARY), ("UserRevokeRole", UNARY), ("RoleAdd", UNARY), ("RoleGet", UNARY), ("RoleList", UNARY),
        ("RoleDelete", UNARY), ("RoleGrantPermission", UNARY), ("RoleRevokePermission", UNARY),
    ]),
    ("v3lockpb.Lock", &[("Lock", UNARY), ("Unlock", UNARY)]),
    ("v3electionpb.Election", &[
        ("Campaign", UNARY), ("Proclaim", UNARY), ("Leader", UNARY), ("Observe", SERVER_STREAM), ("Resign", UNARY),
    ]),
    ("grpc.health.v1.Health", &[("Check", UNARY), ("List", UNARY), ("Watch", SERVER_STREAM)]),
];

/// Returns true if the API has a service with this name.
#[must_use]
pub fn is_service(name: &str) -> bool {
    SERVICES.iter().any(|(service, _)| *service == name)
}

/// Returns true if the API has a method with this path that takes a single request instead of a stream.
#[must_use]
pub fn has_one_request(path: &str) -> bool {
    kind_of(path).is_some_and(|kind| kind != BIDI_STREAM)
}

/// Returns true if the API has a method with this path that takes a single request and gives a single response.
#[must_use]
pub fn is_unary(path: &str) -> bool {
    kind_of(path) == Some(UNARY)
}

fn kind_of(path: &str) -> Option<&'static str> {
    let (service, method) = path.strip_prefix('/')?.rsplit_once('/')?;
    let of_service = SERVICES.iter().filter(|(name, _)| *name == service);
    let mut methods = of_service.flat_map(|(_, methods)| *methods);
    methods.find(|(name, _)| *name == method).map(|(_, kind)| *kind)
}

/// The header in which clients of etcd name the version of their API.
const API_VERSION_HEADER: &str = "client-api-version";

/// The maximum number of versions with counters of their own, and the maximum length of a version: clients choose them.
const MAX_CLIENT_VERSIONS: usize = 64;
const MAX_CLIENT_VERSION_LEN: usize = 32;

/// The counters of every method.
#[derive(Debug, Clone)]
pub struct GrpcMetrics {
    by_path: Arc<HashMap<String, Arc<MethodMetrics>>>,
    clients: Arc<ClientVersionCounters>,
    /// True for requests of other members: clients and messages were counted where they came in.
    is_for_peers: bool,
}

/// Requests by the version of the client's API: of unary RPCs, and of streams.
#[derive(Debug)]
struct ClientVersionCounters {
    all: IntCounterVec,
    by_version: RwLock<HashMap<Box<str>, [IntCounter; 2]>>,
}

impl ClientVersionCounters {
    fn count(&self, headers: &HeaderMap, kind: &str) {
        let named = headers
            .get(API_VERSION_HEADER)
            .and_then(|version| version.to_str().ok());
        let version = named
            .filter(|version| version.len() <= MAX_CLIENT_VERSION_LEN)
            .unwrap_or("unknown");
        let at = usize::from(kind != UNARY);
        let read = self.by_version.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = read.get(version) {
            return counters[at].inc();
        }
        let is_full = read.len() >= MAX_CLIENT_VERSIONS;
        drop(read);
        let version = if is_full { "unknown" } else { version };
        let counters = ["unary", "stream"].map(|kind| self.all.with_label_values(&[kind, version]));
        counters[at].inc();
        let mut write = self.by_version.write().unwrap_or_else(PoisonError::into_inner);
        write.insert(version.into(), counters);
    }
}

#[derive(Debug)]
struct MethodMetrics {
    kind: &'static str,
    received: IntCounter,
    sent: IntCounter,
    started: IntCounter,
    handled: [IntCounter; 17],
    seconds: Option<Histogram>,
}

impl GrpcMetrics {
    pub(super) fn register(r: &Registrar, extensive: bool) -> GrpcMetrics {
        let labels = ["grpc_method", "grpc_service", "grpc_type"];
        let started = r.counters("grpc_server_started_total", "RPCs started on the server.", &labels);
        let labelled = ["grpc_code", "grpc_method", "grpc_service", "grpc_type"];
        let handled = r.counters(
            "grpc_server_handled_total",
            "RPCs completed on the server, whatever their outcome.",
            &labelled,
        );
        let seconds = extensive.then(|| {
            r.histograms(
                "grpc_server_handling_seconds",
                "Durations of RPCs handled by the server; only with --metrics extensive.",
                &labels,
                0.0005,
                16,
            )
        });
        let received = r.counters(
            "grpc_server_msg_received_total",
            "Messages of RPCs received on the server.",
            &labels,
        );
        let sent = r.counters(
            "grpc_server_msg_sent_total",
            "Messages of RPCs sent by the server.",
            &labels,
        );
        let clients = ClientVersionCounters {
            all: r.counters(
                "etcd_server_client_requests_total",
                "RPCs by the version of the client's API.",
                &["type", "client_api_version"],
            ),
            by_version: RwLock::default(),
        };
        let mut by_path = HashMap::new();
        for (service, methods) in SERVICES {
            for (method, kind) in *methods {
                let counters = MethodMetrics {
                    kind,
                    received: received.with_label_values(&[method, service, kind]),
                    sent: sent.with_label_values(&[method, service, kind]),
                    started: started.with_label_values(&[method, service, kind]),
                    handled: CODE_NAMES.map(|code| handled.with_label_values(&[code, method, service, kind])),
                    seconds: seconds
                        .as_ref()
                        .map(|seconds| seconds.with_label_values(&[method, service, kind])),
                };
                by_path.insert(format!("/{service}/{method}"), Arc::new(counters));
            }
        }
        GrpcMetrics {
            by_path: Arc::new(by_path),
            clients: Arc::new(clients),
            is_for_peers: false,
        }
    }

    /// Returns the same metrics for the requests of other members.
    #[must_use]
    pub fn for_peers(&self) -> Self {
        Self {
            is_for_peers: true,
            ..self.clone()
        }
    }

    /// Counts an RPC as started, if its method exists, by the path and the headers of its request.
    #[must_use]
    pub fn start(&self, path: &str, headers: &HeaderMap) -> Option<InFlight> {
        let method = Arc::clone(self.by_path.get(path)?);
        method.started.inc();
        if !self.is_for_peers {
            self.clients.count(headers, method.kind);
            if method.kind != BIDI_STREAM {
                method.received.inc();
            }
        }
        Some(InFlight {
            method,
            counts_messages: !self.is_for_peers,
            code: Code::Cancelled,
            began: Instant::now(),
        })
    }
}

/// An RPC in flight. Dropped without an outcome, it counts as cancelled: its client has disconnected.
#[derive(Debug)]
pub struct InFlight {
    method: Arc<MethodMetrics>,
    counts_messages: bool,
    code: Code,
    began: Instant,
}

impl InFlight {
    /// Returns the counter of messages received, if the client may send more than one.
    #[must_use]
    pub fn received(&self) -> Option<IntCounter> {
        (self.counts_messages && self.method.kind == BIDI_STREAM).then(|| self.method.received.clone())
    }

    /// Returns the counter of messages sent, if there may be more than one.
    #[must_use]
    pub fn sent(&self) -> Option<IntCounter> {
        (self.counts_messages && self.method.kind != UNARY).then(|| self.method.sent.clone())
    }

    /// Counts the RPC as completed with `code`.
    pub fn end(mut self, code: Code) {
        self.code = code;
        if self.counts_messages && self.method.kind == UNARY && code == Code::Ok {
            self.method.sent.inc();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(counter) = usize::try_from(i32::from(self.code))
            .ok()
            .and_then(|code| self.method.handled.get(code))
        {
            counter.inc();
        }
        if let Some(seconds) = &self.method.seconds {
            seconds.observe(self.began.elapsed().as_secs_f64());
        }
    }
}
