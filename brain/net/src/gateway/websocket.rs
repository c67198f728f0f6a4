//! RPCs over WebSockets: each message of the client is a request, each of the server a line of the answer, as etcd does it with
//! grpc-websocket-proxy.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tracing::debug;

use crate::serve::framing::{BODY_TIMEOUT, MIN_BODY_RATE, RateDeadline};
use runtime::budget::{Account, Charge};

/// The only version of the protocol: RFC 6455.
const WEBSOCKET_VERSION: &str = "13";

/// The protocol by which a page of a browser, which cannot set headers, sends its token: `Bearer, <token>`.
const BEARER_PROTOCOL: &str = "Bearer";

/// The cookie that may hold the token, too.
const TOKEN_COOKIE: &str = "token";

/// Bytes of a client's control frame before its payload: two, and the mask.
const CONTROL_HEAD_BYTES: usize = 6;

/// Bytes read at once.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// Returns true if a request asks for a WebSocket.
pub(crate) fn is_asked_for<B>(request: &Request<B>) -> bool {
    let has = |name, token: &str| {
        let values = request.headers().get_all(name).iter();
        let mut tokens = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    request.method() == Method::GET && has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

/// The answer to a request for a WebSocket: 101, or why there is none.
pub(crate) fn handshake(headers: &HeaderMap) -> Response<Body> {
    let bad = |text: &str| {
        let mut response = Response::new(Body::from(format!("Bad Request\n{text}\n")));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    };
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != WEBSOCKET_VERSION)
    {
        return bad("websocket: unsupported version: 13 not found in 'Sec-Websocket-Version' header");
    }
    let accepted = headers
        .get(SEC_WEBSOCKET_KEY)
        .map(|key| derive_accept_key(key.as_bytes()));
    let Some(accepted) = accepted.and_then(|key| HeaderValue::try_from(key).ok()) else {
        return bad("websocket: not a websocket handshake: 'Sec-WebSocket-Key' header is missing or blank");
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    let protocol = headers.get(SEC_WEBSOCKET_PROTOCOL);
    if protocol.is_some_and(|protocol| protocol.as_bytes().starts_with(BEARER_PROTOCOL.as_bytes())) {
        answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(BEARER_PROTOCOL));
    }
    response
}

/// Turns the request for a WebSocket into that of its RPC, whose body is still missing.
pub(crate) fn rpc<B>(request: Request<B>) -> Request<()> {
    let (mut parts, _) = request.into_parts();
    parts.method = Method::POST;
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let token = text(SEC_WEBSOCKET_PROTOCOL)
        .and_then(|protocols| protocols.strip_prefix(BEARER_PROTOCOL)?.trim_start().strip_prefix(','))
        .or_else(|| {
            let cookies = text(COOKIE)?.split(';');
            let mut pairs = cookies.filter_map(|cookie| cookie.trim().split_once('='));
            pairs.find(|(name, _)| *name == TOKEN_COOKIE).map(|(_, token)| token)
        });
    let token = token.and_then(|token| HeaderValue::try_from(format!("{BEARER_PROTOCOL} {}", token.trim())).ok());
    if let Some(token) = token {
        parts.headers.insert(AUTHORIZATION, token);
    }
    Request::from_parts(parts, ())
}

/// Serves an RPC on a WebSocket until either side ends it. `longest` bounds messages of the client, in bytes; a message that has begun is
/// charged to the account, and must be complete in time.
pub(crate) async fn serve<F>(
    upgrade: OnUpgrade,
    (request, longest, account): (Request<()>, usize, Account),
    answer: impl FnOnce(Request<ClientMessages>) -> F,
) where
    F: Future<Output = Response<Body>>,
{
    let upgraded = match upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => return debug!(%error, "a client left before its WebSocket was open"),
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(longest))
        .max_frame_size(Some(longest));
    let Ok(charge) = account.charge(0) else { return };
    let begun = Arc::new(Mutex::new(OpenMessage {
        charge,
        bytes: 0,
        due: None,
    }));
    let io = ReceivedBytes {
        io: TokioIo::new(upgraded),
        begun: begun.clone(),
    };
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let (mut sink, mut source) = socket.split();
    let (sender, receiver) = mpsc::channel(1);
    let reading = async {
        while let Some(message) = source.next().await {
            let begun = || begun.lock().unwrap_or_else(PoisonError::into_inner);
            let message = match message {
                Ok(Message::Text(text)) => Bytes::from(text),
                Ok(Message::Binary(bytes)) => bytes,
                // The reply is sent when the next message is awaited; no message follows.
                Ok(Message::Close(_)) => continue,
                Ok(Message::Ping(payload) | Message::Pong(payload)) => {
                    begun().forget(CONTROL_HEAD_BYTES + payload.len());
                    continue;
                }
                Ok(Message::Frame(_)) => continue,
                Err(error) => return debug!(%error, "a WebSocket failed"),
            };
            let charge = begun().end(message.len());
            if sender.send((message, charge)).await.is_err() {
                // The RPC reads no more messages. Further ones are read and dropped until the client leaves.
                continue;
            }
        }
    };
    let writing = async {
        let mut body = answer(request.map(|()| ClientMessages(receiver))).await.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            let line = data
                .strip_suffix(b"\n")
                .map_or_else(|| data.clone(), |line| data.slice_ref(line));
            let Ok(text) = Utf8Bytes::try_from(line) else { break };
            if let Err(error) = sink.send(Message::Text(text)).await {
                return debug!(%error, "a WebSocket failed");
            }
        }
        if let Err(error) = sink.close().await {
            debug!(%error, "a WebSocket was not closed in order");
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}

/// The message that a client has begun to send.
struct OpenMessage {
    charge: Charge,
    /// Bytes of it that have come.
    bytes: usize,
    due: Option<RateDeadline>,
}

impl OpenMessage {
    fn take(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        self.charge.moved(bytes);
        let due = self
            .due
            .get_or_insert_with(|| RateDeadline::new(BODY_TIMEOUT, MIN_BODY_RATE));
        due.moved(self.bytes);
        // Fragments are put together, and handed over as a copy.
        self.charge
            .set(3 * self.bytes)
            .map_err(|_| io::Error::other("there is no memory for a message"))
    }

    /// Bytes were of no message: a client that only pings has begun none.
    fn forget(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.bytes == 0 {
            self.due = None;
        }
        self.charge.shrink(3 * bytes);
    }

    /// It is complete. Returns the charge for its `len` bytes.
    fn end(&mut self, len: usize) -> Charge {
        (self.bytes, self.due) = (0, None);
        let message = self.charge.split(len);
        self.charge.shrink(usize::MAX);
        message
    }
}

/// The bytes of a connection, charged and timed from the last complete message on.
struct ReceivedBytes<T> {
    io: T,
    begun: Arc<Mutex<OpenMessage>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for ReceivedBytes<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        match polled {
            Poll::Ready(Ok(())) => {
                let bytes = buffer.filled().len() - before;
                Poll::Ready(if bytes > 0 { begun.take(bytes) } else { Ok(()) })
            }
            Poll::Pending => match &mut begun.due {
                Some(due) => due.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
                None => Poll::Pending,
            },
            failed => failed,
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReceivedBytes<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The messages of a client, each followed by a line end, and charged until it is taken.
pub(crate) struct ClientMessages(mpsc::Receiver<(Bytes, Charge)>);

impl http_body::Body for ClientMessages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = std::task::ready!(self.0.poll_recv(cx));
        Poll::Ready(message.map(|(message, _charge)| {
            let mut line = Vec::with_capacity(message.len() + 1);
            line.extend_from_slice(&message);
            line.push(b'\n');
            Ok(Frame::data(Bytes::from(line)))
        }))
    }
}
