//! /healthz, /readyz and /metrics. Plain HTTP: nothing here is secret, and the kubelet has no certificate.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use crds::KubeBrainCluster;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::runtime::reflector::Store;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::debug;

use crate::backup_schedule::ScheduleStores;
use crate::leadership::Leadership;
use crate::metrics::{self, Metrics};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 64;
/// Timeout for the head of a request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Read buffer of one connection in bytes; the smallest that hyper supports.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// Maximum lifetime of a connection, so that a client that reads too slowly is disconnected.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(120);

/// State of the handlers.
#[derive(Clone)]
pub(crate) struct HealthState {
    pub(crate) metrics: Metrics,
    pub(crate) leadership: Leadership,
    /// All clusters, one store per namespace or one for all, once this replica works.
    pub(crate) clusters: Arc<Mutex<Vec<Store<KubeBrainCluster>>>>,
    pub(crate) schedules: ScheduleStores,
    /// Cancelled when the process is asked to stop.
    pub(crate) stop: CancellationToken,
}

/// Binds the address at startup, so that an address in use fails the start. Without IPv6, `[::]` means `0.0.0.0`.
///
/// # Errors
/// The address is not available.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(error) if has_no_ipv6(address, &error) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await,
        bound => bound,
    };
    bound.with_context(|| format!("listen on {address} (--listen)"))
}

fn has_no_ipv6(address: SocketAddr, error: &std::io::Error) -> bool {
    let unavailable = matches!(
        error.kind(),
        std::io::ErrorKind::AddrNotAvailable | std::io::ErrorKind::Unsupported
    );
    // On Linux without the protocol family, this error has no `ErrorKind` of its own.
    address.is_ipv6() && address.ip().is_unspecified() && (unavailable || error.raw_os_error() == Some(EAFNOSUPPORT))
}

/// Linux: address family not supported.
const EAFNOSUPPORT: i32 = 97;

/// Serves until `stop`. It never holds more than [`MAX_CONNECTIONS`] connections: a further one closes the oldest, so that a client with many
/// open connections cannot block the kubelet's probes.
///
/// # Errors
/// The listener failed.
pub(crate) async fn serve(listener: TcpListener, health: HealthState, stop: CancellationToken) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(health);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES);
    let mut open = JoinSet::new();
    let mut oldest = VecDeque::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    // For example, no file descriptors are left; other connections will close.
                    debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        oldest.retain(|task: &AbortHandle| !task.is_finished());
        if oldest.len() >= MAX_CONNECTIONS
            && let Some(task) = oldest.pop_front()
        {
            task.abort();
        }
        let router = router.clone();
        let service = service_fn(move |request| router.clone().oneshot(request));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        // The end of one connection does not affect the others.
        let task = open.spawn(async move { drop(tokio::time::timeout(MAX_CONNECTION_LIFETIME, connection).await) });
        oldest.push_back(task);
    }
    Ok(())
}

fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Alive: the elector, if there is one, is on time.
async fn alive(State(health): State<HealthState>) -> Response {
    match health.leadership.check() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// Ready: working, or on standby for the working replica.
async fn ready(State(health): State<HealthState>) -> Response {
    if health.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    alive(State(health)).await
}

async fn scrape(State(health): State<HealthState>) -> Response {
    survey(&health);
    match health.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Counts clusters and schedules at each scrape, from the stores that the watches fill anyway.
fn survey(health: &HealthState) {
    health.metrics.lead(health.leadership.is_leading());
    let stores = health.clusters.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let clusters: Vec<_> = stores.iter().flat_map(Store::state).collect();
    health.metrics.survey(&clusters);
    let stores = health.schedules.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let schedules: Vec<_> = stores.iter().flat_map(Store::state).collect();
    health.metrics.survey_schedules(&schedules);
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Served {
        address: SocketAddr,
        stop: CancellationToken,
        running: JoinSet<anyhow::Result<()>>,
    }

    async fn served() -> Served {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let health = HealthState {
            metrics: Metrics::new(),
            leadership: Leadership::Alone,
            clusters: Arc::default(),
            schedules: Arc::default(),
            stop: stop.clone(),
        };
        let mut running = JoinSet::new();
        running.spawn(serve(listener, health, stop.clone()));
        Served { address, stop, running }
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn endpoints_answer() {
        let mut served = served().await;
        assert!(ask(served.address, "/healthz").await.starts_with("HTTP/1.1 200 "));
        assert!(ask(served.address, "/readyz").await.ends_with("ok\n"));
        assert!(
            ask(served.address, "/metrics")
                .await
                .contains("kubebrain_operator_leader 1")
        );
        assert!(ask(served.address, "/other").await.starts_with("HTTP/1.1 404 "));
        served.stop.cancel();
        served.running.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Returns true if the client has closed the connection or is about to.
    async fn is_ended(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(3), stream.read_to_end(&mut rest));
        read.await.is_ok()
    }

    #[tokio::test]
    async fn half_requests_are_bounded_and_keep_nobody_out() {
        let served = served().await;
        let mut halves = Vec::new();
        for _ in 0..500 {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            // Connections that were already closed cannot be written to.
            drop(stream.write_all(b"GET /healthz HTTP/1.1\r\nX-Half: ").await);
            halves.push(stream);
        }
        assert!(ask(served.address, "/healthz").await.ends_with("ok\n"));
        let newer = halves.split_off(500 - MAX_CONNECTIONS);
        for mut ended in halves {
            assert!(is_ended(&mut ended).await);
        }
        // The rest is closed because no head arrives.
        tokio::time::sleep(HEAD_TIMEOUT).await;
        for mut ended in newer {
            assert!(is_ended(&mut ended).await);
        }
    }

    #[tokio::test]
    async fn endless_head_is_refused() {
        let served = served().await;
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let mut sent = 0;
        while sent < 1 << 20 && stream.write_all(&[b'a'; 1024]).await.is_ok() {
            sent += 1024;
        }
        assert!(is_ended(&mut stream).await);
    }

    #[tokio::test]
    async fn all_families_are_listened_on() {
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let family = std::io::Error::from_raw_os_error(EAFNOSUPPORT);
        assert!(has_no_ipv6("[::]:80".parse().unwrap(), &family));
        assert!(!has_no_ipv6("[::1]:80".parse().unwrap(), &family));
        assert!(!has_no_ipv6("0.0.0.0:80".parse().unwrap(), &family));
    }
}
