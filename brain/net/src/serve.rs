//! The network side of the server: gRPC and HTTP on the same ports, in plain text or TLS.
//!
//! Invariant: the resources that clients can occupy are bounded. A connection is accepted only if there is room for it, or if an
//! idle one can be closed for it; a client that does not finish its handshake, or sends no request, is disconnected. The memory of
//! requests, responses and streams is charged to a budget. A slow client does not delay others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::Router;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tracing::warn;

use crate::http;
use crate::http::member::{MemberDescription, PortCertificates};
use crate::http::{Cors, HealthChecks};
use crate::listen::Listener;
use connection::{Http1Builder, PortConfig, RefusalLog};
use connections::Connections;
use etcd_types::url::Url;
pub use keepalive::Keepalive;
pub use options::{PortLimits, PortOptions};
pub use peer_admission::{Admission, AdmissionFuture, PeerId};
use route::{PortRouters, PortRoutes, RefusalCounters};
use runtime::budget::Budget;
use runtime::open_files;
use runtime::tasks::Tasks;
use telemetry::metrics::Metrics;
use telemetry::otel::Tracing;
use telemetry::slow_requests::RpcLog;
use tls::{self, RELOAD_INTERVAL, ServerTls, TlsOptions};
pub use unary::UnaryRpcs;

mod byte_stream;
mod connection;
mod connections;
mod decoded_size;
mod frames;
pub(crate) mod framing;
mod gzip;
mod head;
mod headers;
mod http2;
mod huffman;
mod keepalive;
mod lingering_close;
mod options;
mod path;
mod peer_admission;
mod request_body;
mod route;
mod rpc;
mod rpc_timer;
mod socket;
mod unary;

/// The timeout of a handshake, and of the first bytes of a client.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Open files reserved for the store and the process.
const RESERVED_FILES: u64 = 1024;

/// The limit of connections of probes and scrapers, separate from the others, so that clients cannot lock them out.
const MAX_PROBE_CONNECTIONS: usize = 256;

/// The memory of their requests and answers, in bytes.
const MAX_PROBE_BYTES: usize = 16 << 20;

/// The time that the head of a request over HTTP/1.1 has, from the end of the answer before on; as in etcd.
const HTTP1_HEAD_TIMEOUT: Duration = Duration::from_secs(300);

/// The purpose of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortPurpose {
    /// gRPC and HTTP.
    Both,
    /// gRPC alone.
    Grpc,
    /// gRPC alone, to other members.
    Peers,
    /// HTTP alone.
    Http,
    /// HTTP alone, for probes and scrapers: no browsers.
    Metrics,
}

/// The protocols of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortProtocols {
    /// HTTP/1.1 and HTTP/2.
    Both,
    /// HTTP/1.1 alone: one request at a time on a connection.
    Http1,
}

/// The bound listeners of a server that is not started yet.
pub struct Server {
    listeners: Vec<(Listener, PortPurpose)>,
    tls: Option<Arc<ServerTls>>,
    /// The TLS of the peer ports, for `/member`.
    peer_tls: Weak<ServerTls>,
    /// The check that a connection must pass before anything else.
    admission: Option<Arc<dyn Admission>>,
    options: PortOptions,
    /// The time in seconds since 1970, by which certificates of clients expire.
    clock: fn() -> i64,
}

/// The ports of a started server. Their services can be replaced, also for open connections.
#[derive(Clone)]
pub struct OpenPorts {
    answers: Arc<ArcSwap<PortRouters>>,
    certificates: PortCertificates,
    /// True if a store serves requests.
    is_open: watch::Sender<bool>,
}

/// The services of the ports.
pub struct PortServices {
    /// The gRPC services.
    pub routes: Routes,
    /// RPCs of these that are answered without tonic's streams.
    pub unary: UnaryRpcs,
    /// Answers health checks.
    pub health: Arc<dyn HealthChecks>,
    /// Describes this member.
    pub member: MemberDescription,
    /// The metrics, served on `/metrics`.
    pub metrics: Arc<Metrics>,
    /// True if there is a leader, for clients that require one; `None` if clients are not refused for lack of one.
    pub has_leader: Option<watch::Receiver<bool>>,
    /// The log of slow RPCs, if they are logged.
    pub slow: Option<RpcLog>,
    /// The tracer of RPCs.
    pub tracing: Tracing,
    /// True if a store serves requests. Until then, gRPC clients that wait for SETTINGS before their first request get none: they
    /// would consider this member ready, and grpc-go would send it its share of the requests.
    pub is_open: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PortServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortServices")
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for OpenPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenPorts(..)")
    }
}

