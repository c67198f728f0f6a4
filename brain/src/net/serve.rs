//! The network side of the server: gRPC and HTTP on the same ports, in plain text or TLS.
//!
//! Invariant: what clients can make us hold is bounded. A connection is accepted only when there is room for it, or when
//! one that does nothing can be closed for it; whoever does not finish its handshake, or sends no request, is dropped. What
//! requests, answers and streams take of memory is charged to a budget. A slow client delays nobody else.

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

use crate::budget::Budget;
use crate::flags::url::Url;
use crate::flags::{Config, TlsOptions};
use crate::metrics::Metrics;
use crate::net::http;
use crate::net::http::member::{Certificates, Described};
use crate::net::http::{Cors, Health};
use crate::net::listen::Listener;
use crate::net::tls::{RELOAD_INTERVAL, ServerTls};
use crate::tasks::Tasks;
pub use admission::{Admission, Admitted, Io, PeerId};
use connection::{Http1, PortConfig, Refused};
use connections::Connections;
use route::{Answers, PortRoutes, Refusals};

mod admission;
mod connection;
mod connections;
mod counted;
mod decoded;
mod framing;
mod http2;
mod inbound;
mod linger;
mod route;
mod rpc;

/// How long a handshake, or the first bytes of a client, may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Files kept for the store and for ourselves.
const RESERVED_FILES: u64 = 1024;

/// Connections of probes and scrapers; they have room of their own, so that clients cannot shut them out.
const PROBES: usize = 256;

/// The purpose of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
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
enum Protocols {
    /// HTTP/1.1 and HTTP/2.
    Both,
    /// HTTP/1.1 alone: one request at a time on a connection.
    Http1,
}

/// Listeners that are bound and not served yet.
pub struct Server {
    listeners: Vec<(Listener, Purpose)>,
    tls: Option<Arc<ServerTls>>,
    /// The TLS of the ports for peers, to tell of it.
    peer_tls: Weak<ServerTls>,
    /// The check that a connection has to pass before anything else.
    admission: Option<Arc<dyn Admission>>,
    config: Config,
}

/// Ports that are served. What they answer can be replaced, on connections that are open, too.
#[derive(Clone)]
pub struct Open {
    answers: Arc<ArcSwap<Answers>>,
    certificates: Certificates,
    /// A store answers.
    is_open: watch::Sender<bool>,
}

/// The services behind the ports.
pub struct Services {
    /// The gRPC services.
    pub routes: Routes,
    /// Answers health checks.
    pub health: Arc<dyn Health>,
    /// Describes this member.
    pub member: Described,
    /// The metrics, shown on `/metrics`.
    pub metrics: Arc<Metrics>,
    /// True if there is a leader, for clients that want to be told; `None` where nobody is.
    pub has_leader: Option<watch::Receiver<bool>>,
    /// A store answers. Until it does, clients of gRPC that wait for SETTINGS before their first request get none: they would take
    /// this member for one that serves, and grpc-go would send it its share of the requests.
    pub is_open: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services")
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open(..)")
    }
}

impl Open {
    /// Answers requests that come from now on by other services.
    pub fn replace(&self, services: Services) {
        let is_open = services.is_open;
        self.answers
            .store(Arc::new(services.answers(self.certificates.clone())));
        self.is_open.send_replace(is_open);
    }
}

impl Services {
    fn answers(self, certificates: Certificates) -> Answers {
        Answers {
            grpc: self.routes.prepare().into_axum_router(),
            http: http::routes(self.health, (self.member, certificates), self.metrics),
            has_leader: self.has_leader,
        }
    }
}

