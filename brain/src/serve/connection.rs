//! One port: accepts, shakes hands, serves each connection in a task of its own.

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tracing::{debug, error, warn};

use super::PATIENCE;
use super::admission::{Admission, Io, PeerId};
use super::route::{Caller, Edge, PerConnection};
use crate::listen::{Accepted, Listener};
use crate::metrics::NetworkMetrics;
use crate::said::Said;
use crate::tls::{ServerTls, refusal};

pub(super) type Builder = hyper_util::server::conn::auto::Builder<TokioExecutor>;

/// The shortest beginning of an HTTP/2 connection.
const PREFACE: u64 = 24;

/// Room for connections and handshakes, shared by ports.
#[derive(Debug, Clone)]
pub(super) struct Room {
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
}

impl Room {
    pub(super) fn new(connections: usize, handshakes: usize) -> Room {
        Room {
            connections: Arc::new(Semaphore::new(connections)),
            handshakes: Arc::new(Semaphore::new(handshakes)),
        }
    }
}

/// From what is known of the other end of a connection to who that is.
type Describe<T> = fn(<T as Connected>::ConnectInfo) -> Caller;

/// All that a connection needs of its port.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) tls: Option<Arc<ServerTls>>,
    /// Whom connections have to convince before anything else.
    pub(super) admission: Option<Arc<dyn Admission>>,
    pub(super) edge: Edge,
    pub(super) builder: Builder,
    pub(super) room: Room,
    pub(super) network: NetworkMetrics,
    /// Where peers are served: who was refused. Of clients that is said to those who debug.
    pub(super) refused: Option<Said>,
}

