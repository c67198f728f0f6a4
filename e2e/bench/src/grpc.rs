//! gRPC on h2 with nothing in between: the generator must not be what is measured.
//!
//! Bodies are encoded once, and a whole load runs on one thread.

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri};
use programs::server::Server;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use wire::etcdserverpb as pb;

use crate::requests;

pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";

const FRAME_HEAD_BYTES: usize = 5;
/// Streams of a connection before the server has announced its own bound.
const INITIAL_MAX_STREAMS: usize = 4_096;

/// Number of bytes that a server may send before the client reads them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowSizes {
    /// HTTP/2's default: 64 KiB for a stream, and for a connection.
    Default,
    /// 1 MiB for a stream, 16 MiB for a connection.
    Large,
}

/// Connections to one server. They are closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Connections {
    all: Vec<Connection>,
    /// A connection that fails also fails its calls, so these results are ignored.
    drivers: JoinSet<Result<(), h2::Error>>,
}

impl Connections {
    pub(crate) async fn open(server: &Server, count: usize, windows: WindowSizes) -> anyhow::Result<Self> {
        let mut connections = Self {
            all: Vec::new(),
            drivers: JoinSet::new(),
        };
        let address = server.endpoint().trim_start_matches("http://");
        for _ in 0..count {
            let stream = TcpStream::connect(address)
                .await
                .with_context(|| format!("connect to {address}"))?;
            stream.set_nodelay(true)?;
            let mut builder = h2::client::Builder::new();
            builder.initial_max_send_streams(INITIAL_MAX_STREAMS).enable_push(false);
            if matches!(windows, WindowSizes::Large) {
                builder
                    .initial_window_size(1 << 20)
                    .initial_connection_window_size(16 << 20);
            }
            let (requests, driver) = builder.handshake(stream).await?;
            connections.drivers.spawn(driver);
            connections.all.push(Connection {
                requests,
                authority: address.parse()?,
            });
        }
        Ok(connections)
    }

    /// One of them, in turn.
    pub(crate) fn get(&self, n: u64) -> &Connection {
        &self.all[n as usize % self.all.len()]
    }
}

/// Cheap to clone; all clones use the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Bytes>,
    authority: Authority,
}

impl Connection {
    /// Sends one message, framed already; returns the answer.
    ///
    /// # Errors
    ///
    /// gRPC's status is not 0, or there is none.
    pub(crate) async fn call<M: Message + Default>(&self, path: &'static str, body: Bytes) -> anyhow::Result<M> {
        let (response, mut requests) = self.start(path).await?;
        requests.send_data(body, true)?;
        let (head, body) = response.await?.into_parts();
        let mut messages = ResponseMessages::new(body);
        let message: Option<M> = messages.next().await?;
        ensure!(messages.next::<M>().await?.is_none(), "{path}: more than one message");
        // an answer without a message may have its status in the head
        let status = match head.headers.contains_key("grpc-status") {
            true => head.headers,
            false => messages.body.trailers().await?.unwrap_or_default(),
        };
        check(&status).context(path)?;
        message.with_context(|| format!("{path}: an answer without a message"))
    }

    /// A stream of messages either way; the response comes when the server has something to send.
    pub(crate) async fn start(&self, path: &'static str) -> anyhow::Result<(ResponseFuture, SendStream<Bytes>)> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(PathAndQuery::from_static(path))
            .build()?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        Ok(self.requests.clone().ready().await?.send_request(request, false)?)
    }

    /// The store's revision as this member knows it.
    pub(crate) async fn revision(&self) -> anyhow::Result<i64> {
        let absent = pb::RangeRequest {
            key: Bytes::from_static(b"-"),
            ..pb::RangeRequest::default()
        };
        let answer: pb::RangeResponse = self.call(RANGE, requests::body(&absent)?).await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }
}

/// gRPC's status of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {code}: {message}")]
pub(crate) struct GrpcStatus {
    code: u8,
    message: String,
}

