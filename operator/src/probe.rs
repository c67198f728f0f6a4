//! Asks a brain for its identity and its leader, over the network as any client would, and asks a leader to hand over.
//!
//! The address is the pod's own, so no DNS lookup is involved; the certificate is still checked against the pod's name. A brain is
//! untrusted, because the tenant chooses its image. Its answers are limited in time, in bytes and in the length of every text.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use plan::member::{BrainRefusal, MAX_TEXT_BYTES, MemberAnswer, clean};
use plan::names::CLIENT_PORT;
use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit};

mod connection;
mod metrics;
#[cfg(test)]
pub(crate) mod tests;

use connection::ProbedBrain;
pub(crate) use metrics::{ask_archive, ask_copy};

/// Timeout of a `GET /member`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a brain delays an answer while it waits for a change, with a margin for the network.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(35);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent requests to all brains together.
const MAX_CONCURRENT_REQUESTS: usize = 32;

/// Limits concurrent requests to all brains together. Clones share the limit.
#[derive(Clone)]
pub(crate) struct Prober(Arc<Semaphore>);

impl Default for Prober {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)))
    }
}

impl Prober {
    /// Waits for the right to send a request; `None` if the operator is ending.
    pub(crate) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

/// The operator's client certificate for brains, and the CA to verify them with, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClientIdentity {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) trusted: String,
}

/// Reason why a brain did not identify itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeFailure {
    /// The reason in words for the status.
    pub(crate) text: String,
    /// The brain's own reason, if it gave one.
    pub(crate) refusal: Option<BrainRefusal>,
}

impl From<String> for ProbeFailure {
    fn from(text: String) -> Self {
        Self { text, refusal: None }
    }
}

/// Queries the brain at the IP address `address`, whose certificate must be for `host`. Without an identity the connection is plain text.
///
/// # Errors
/// The reason why it did not answer.
pub(crate) async fn ask(
    address: &str,
    host: &str,
    identity: Option<&ClientIdentity>,
) -> Result<MemberAnswer, ProbeFailure> {
    member(client_port(address)?, host, identity, None).await
}

/// Like [`ask`], but the brain answers only when it knows a leader of a higher epoch than `after` or lost the leader that it knew, and in
/// any case within 30 s.
///
/// # Errors
/// The reason why it did not answer.
pub(crate) async fn ask_after(
    address: &str,
    host: &str,
    identity: Option<&ClientIdentity>,
    after: i64,
) -> Result<MemberAnswer, String> {
    let answer = member(client_port(address)?, host, identity, Some(after)).await;
    answer.map_err(|silence| silence.text)
}

/// Asks the leader at `address` to hand over to the member with the id `target`, by etcd's `Maintenance.MoveLeader`. Returns when that
/// member leads.
///
/// # Errors
/// The reason why it did not hand over, in words for the status. It is then unknown whether leadership moved.
pub(crate) async fn move_leader(
    address: &str,
    host: &str,
    identity: Option<&ClientIdentity>,
    target: u64,
) -> Result<(), String> {
    transfer(client_port(address)?, host, identity, target).await
}

async fn member(
    address: SocketAddr,
    host: &str,
    identity: Option<&ClientIdentity>,
    after: Option<i64>,
) -> Result<MemberAnswer, ProbeFailure> {
    let peer = ProbedBrain {
        address,
        host,
        identity,
    };
    let path = after.map_or("/member".to_owned(), |after| format!("/member?after={after}"));
    let request = Request::builder().method(Method::GET).uri(peer.uri(&path));
    let patience = if after.is_some() {
        LONG_POLL_TIMEOUT
    } else {
        ANSWER_TIMEOUT
    };
    let reply = peer.exchange(request, None, patience).await?;
    let refusal = BrainRefusal::parse(&reply.body);
    let text = match (reply.status, &refusal) {
        (StatusCode::OK, _) => return Ok(MemberAnswer::parse(&reply.body)?),
        (StatusCode::NOT_FOUND, _) => {
            "it has no /member endpoint: its version is older than this operator supports".to_owned()
        }
        (_, Some(refusal)) => format!("it does not serve: {}", refusal.message),
        (other, None) => format!(
            "it answered {}: {}",
            other.as_u16(),
            clean(&String::from_utf8_lossy(&reply.body), MAX_TEXT_BYTES)
        ),
    };
    Err(ProbeFailure { text, refusal })
}

/// Etcd's request; its answer contains only a header.
#[derive(Clone, PartialEq, Message)]
struct MoveLeaderRequest {
    #[prost(uint64, tag = "1")]
    target_id: u64,
}

async fn transfer(
    address: SocketAddr,
    host: &str,
    identity: Option<&ClientIdentity>,
    target: u64,
) -> Result<(), String> {
    let peer = ProbedBrain {
        address,
        host,
        identity,
    };
    let request = Request::builder()
        .method(Method::POST)
        .uri(peer.uri("/etcdserverpb.Maintenance/MoveLeader"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let body = framed(&MoveLeaderRequest { target_id: target });
    let reply = peer.exchange(request, Some(body), TRANSFER_TIMEOUT).await?;
    let text = |name: &str| {
        let trailer = reply.trailers.get(name).or_else(|| reply.headers.get(name));
        trailer.map(|value| clean(&String::from_utf8_lossy(value.as_bytes()), MAX_TEXT_BYTES))
    };
    match text("grpc-status").as_deref() {
        Some("0") => Ok(()),
        Some(code) => Err(format!(
            "it refused with gRPC code {code}: {}",
            text("grpc-message").unwrap_or_default()
        )),
        None => Err(format!("it answered {} without a gRPC status", reply.status.as_u16())),
    }
}

/// Encodes a gRPC message: the flag for no compression, the length, and the bytes.
fn framed(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(5 + bytes.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    frame.put_slice(&bytes);
    frame.freeze()
}

/// Returns the address with the client port, unless the address has a port of its own.
fn client_port(address: &str) -> Result<SocketAddr, String> {
    if let Ok(with_port) = address.parse() {
        return Ok(with_port);
    }
    let ip: IpAddr = address.parse().map_err(|_| {
        format!(
            "the address of its pod is invalid: {:?}",
            clean(address, MAX_TEXT_BYTES)
        )
    })?;
    let port = u16::try_from(CLIENT_PORT).map_err(|_| "the client port is out of range".to_owned())?;
    Ok(SocketAddr::new(ip, port))
}