impl Server {
    /// Loads certificates and binds every URL for clients. Whoever dials waits until [`Server::start`].
    /// Call it inside a runtime.
    ///
    /// # Errors
    /// A certificate does not load, or an address cannot be had.
    pub fn bind(config: &Config) -> anyhow::Result<Server> {
        let client = match config.listen_client_http_urls.is_empty() {
            true => Purpose::Both,
            false => Purpose::Grpc,
        };
        let urls: Vec<(&Url, Purpose)> = [
            (&config.listen_client_urls, client),
            (&config.listen_client_http_urls, Purpose::Http),
            (&config.listen_metrics_urls, Purpose::Metrics),
        ]
        .into_iter()
        .flat_map(|(urls, purpose)| urls.iter().map(move |url| (url, purpose)))
        .collect();
        Self::bind_urls(urls, &config.client_tls, config)
    }

    fn bind_urls(urls: Vec<(&Url, Purpose)>, tls: &TlsOptions, config: &Config) -> anyhow::Result<Server> {
        let tls = match urls.iter().any(|(url, _)| url.scheme().is_tls()) {
            true => Some(Arc::new(ServerTls::load(tls, &config.tls_policy)?)),
            false => None,
        };
        for suite in tls.iter().flat_map(|tls| tls.skipped_suites()) {
            warn!(suite, "a weak cipher suite is not offered");
        }
        let listeners = urls
            .into_iter()
            .map(|(url, purpose)| Ok((Listener::bind(url, config.socket)?, purpose)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Server {
            listeners,
            tls,
            peer_tls: Weak::new(),
            admission: None,
            config: config.clone(),
        })
    }

    /// Serves only those whom this lets in.
    #[must_use]
    pub fn admitting(self, admission: Arc<dyn Admission>) -> Server {
        Server {
            admission: Some(admission),
            ..self
        }
    }

    /// Tells of the certificates of these ports, too.
    #[must_use]
    pub fn telling_of(self, peers: &Server) -> Server {
        Server {
            peer_tls: peers.tls.as_ref().map(Arc::downgrade).unwrap_or_default(),
            ..self
        }
    }

    /// Loads certificates and binds every URL for peers.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_peers(config: &Config) -> anyhow::Result<Server> {
        let urls = config
            .listen_peer_urls
            .iter()
            .map(|url| (url, Purpose::Peers))
            .collect();
        Self::bind_urls(urls, &config.peer_tls, config)
    }