impl GrpcStatus {
    /// True if the server was too busy, so that clients try again.
    pub(crate) fn is_refusal(&self) -> bool {
        const DEADLINE_EXCEEDED: u8 = 4;
        const RESOURCE_EXHAUSTED: u8 = 8;
        const UNAVAILABLE: u8 = 14;
        [DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE].contains(&self.code)
    }
}

fn check(status: &HeaderMap) -> anyhow::Result<()> {
    let text = |name: &str| {
        let value = status.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.unwrap_or_default().into_owned()
    };
    match text("grpc-status").as_str() {
        "0" => Ok(()),
        "" => bail!("an answer without gRPC's status"),
        code => {
            let code = code.parse().with_context(|| format!("gRPC's status {code}"))?;
            let message = text("grpc-message");
            Err(GrpcStatus { code, message }.into())
        }
    }
}

/// Messages from the body of a response.
#[derive(Debug)]
pub(crate) struct ResponseMessages {
    body: RecvStream,
    buffered: BytesMut,
}

impl ResponseMessages {
    pub(crate) fn new(body: RecvStream) -> Self {
        Self {
            body,
            buffered: BytesMut::new(),
        }
    }

    /// The next one. `None`: the body has ended. May be cancelled without a loss.
    pub(crate) async fn next<M: Message + Default>(&mut self) -> anyhow::Result<Option<M>> {
        loop {
            if let Some(message) = take_frame(&mut self.buffered)? {
                return Ok(Some(M::decode(message)?));
            }
            let Some(chunk) = self.body.data().await else {
                ensure!(self.buffered.is_empty(), "the body ends within a message");
                return Ok(None);
            };
            let chunk = chunk?;
            self.body.flow_control().release_capacity(chunk.len())?;
            self.buffered.extend_from_slice(&chunk);
        }
    }
}

/// One whole message off the front: not compressed, its length, itself.
fn take_frame(buffered: &mut BytesMut) -> anyhow::Result<Option<Bytes>> {
    let Some(head) = buffered.first_chunk::<FRAME_HEAD_BYTES>() else {
        return Ok(None);
    };
    let [compressed, length @ ..] = *head;
    ensure!(compressed == 0, "an unrequested compressed message");
    let length = u32::from_be_bytes(length) as usize;
    if buffered.len() < FRAME_HEAD_BYTES + length {
        return Ok(None);
    }
    buffered.advance(FRAME_HEAD_BYTES);
    Ok(Some(buffered.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_when_they_are_whole() {
        let mut buffered = BytesMut::from(&b"\0\0\0\0\x02ab\0\0\0\0\x01"[..]);
        assert_eq!(take_frame(&mut buffered).unwrap().unwrap(), "ab");
        assert_eq!(take_frame(&mut buffered).unwrap(), None);
        buffered.extend_from_slice(b"c");
        assert_eq!(take_frame(&mut buffered).unwrap().unwrap(), "c");
        assert_eq!(take_frame(&mut buffered).unwrap(), None);
        buffered.extend_from_slice(b"\x01\0\0\0\0");
        assert!(take_frame(&mut buffered).is_err());
    }

    #[test]
    fn only_status_0_is_success() {
        let status = |code: &'static str| {
            let mut map = HeaderMap::new();
            map.insert("grpc-status", http::HeaderValue::from_static(code));
            check(&map)
        };
        assert!(status("0").is_ok());
        let refused = status("14").unwrap_err().downcast::<GrpcStatus>().unwrap();
        assert!(refused.is_refusal() && refused.to_string().starts_with("status 14: "));
        let wrong = status("3").context("/etcdserverpb.KV/Txn").unwrap_err();
        assert!(!wrong.downcast_ref::<GrpcStatus>().unwrap().is_refusal());
        assert!(check(&HeaderMap::new()).is_err());
    }
}
