//! One port: accepts connections, performs handshakes, and serves each connection in its own task.

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, Sleep, sleep, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tracing::{debug, error, info, warn};

use super::byte_stream::CountedStream;
use super::connections::{AdmittedConnection, CloseReason, ConnectionState, Connections, FIRST_REQUEST_TIMEOUT};
use super::http2::{self, GRACEFUL_CLOSE_TIMEOUT, over};
use super::lingering_close::{LINGER_TIMEOUT, ReturnedStream};
use super::peer_admission::{Admission, PeerId};
use super::route::{Caller, PerConnection, PortRoutes, UpgradedProtocol};
use super::{HANDSHAKE_TIMEOUT, PortProtocols};
use crate::listen::{AcceptedSocket, Listener};
use runtime::log_once::{DueLine, LogOnce};
use telemetry::metrics::NetworkMetrics;
use tls::{HandshakeFindings, Io, ServerTls, observed, refusal};

pub(super) type Http1Builder = hyper_util::server::conn::auto::Builder<TokioExecutor>;

/// The interval at which expired connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The timeout of the first message of a TLS handshake.
const CLIENT_HELLO_TIMEOUT: Duration = Duration::from_secs(3);

/// The time for which connections are still accepted when the server stops: the kernel resets those that wait in the queue of a listener
/// that is closed.
const LAST_ACCEPTS_TIME: Duration = Duration::from_millis(10);

/// When the server stops, connections that are being opened have this time until their clients can be asked to go elsewhere.
const LAST_OPENINGS_TIMEOUT: Duration = Duration::from_secs(1);

/// The time in which WebSockets may end by themselves when the server stops.
const WEB_SOCKET_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Converts tonic's connection info to the caller.
type DescribeCaller<T> = fn(<T as Connected>::ConnectInfo) -> Caller;

/// The configuration that a connection gets from its port.
pub(super) struct PortConfig {
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The check that a connection must pass before anything else.
    pub(super) admission: Option<Arc<dyn Admission>>,
    pub(super) routes: PortRoutes,
    pub(super) protocols: PortProtocols,
    pub(super) http1: Http1Builder,
    pub(super) http2: http2::Http2Options,
    /// The least time between pings of a client; `None`: any.
    pub(super) ping_min_time: Option<Duration>,
    pub(super) connections: Connections,
    pub(super) network: NetworkMetrics,
    /// Limits log lines about refused peers and clients.
    pub(super) refused: RefusalLog,
    /// True if members connect to this port, false if clients do.
    pub(super) for_peers: bool,
    /// The time in seconds since 1970, by which certificates of clients expire.
    pub(super) clock: fn() -> i64,
}

/// The address of a peer or a client, and the reason why it was refused.
type AddressAndReason = (String, String);

/// Limits log lines about refused peers and clients: one for each address in a minute, and for each reason of a refusal.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusalLog {
    /// Refused by TLS.
    handshakes: LogOnce<AddressAndReason>,
    /// Refused because they did not prove to be members.
    proofs: LogOnce<AddressAndReason>,
    /// Disconnected before the proof was complete, as members do that look for another leader in the meantime. By address: whether a
    /// connection ends or is reset depends on what was on its way.
    left: LogOnce<String>,
}

impl RefusalLog {
    /// Logs why a connection was not admitted.
    fn tell(&self, from: &str, why: &io::Error) {
        let reason = printable(&why.to_string());
        let refused = matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::TimedOut);
        if !refused {
            if let Some(DueLine { count, skipped }) = self.left.due_for(from.to_owned()) {
                let why = reason;
                info!(
                    from,
                    count, skipped, why, "a peer disconnected before it was authenticated"
                );
            }
        } else if let Some(DueLine { count, skipped }) = self.proofs.due_for((from.to_owned(), reason.clone())) {
            let why = reason;
            warn!(
                from,
                count, skipped, why, "rejected peer connection: not a member of this cluster"
            );
        }
    }
}

/// Returns a reason as it can be logged: certificates of strangers hold long names, and any characters.
fn printable(reason: &str) -> String {
    const LONGEST: usize = 512;
    let printable = |char: char| if char.is_control() { '?' } else { char };
    reason.chars().take(LONGEST).map(printable).collect()
}