impl OpenPorts {
    /// Replaces the services that answer requests from now on.
    pub fn replace(&self, services: PortServices) {
        let is_open = services.is_open;
        self.answers
            .store(Arc::new(services.answers(self.certificates.clone())));
        self.is_open.send_replace(is_open);
    }
}

impl PortServices {
    fn answers(self, certificates: PortCertificates) -> PortRouters {
        PortRouters {
            grpc: self.routes.prepare().into_axum_router(),
            unary: self.unary,
            http: http::routes(self.health, self.member, certificates, self.metrics),
            has_leader: self.has_leader,
            slow: self.slow,
            tracing: self.tracing,
        }
    }
}

impl Server {
    /// Loads certificates and binds every URL. Connections wait until [`Server::start`]. Must be called inside a runtime. Fails if a
    /// certificate does not load, or if an address cannot be bound.
    pub fn bind(urls: &[(Url, PortPurpose)], tls: &TlsOptions, options: PortOptions) -> anyhow::Result<Server> {
        let tls = match urls.iter().any(|(url, _)| url.scheme().is_tls()) {
            true => Some(Arc::new(ServerTls::load(tls, &options.tls_policy)?)),
            false => None,
        };
        for suite in tls.iter().flat_map(|tls| tls.skipped_suites()) {
            warn!(suite, "not offering a weak cipher suite");
        }
        let listeners = urls
            .iter()
            .map(|(url, purpose)| Ok((Listener::bind(url, options.socket)?, *purpose)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Server {
            listeners,
            tls,
            peer_tls: Weak::new(),
            admission: None,
            options,
            clock: tls::now,
        })
    }

    /// Serves only connections that `admission` admits.
    #[must_use]
    pub fn admitting(self, admission: Arc<dyn Admission>) -> Server {
        Server {
            admission: Some(admission),
            ..self
        }
    }

    /// Adds the certificates of the peer ports to the description of this member.
    #[must_use]
    pub fn telling_of(self, peers: &Server) -> Server {
        Server {
            peer_tls: peers.tls.as_ref().map(Arc::downgrade).unwrap_or_default(),
            ..self
        }
    }

    /// Returns the listen URLs, with the bound ports.
    pub fn bound(&self) -> anyhow::Result<Vec<String>> {
        self.listeners
            .iter()
            .map(|(listener, _)| listener.bound().context("ask for an address"))
            .collect()
    }

    /// Serves until `leave`. Then no more connections are accepted, clients get GOAWAY, and requests in flight have `grace` to end;
    /// the rest is aborted. Only then is `stop` cancelled, on which the store may end: so requests that clients still send are
    /// answered. `leave` is a child of `stop`.
    pub fn start(
        self,
        services: PortServices,
        leave: &CancellationToken,
        stop: &CancellationToken,
        grace: Duration,
        tasks: &mut Tasks,
    ) -> OpenPorts {
        let metrics = services.metrics.clone();
        let certificates = PortCertificates {
            client: self.tls.as_ref().map(Arc::downgrade).unwrap_or_default(),
            peer: self.peer_tls.clone(),
        };
        let (is_open, opened) = watch::channel(services.is_open);
        let answers = Arc::new(ArcSwap::from_pointee(services.answers(certificates.clone())));
        let routes = PortRoutes {
            grpc: true,
            gateway: self.options.grpc_gateway,
            cors: Some(Cors::new(self.options.browsers.clone())),
            opened,
            ..self.port_routes(answers.clone(), &metrics)
        };
        self.serve(routes, &metrics, (leave, stop, grace), tasks);
        OpenPorts {
            answers,
            certificates,
            is_open,
        }
    }

    /// Like [`Server::start`], but without gRPC, and without a grace period at the end.
    pub fn start_http(self, http: Router, metrics: &Metrics, stop: &CancellationToken, tasks: &mut Tasks) {
        let answers = PortRouters {
            grpc: Router::new(),
            unary: UnaryRpcs::default(),
            http,
            has_leader: None,
            slow: None,
            tracing: Tracing::default(),
        };
        let routes = self.port_routes(Arc::new(ArcSwap::from_pointee(answers)), metrics);
        self.serve(routes, metrics, (stop, stop, Duration::ZERO), tasks);
    }

    /// Returns routes for plain HTTP.
    fn port_routes(&self, answers: Arc<ArcSwap<PortRouters>>, metrics: &Metrics) -> PortRoutes {
        let limits = &self.options.limits;
        // Members check requests before they forward them.
        let message = match self.is_for_peers() {
            true => limits.max_inflight_bytes / 2,
            false => limits.max_receive_bytes,
        };
        PortRoutes {
            answers,
            opened: watch::channel(true).1,
            grpc: false,
            http: true,
            gateway: false,
            cors: None,
            metrics: match self.is_for_peers() {
                true => metrics.grpc.for_peers(),
                false => metrics.grpc.clone(),
            },
            limits: rpc::RpcLimits {
                message,
                txn_ops: limits.max_txn_ops,
            },
            refusals: RefusalCounters::new(&metrics.network),
        }
    }

    fn is_for_peers(&self) -> bool {
        self.listeners.iter().any(|(_, purpose)| *purpose == PortPurpose::Peers)
    }

    fn serve(
        self,
        routes: PortRoutes,
        metrics: &Metrics,
        (leave, stop, grace): (&CancellationToken, &CancellationToken, Duration),
        tasks: &mut Tasks,
    ) {
        if let Some(tls) = &self.tls {
            let follow = Arc::clone(tls).follow(RELOAD_INTERVAL, metrics.tls.clone(), stop.clone());
            tasks.spawn("certificates", follow);
        }
        let mut ports = JoinSet::new();
        let (network, limits) = (&metrics.network, self.options.limits);
        let held = match self.is_for_peers() {
            true => &network.held_for_peers,
            false => &network.held,
        };
        let budget = Budget::new(limits.max_inflight_bytes, held.clone());
        let clients = Connections::new(client_room(), budget, network.clone());
        let probes = Budget::new(MAX_PROBE_BYTES, network.held_for_probes.clone());
        let probes = Connections::new(MAX_PROBE_CONNECTIONS, probes, network.clone());
        let refused = RefusalLog::default();
        let http2 = http2::Http2Options::new(limits.max_concurrent_streams, self.options.keepalive);
        let http1 = http1();
        for (listener, purpose) in self.listeners {
            let mut routes = routes.clone();
            routes.grpc &= matches!(purpose, PortPurpose::Both | PortPurpose::Grpc | PortPurpose::Peers);
            if !routes.grpc {
                // Probes are answered from the beginning.
                routes.opened = watch::channel(true).1;
            }
            routes.http &= matches!(purpose, PortPurpose::Both | PortPurpose::Http | PortPurpose::Metrics);
            routes.gateway &= matches!(purpose, PortPurpose::Both | PortPurpose::Http);
            routes.cors.take_if(|_| purpose == PortPurpose::Metrics);
            let is_probes = purpose == PortPurpose::Metrics;
            let tls = self.tls.as_ref().filter(|_| listener.url().scheme().is_tls());
            let port = PortConfig {
                tls: tls.cloned(),
                admission: self.admission.clone(),
                routes,
                protocols: match purpose {
                    PortPurpose::Metrics => PortProtocols::Http1,
                    PortPurpose::Both | PortPurpose::Grpc | PortPurpose::Peers | PortPurpose::Http => {
                        PortProtocols::Both
                    }
                },
                http1: http1.clone(),
                http2: http2.clone(),
                ping_min_time: (purpose != PortPurpose::Peers).then_some(self.options.keepalive.min_time),
                connections: if is_probes { probes.clone() } else { clients.clone() },
                network: network.clone(),
                refused: refused.clone(),
                for_peers: purpose == PortPurpose::Peers,
                clock: self.clock,
            };
            ports.spawn(port.run(listener, leave.clone(), grace));
        }
        tasks.spawn("listeners", drain(ports, stop.clone()));
    }
}

/// Waits until all ports are closed, then cancels `stop`, so that the rest of the process ends.
async fn drain(mut ports: JoinSet<()>, stop: CancellationToken) -> anyhow::Result<()> {
    while let Some(ended) = ports.join_next().await {
        ended.context("a listener panicked")?;
    }
    stop.cancel();
    Ok(())
}

/// Returns the number of client connections that fit into the limit of open files.
fn client_room() -> usize {
    let files = open_files::limit();
    let room = files.saturating_sub(RESERVED_FILES).max(files / 2);
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// The longest head of HTTP/1.1, with Go's allowance beyond the longest header list.
const MAX_HTTP1_HEAD_BYTES: usize = headers::MAX_HEADER_LIST_BYTES as usize + 4096;

/// The most header fields of HTTP/1.1. hyper reserves room for all of them at each request.
const MAX_HTTP1_FIELDS: usize = 1024;

/// Returns the options of HTTP/1.1.
fn http1() -> Http1Builder {
    use hyper_util::rt::{TokioExecutor, TokioTimer};
    let mut builder = Http1Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Some(HTTP1_HEAD_TIMEOUT))
        .max_headers(MAX_HTTP1_FIELDS)
        .max_buf_size(MAX_HTTP1_HEAD_BYTES);
    builder
}

#[cfg(test)]
mod tests;
