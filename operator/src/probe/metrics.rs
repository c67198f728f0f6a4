//! Asks the pod of an archive or of a copy how far it is, by its metrics. Their port speaks HTTP/1.1 alone.
//!
//! The pod is untrusted, because the tenant chooses its image: its answer is limited in time and in bytes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use plan::archive::{ArchiveFigures, ArchiveState};
use plan::bootstrap::CopyFigures;
use plan::member::{MAX_TEXT_BYTES, clean};
use plan::names::METRICS_PORT;
use tokio::net::TcpStream;

/// Timeout of the whole exchange.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Maximum length of the reason for a failure, in bytes: it names an object, a URL and an error of the destination.
const MAX_REASON_BYTES: usize = 512;
/// Maximum size of the head of an answer, in bytes; the smallest buffer that hyper supports.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Asks the archive at the IP address `address`, also for the reason if something is not stored.
///
/// # Errors
/// The reason why it did not answer, in words for the status.
pub(crate) async fn ask_archive(address: &str) -> Result<ArchiveState, String> {
    let text = metrics(address).await?;
    let figures = ArchiveFigures::parse(&text).ok_or("its metrics are not those of an archive")?;
    if !figures.is_failing && !figures.lacks_backup {
        return Ok(ArchiveState::Answered(figures));
    }
    let (status, reason) = ask(address, "/readyz").await?;
    Ok(match status {
        // It has just succeeded.
        StatusCode::OK => ArchiveState::Answered(figures),
        _ => ArchiveState::Failing(figures, clean(reason.trim(), MAX_REASON_BYTES)),
    })
}

/// Asks the copy of an etcd at the IP address `address`.
///
/// # Errors
/// The reason why it did not answer, in words.
pub(crate) async fn ask_copy(address: &str) -> Result<CopyFigures, String> {
    let text = metrics(address).await?;
    CopyFigures::parse(&text).ok_or_else(|| "its metrics are not those of a copy".to_owned())
}

async fn metrics(address: &str) -> Result<String, String> {
    match ask(address, "/metrics").await? {
        (StatusCode::OK, text) => Ok(text),
        (other, _) => Err(format!("it answered {}", other.as_u16())),
    }
}

async fn ask(address: &str, path: &str) -> Result<(StatusCode, String), String> {
    let address = metrics_port(address)?;
    let text = tokio::time::timeout(ANSWER_TIMEOUT, exchange(address, path)).await;
    text.map_err(|_| "it did not answer in time".to_owned())?
}

async fn exchange(address: SocketAddr, path: &str) -> Result<(StatusCode, String), String> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| format!("no connection: {}", clean(&error.to_string(), MAX_TEXT_BYTES)))?;
    let broken = |error: &dyn std::error::Error| {
        let text = clean(&error.to_string(), MAX_TEXT_BYTES);
        format!("the connection failed: {text}")
    };
    let mut builder = http1::Builder::new();
    let handshake = builder.max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream));
    let (mut send, connection) = handshake.await.map_err(|error| broken(&error))?;
    let request = Request::builder().uri(path).header(HOST, address.to_string());
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| format!("bad request: {error}"))?;
    let exchange = async {
        let answer = send.send_request(request).await.map_err(|error| broken(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body =
            body.map_err(|error| format!("the connection failed: {}", clean(&error.to_string(), MAX_TEXT_BYTES)))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    tokio::pin!(connection, exchange);
    tokio::select! {
        text = &mut exchange => text,
        ended = &mut connection => {
            ended.map_err(|error| broken(&error))?;
            // Data that arrived before the end of the connection can still be read.
            exchange.await
        }
    }
}

/// Returns the address with the port of metrics, unless it has a port of its own.
fn metrics_port(address: &str) -> Result<SocketAddr, String> {
    if let Ok(with_port) = address.parse() {
        return Ok(with_port);
    }
    let invalid = || {
        let address = clean(address, MAX_TEXT_BYTES);
        format!("the address of its pod is invalid: {address:?}")
    };
    let ip: IpAddr = address.parse().map_err(|_| invalid())?;
    let port = u16::try_from(METRICS_PORT).map_err(|_| invalid())?;
    Ok(SocketAddr::new(ip, port))
}