impl PortConfig {
    /// Serves until `stop`, and then for at most `grace`.
    pub(super) async fn run(self, listener: Listener, stop: CancellationToken, grace: Duration) {
        let port = Arc::new(self);
        let mut open = JoinSet::new();
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        {
            let mut next = pin!(port.next(&listener));
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    Some(ended) = open.join_next() => report(ended),
                    _ = sweep.tick() => port.connections.sweep((port.clock)()),
                    (accepted, admitted) = next.as_mut() => {
                        open.spawn(Arc::clone(&port).connection(accepted, admitted, stop.clone()));
                        next.set(port.next(&listener));
                    }
                }
            }
            let end = Instant::now() + LAST_ACCEPTS_TIME;
            while let Ok((accepted, admitted)) = timeout_at(end, next.as_mut()).await {
                open.spawn(Arc::clone(&port).connection(accepted, admitted, stop.clone()));
                next.set(port.next(&listener));
            }
        }
        drop(listener);
        let drained = async {
            while let Some(ended) = open.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(grace, drained).await.is_err() {
            debug!(
                connections = open.len(),
                "closed connections that outlived the grace period"
            );
            open.shutdown().await;
        }
    }

    /// Waits for a connection, and for its admission. Retries after transient errors.
    async fn next(&self, listener: &Listener) -> (AcceptedSocket, AdmittedConnection) {
        const PAUSE: Duration = Duration::from_millis(100);
        let mut told = false;
        loop {
            match listener.accept().await {
                Ok(accepted) => match self.connections.admit(accepted.ip()).await {
                    Some(admitted) => return (accepted, admitted),
                    None => debug!("refused connections: the address has reached its limit"),
                },
                // The client disconnected before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!(%error, url = %listener.url(), "cannot accept connections");
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        accepted: AcceptedSocket,
        admitted: AdmittedConnection,
        stop: CancellationToken,
    ) {
        self.network.connections.inc();
        let _open = OpenConnection(&self.network);
        let connection = &admitted.connection;
        let left = ReturnedStream::default();
        let opening = async {
            let from = accepted.ip();
            let shaken = match accepted {
                AcceptedSocket::Tcp(stream) => {
                    // Boxed, so that its memory is freed as soon as the connection is served.
                    Box::pin(self.shake(stream, from, (Caller::Tcp, Caller::TcpTls), connection)).await
                }
                AcceptedSocket::Unix(stream) => {
                    Box::pin(self.shake(stream, None, (Caller::Unix, Caller::UnixTls), connection)).await
                }
            };
            let (mut io, caller) = shaken?;
            let peer = self.admit(&mut io, &caller, &stop).await.ok()?;
            let network = match peer {
                Some(PeerId(member)) => self.network.of_peer(member),
                None => self.network.clone(),
            };
            let mut io = CountedStream::new(io, Arc::clone(connection), network, left.clone());
            let is_http2 = io.read_preface().await.ok()?;
            Some((io, (caller, peer), is_http2))
        };
        let opened = tokio::select! {
            // Boxed, as what waits at the end is: a connection is to take little memory while it is served.
            () = Box::pin(after(&stop, LAST_OPENINGS_TIMEOUT)) => return,
            _ = connection.closed() => {
                debug!("a client sent no request in time");
                return;
            }
            opened = opening => opened,
        };
        let Some((mut io, (caller, peer), is_http2)) = opened else {
            return;
        };
        if is_http2 && self.protocols == PortProtocols::Http1 {
            debug!("rejected a client: HTTP/2 is not served on this port");
            return;
        }
        if is_http2 {
            connection.expect_request(FIRST_REQUEST_TIMEOUT);
            let mut opened = self.routes.opened.clone();
            let is_open = async { drop(opened.wait_for(|is_open| *is_open).await) };
            let is_graceful = tokio::select! {
                biased;
                () = stop.cancelled() => Some(true),
                reason = connection.closed() => Some(reason.is_graceful()),
                asked = io.read_settings(&self.http2.settings, is_open) => match asked {
                    Ok(()) => None,
                    Err(error) => return debug!(%error, "a client left before its first request"),
                },
            };
            if let Some(is_graceful) = is_graceful {
                io.go_away(&self.http2.settings);
                if is_graceful {
                    Box::pin(linger(left, connection, Some(&stop))).await;
                }
                return;
            }
        }
        let service = PerConnection {
            routes: self.routes.clone(),
            caller,
            peer,
            connection: Arc::clone(connection),
            upgraded: UpgradedProtocol::default(),
        };
        let is_graceful = if is_http2 {
            Box::pin(http2::serve(io, service, &self, stop.clone())).await
        } else {
            io.watch_heads();
            Box::pin(self.serve_http1(io, service, &stop)).await
        };
        if is_graceful || stop.is_cancelled() {
            // Clients of HTTP/1 leave idle connections as they are until they need them next, and take another one then.
            Box::pin(linger(left, &admitted.connection, Some(&stop).filter(|_| is_http2))).await;
        }
    }

    /// Returns the stream to serve and the caller at its other end; none if it is not to be served.
    async fn shake<T>(
        &self,
        stream: T,
        from: Option<IpAddr>,
        (plain, secure): (DescribeCaller<T>, DescribeCaller<tokio_rustls::server::TlsStream<T>>),
        connection: &Arc<ConnectionState>,
    ) -> Option<(Box<dyn Io>, Caller)>
    where
        T: Connected + Io,
    {
        let Some(tls) = &self.tls else {
            let caller = plain(stream.connect_info());
            return Some((Box::new(stream), caller));
        };
        let handshake = async {
            // A client that has not sent its first message occupies no handshake slot.
            let hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
            let hello = tokio::time::timeout(CLIENT_HELLO_TIMEOUT, hello)
                .await
                .map_err(io::Error::from)??;
            let _turn = self.connections.handshake(connection).await;
            let mut config = tls.config();
            if self.protocols == PortProtocols::Http1 {
                Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
            }
            hello.into_stream(config).await
        };
        let (shaken, found) = observed(tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)).await;
        match shaken {
            Ok(Ok(stream)) => {
                if let Some(ends) = found.ends {
                    connection.ends_at(ends);
                }
                let caller = secure(stream.connect_info());
                Some((Box::new(stream), caller))
            }
            Ok(Err(error)) => {
                self.network.handshakes_failed.inc();
                self.tell(&error, found, from);
                None
            }
            Err(_) => {
                self.network.handshakes_failed.inc();
                debug!("a TLS handshake took too long");
                None
            }
        }
    }

    /// Returns the member at the other end, on ports where members must prove their identity.
    async fn admit(
        &self,
        io: &mut Box<dyn Io>,
        caller: &Caller,
        stop: &CancellationToken,
    ) -> io::Result<Option<PeerId>> {
        let Some(admission) = &self.admission else {
            return Ok(None);
        };
        let admitted = tokio::select! {
            () = stop.cancelled() => return Err(io::ErrorKind::Interrupted.into()),
            admitted = tokio::time::timeout(HANDSHAKE_TIMEOUT, admission.admit(io)) => admitted,
        };
        let why = match admitted {
            Ok(Ok(peer)) => return Ok(Some(peer)),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "it sends too slowly"),
        };
        self.network.handshakes_failed.inc();
        let from = caller
            .address()
            .map_or_else(|| "this machine".to_owned(), |ip| ip.to_string());
        self.refused.tell(&from, &why);
        Err(why)
    }

    fn tell(&self, error: &io::Error, found: HandshakeFindings, from: Option<IpAddr>) {
        let from = from.map_or_else(|| "this machine".to_owned(), |ip| ip.to_string());
        let Some(reason) = refusal(error) else {
            debug!(from, %error, "a TLS handshake failed");
            return;
        };
        let reason = printable(&found.refusal.unwrap_or_else(|| reason.to_string()));
        let Some(DueLine { count, skipped }) = self.refused.handshakes.due_for((from.clone(), reason.clone())) else {
            return debug!(from, reason, "a TLS handshake failed");
        };
        match self.for_peers {
            true => warn!(from, count, skipped, reason, "rejected a peer"),
            // the text of etcd
            false => warn!(from, count, skipped, reason, "rejected connection on client endpoint"),
        }
    }

    /// Serves HTTP/1.1. Returns true if the connection ended gracefully.
    async fn serve_http1(&self, io: CountedStream, service: PerConnection, stop: &CancellationToken) -> bool {
        let (connection, upgraded) = (Arc::clone(&service.connection), service.upgraded.clone());
        let service = TowerToHyperService::new(service);
        let mut serving = pin!(self.http1.serve_connection_with_upgrades(TokioIo::new(io), service));
        let mut draining = false;
        // Boxed when it is needed: few connections are closed from here while they serve.
        let mut end: Option<Pin<Box<Sleep>>> = None;
        loop {
            tokio::select! {
                // Received bytes are read before the connection is drained.
                biased;
                ended = serving.as_mut() => {
                    if let Err(error) = &ended {
                        debug!(%error, "a connection failed");
                    }
                    let Some(upgraded) = upgraded.take().filter(|_| ended.is_ok()) else {
                        return ended.is_ok();
                    };
                    let _busy = connection.begin();
                    tokio::select! {
                        () = upgraded => {}
                        () = async {
                            stop.cancelled().await;
                            sleep(WEB_SOCKET_GRACE_PERIOD).await;
                        } => debug!("closed a WebSocket that outlived the grace period"),
                        reason = connection.closed() => debug!(reason = reason.label(), "closed a WebSocket"),
                    }
                    return false;
                }
                reason = connection.closed(), if end.is_none() => {
                    debug!(reason = reason.label(), "closed a connection");
                    if reason != CloseReason::Certificate {
                        return false;
                    }
                    serving.as_mut().graceful_shutdown();
                    end = Some(Box::pin(sleep(GRACEFUL_CLOSE_TIMEOUT)));
                }
                () = over(&mut end), if end.is_some() => return false,
                () = stop.cancelled(), if !draining => {
                    draining = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Waits for the client to close its side, unless the slot is needed for another connection. After `stop` the client has as long as the
/// server waits for its connections: if it pauses, its request must not be reset afterwards.
async fn linger(left: ReturnedStream, connection: &ConnectionState, stop: Option<&CancellationToken>) {
    let was_closed = connection.is_closing();
    let patience = async {
        sleep(LINGER_TIMEOUT).await;
        if stop.is_some_and(CancellationToken::is_cancelled) {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = left.linger() => {}
        () = patience => {}
        _ = connection.closed(), if !was_closed => {}
    }
}

/// Waits until `patience` after `stop`.
async fn after(stop: &CancellationToken, patience: Duration) {
    stop.cancelled().await;
    sleep(patience).await;
}

/// Logs the panic of a task.
pub(super) fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection's task panicked");
    }
}

/// Counts a connection as closed on drop.
struct OpenConnection<'a>(&'a NetworkMetrics);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
