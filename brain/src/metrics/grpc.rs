//! RPCs started and completed, by method.
//!
//! Every method of the API has its counters from the start, as in etcd, so that counting costs a look-up and an addition. Calls of
//! methods that do not exist are not counted, because clients choose their names.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::{Histogram, IntCounter};
use tokio::time::Instant;
use tonic::Code;

use super::Register;

/// The codes in the order of their numbers, with their names in metrics.
const CODES: [&str; 17] = [
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
const SERVER: &str = "server_stream";
const BIDI: &str = "bidi_stream";

/// Every method of the API, by service.
#[rustfmt::skip]
const SERVICES: &[(&str, &[(&str, &str)])] = &[
    ("etcdserverpb.KV", &[
        ("Range", UNARY), ("RangeStream", SERVER), ("Put", UNARY), ("DeleteRange", UNARY), ("Txn", UNARY), ("Compact", UNARY),
    ]),
    ("etcdserverpb.Watch", &[("Watch", BIDI)]),
    ("etcdserverpb.Lease", &[
        ("LeaseGrant", UNARY), ("LeaseRevoke", UNARY), ("LeaseKeepAlive", BIDI), ("LeaseTimeToLive", UNARY), ("LeaseLeases", UNARY),
    ]),
    ("etcdserverpb.Cluster", &[
        ("MemberAdd", UNARY), ("MemberRemove", UNARY), ("MemberUpdate", UNARY), ("MemberList", UNARY), ("MemberPromote", UNARY),
    ]),
    ("etcdserverpb.Maintenance", &[
        ("Alarm", UNARY), ("Status", UNARY), ("Defragment", UNARY), ("Hash", UNARY), ("HashKV", UNARY), ("Snapshot", SERVER),
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
        ("Campaign", UNARY), ("Proclaim", UNARY), ("Leader", UNARY), ("Observe", SERVER), ("Resign", UNARY),
    ]),
    ("grpc.health.v1.Health", &[("Check", UNARY), ("List", UNARY), ("Watch", SERVER)]),
];

/// Returns true if the API has a service with this name.
#[must_use]
pub(crate) fn is_service(name: &str) -> bool {
    SERVICES.iter().any(|(service, _)| *service == name)
}

/// Returns true if the API has a method with this path that takes a single request instead of a stream.
#[must_use]
pub(crate) fn has_one_request(path: &str) -> bool {
    kind_of(path).is_some_and(|kind| kind != BIDI)
}

/// Returns true if the API has a method with this path that takes a single request and gives a single response.
#[must_use]
pub(crate) fn is_unary(path: &str) -> bool {
    kind_of(path) == Some(UNARY)
}

fn kind_of(path: &str) -> Option<&'static str> {
    let (service, method) = path.strip_prefix('/')?.rsplit_once('/')?;
    let of_service = SERVICES.iter().filter(|(name, _)| *name == service);
    let mut methods = of_service.flat_map(|(_, methods)| *methods);
    methods.find(|(name, _)| *name == method).map(|(_, kind)| *kind)
}

/// The counters of every method.
#[derive(Debug, Clone)]
pub struct GrpcMetrics {
    by_path: Arc<HashMap<String, Arc<Method>>>,
}

#[derive(Debug)]
struct Method {
    started: IntCounter,
    handled: [IntCounter; 17],
    seconds: Option<Histogram>,
}

impl GrpcMetrics {
    pub(super) fn register(r: &Register, extensive: bool) -> GrpcMetrics {
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
                "Durations of RPCs handled by the server.",
                &labels,
                0.0005,
                16,
            )
        });
        let mut by_path = HashMap::new();
        for (service, methods) in SERVICES {
            for (method, kind) in *methods {
                let counters = Method {
                    started: started.with_label_values(&[method, service, kind]),
                    handled: CODES.map(|code| handled.with_label_values(&[code, method, service, kind])),
                    seconds: seconds
                        .as_ref()
                        .map(|seconds| seconds.with_label_values(&[method, service, kind])),
                };
                by_path.insert(format!("/{service}/{method}"), Arc::new(counters));
            }
        }
        GrpcMetrics {
            by_path: Arc::new(by_path),
        }
    }

    /// Counts an RPC as started, if its method exists. `path` is the path of the request.
    #[must_use]
    pub fn start(&self, path: &str) -> Option<InFlight> {
        let method = Arc::clone(self.by_path.get(path)?);
        method.started.inc();
        Some(InFlight {
            method,
            code: Code::Cancelled,
            began: Instant::now(),
        })
    }
}

/// An RPC in flight. Dropped without an outcome, it counts as cancelled: its client has disconnected.
#[derive(Debug)]
pub struct InFlight {
    method: Arc<Method>,
    code: Code,
    began: Instant,
}

impl InFlight {
    /// Counts the RPC as completed with `code`.
    pub fn end(mut self, code: Code) {
        self.code = code;
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