impl Port {
    /// Serves until `stop`, and then for at most `grace`.
    pub(super) async fn run(self, listener: Listener, stop: CancellationToken, grace: Duration) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => report(ended),
                (accepted, permit) = self.next(&listener) => {
                    connections.spawn(self.clone().connection(accepted, permit, stop.clone()));
                }
            }
        }
        drop(listener);
        let drained = async {
            while let Some(ended) = connections.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(grace, drained).await.is_err() {
            debug!(
                connections = connections.len(),
                "connections outlived the grace period and are cut off"
            );
            connections.shutdown().await;
        }
    }

    /// Waits for room, then for a connection. What passes by itself is waited out.
    async fn next(&self, listener: &Listener) -> (Accepted, Option<OwnedSemaphorePermit>) {
        const PAUSE: Duration = Duration::from_millis(100);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.room.connections).acquire_owned().await.ok();
        let mut told = false;
        loop {
            match listener.accept().await {
                Ok(accepted) => return (accepted, permit),
                // The client left before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!(%error, url = %listener.url(), "connections cannot be accepted");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connection(self, accepted: Accepted, _permit: Option<OwnedSemaphorePermit>, stop: CancellationToken) {
        self.network.connections.inc();
        let _open = Open(&self.network);
        let shaken = match accepted {
            Accepted::Tcp(stream) => {
                let from = stream.peer_addr().map(|address| address.ip()).ok();
                self.shake(stream, from, (Caller::Tcp, Caller::TcpTls), &stop).await
            }
            Accepted::Unix(stream) => self.shake(stream, None, (Caller::Unix, Caller::UnixTls), &stop).await,
        };
        let Some((mut io, caller)) = shaken else { return };
        let Ok(peer) = self.admit(&mut io, &caller, &stop).await else {
            return;
        };
        self.serve(io, (caller, peer), stop.clone()).await;
    }

    /// The stream to serve and who is at its other end; none when it is not to be.
    async fn shake<T>(
        &self,
        stream: T,
        from: Option<IpAddr>,
        (plain, secure): (Describe<T>, Describe<tokio_rustls::server::TlsStream<T>>),
        stop: &CancellationToken,
    ) -> Option<(Box<dyn Io>, Caller)>
    where
        T: Connected + Io,
    {
        let Some(tls) = &self.tls else {
            let caller = plain(stream.connect_info());
            return Some((Box::new(stream), caller));
        };
        let handshake = async {
            let _turn = self.room.handshakes.acquire().await;
            let acceptor = TlsAcceptor::from(tls.config());
            tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await
        };
        let outcome = tokio::select! {
            () = stop.cancelled() => return None,
            outcome = handshake => outcome,
        };
        match outcome {
            Ok(Ok(stream)) => {
                let caller = secure(stream.connect_info());
                Some((Box::new(stream), caller))
            }
            Ok(Err(error)) => {
                self.network.handshakes_failed.inc();
                self.tell(&error, from);
                None
            }
            Err(_) => {
                self.network.handshakes_failed.inc();
                debug!("a TLS handshake took too long");
                None
            }
        }
    }

    /// Whose connection it is, where members have to prove that.
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
            admitted = tokio::time::timeout(PATIENCE, admission.admit(io)) => admitted,
        };
        let why = match admitted {
            Ok(Ok(peer)) => return Ok(Some(peer)),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "it says too little for too long"),
        };
        self.network.handshakes_failed.inc();
        let from = caller
            .address()
            .map_or_else(|| "this machine".to_owned(), |ip| ip.to_string());
        if self.refused.as_ref().is_some_and(|refused| refused.is_new(&from)) {
            warn!(from, %why, "whoever has not proved to be a member of this cluster is refused");
        }
        Err(why)
    }

    fn tell(&self, error: &io::Error, from: Option<IpAddr>) {
        let from = from.map_or_else(|| "this machine".to_owned(), |ip| ip.to_string());
        match (&self.refused, refusal(error)) {
            (Some(refused), Some(reason)) => {
                // Reasons may tell the time.
                let kind: String = reason.to_string().chars().filter(|c| !c.is_ascii_digit()).collect();
                if refused.is_new(&format!("{from}: {kind}")) {
                    warn!(from, %reason, "a peer is refused");
                }
            }
            _ => debug!(from, %error, "a TLS handshake failed"),
        }
    }

    async fn serve(&self, io: Box<dyn Io>, (caller, peer): (Caller, Option<PeerId>), stop: CancellationToken) {
        let signs = Arc::new(Signs::default());
        let io = TokioIo::new(Counted {
            io,
            signs: Arc::clone(&signs),
            network: self.network.clone(),
        });
        let service = PerConnection {
            edge: self.edge.clone(),
            caller,
            peer,
            signs: Arc::clone(&signs),
        };
        let mut connection = pin!(self.builder.serve_connection(io, TowerToHyperService::new(service)));
        let mut patience = pin!(tokio::time::sleep(PATIENCE));
        let (mut draining, mut spoke) = (false, false);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection failed");
                    }
                    return;
                }
                () = stop.cancelled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = patience.as_mut(), if !spoke => {
                    spoke = true;
                    if !signs.asked.load(Ordering::Relaxed) && signs.received.load(Ordering::Relaxed) < PREFACE {
                        debug!("a client said nothing");
                        return;
                    }
                }
            }
        }
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection's task panicked");
    }
}

/// Counts a connection as gone when it is dropped.
struct Open<'a>(&'a NetworkMetrics);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Signs of life of a connection.
#[derive(Debug, Default)]
pub(super) struct Signs {
    received: AtomicU64,
    /// A whole request head has come.
    pub(super) asked: AtomicBool,
}

/// Counts what passes.
struct Counted {
    io: Box<dyn Io>,
    signs: Arc<Signs>,
    network: NetworkMetrics,
}

impl Counted {
    fn sent(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(len)) = &polled {
            self.network.sent.inc_by(*len as u64);
        }
        polled
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        let len = (buf.filled().len() - before) as u64;
        self.signs.received.fetch_add(len, Ordering::Relaxed);
        self.network.received.inc_by(len);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.sent(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.sent(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