    /// Binds where plain HTTP tells who leads, if it is to.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_leader(config: &Config) -> anyhow::Result<Server> {
        let urls = config.leader_http.iter().map(|url| (url, Purpose::Metrics)).collect();
        Self::bind_urls(urls, &config.client_tls, config)
    }

    /// The URLs that are listened on, with the ports that were taken.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bound(&self) -> anyhow::Result<Vec<String>> {
        self.listeners
            .iter()
            .map(|(listener, _)| listener.bound().context("ask for an address"))
            .collect()
    }

    /// Serves until `leave`. Then no connection is accepted any more, clients are told to go, and requests under way
    /// have `grace` to end; what is left is cut off. Only then is `stop` cancelled, on which the store may end: so
    /// what clients still ask is still answered. `leave` is a child of `stop`.
    pub fn start(
        self,
        services: Services,
        leave: &CancellationToken,
        stop: &CancellationToken,
        grace: Duration,
        tasks: &mut Tasks,
    ) -> Open {
        let metrics = services.metrics.clone();
        let certificates = Certificates {
            client: self.tls.as_ref().map(Arc::downgrade).unwrap_or_default(),
            peer: self.peer_tls.clone(),
        };
        let (is_open, opened) = watch::channel(services.is_open);
        let answers = Arc::new(ArcSwap::from_pointee(services.answers(certificates.clone())));
        let routes = PortRoutes {
            grpc: true,
            cors: Some(Cors::new(self.config.browsers.clone())),
            opened,
            ..self.port_routes(answers.clone(), &metrics)
        };
        self.serve(routes, &metrics, (leave, stop, grace), tasks);
        Open {
            answers,
            certificates,
            is_open,
        }
    }

    /// As [`Server::start`], without gRPC, and without waiting for anybody in the end.
    pub fn start_http(self, http: Router, metrics: &Metrics, stop: &CancellationToken, tasks: &mut Tasks) {
        let answers = Answers {
            grpc: Router::new(),
            http,
            has_leader: None,
        };
        let routes = self.port_routes(Arc::new(ArcSwap::from_pointee(answers)), metrics);
        self.serve(routes, metrics, (stop, stop, Duration::ZERO), tasks);
    }

    /// Plain HTTP.
    fn port_routes(&self, answers: Arc<ArcSwap<Answers>>, metrics: &Metrics) -> PortRoutes {
        let limits = &self.config.limits;
        // Members check what they forward before they do.
        let message = match self.is_for_peers() {
            true => limits.max_inflight_bytes / 2,
            false => limits.max_receive_bytes,
        };
        PortRoutes {
            answers,
            opened: watch::channel(true).1,
            grpc: false,
            http: true,
            cors: None,
            metrics: metrics.grpc.clone(),
            limits: rpc::Limits {
                message,
                txn_ops: limits.max_txn_ops,
            },
            refusals: Refusals::new(metrics.network.clone()),
        }
    }

    fn is_for_peers(&self) -> bool {
        self.listeners.iter().any(|(_, purpose)| *purpose == Purpose::Peers)
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
        let (network, limits) = (&metrics.network, self.config.limits);
        let held = match self.is_for_peers() {
            true => &network.held_for_peers,
            false => &network.held,
        };
        let budget = Budget::new(limits.max_inflight_bytes, held.clone());
        let clients = Connections::new(client_room(), budget.clone(), network.clone());
        let probes = Connections::new(PROBES, budget, network.clone());
        let refused = Refused::default();
        let http2 = http2::Options::new(limits.max_concurrent_streams, self.config.keepalive);
        let http1 = http1();
        for (listener, purpose) in self.listeners {
            let mut routes = routes.clone();
            routes.grpc &= matches!(purpose, Purpose::Both | Purpose::Grpc | Purpose::Peers);
            if !routes.grpc {
                // Probes are answered from the beginning.
                routes.opened = watch::channel(true).1;
            }
            routes.http &= matches!(purpose, Purpose::Both | Purpose::Http | Purpose::Metrics);
            routes.cors.take_if(|_| purpose == Purpose::Metrics);
            let is_probes = purpose == Purpose::Metrics;
            let tls = self.tls.as_ref().filter(|_| listener.url().scheme().is_tls());
            let port = PortConfig {
                tls: tls.cloned(),
                admission: self.admission.clone(),
                routes,
                protocols: match purpose {
                    Purpose::Metrics => Protocols::Http1,
                    Purpose::Both | Purpose::Grpc | Purpose::Peers | Purpose::Http => Protocols::Both,
                },
                http1: http1.clone(),
                http2: http2.clone(),
                connections: if is_probes { probes.clone() } else { clients.clone() },
                network: network.clone(),
                refused: (purpose == Purpose::Peers).then(|| refused.clone()),
            };
            ports.spawn(port.run(listener, leave.clone(), grace));
        }
        tasks.spawn("listeners", drain(ports, stop.clone()));
    }
}

/// Waits for all ports to be done, and lets the rest of the process end.
async fn drain(mut ports: JoinSet<()>, stop: CancellationToken) -> anyhow::Result<()> {
    while let Some(ended) = ports.join_next().await {
        ended.context("a listener panicked")?;
    }
    stop.cancel();
    Ok(())
}

/// Raises the limit of open files as far as it goes, and answers how many connections of clients fit into it.
fn client_room() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "the limit of open files cannot be raised");
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = files.saturating_sub(RESERVED_FILES).max(files / 2);
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// How HTTP/1.1 is spoken.
fn http1() -> Http1 {
    use hyper_util::rt::{TokioExecutor, TokioTimer};
    let mut builder = Http1::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Some(3 * HANDSHAKE_TIMEOUT))
        .max_buf_size(64 * 1024);
    builder
}

#[cfg(test)]
mod tests;
