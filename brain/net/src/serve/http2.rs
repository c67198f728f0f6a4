//! HTTP/2: one connection and its streams, each in a task that ends with the connection.
//!
//! Invariant: the memory that a client can occupy is charged to its connection's account: open streams, unread bodies, and responses until
//! the socket, or the queue in front of it that is charged as a whole (`socket.rs`), has accepted them. Only refusals for lack of memory
//! are not charged, and few of them may wait.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes};
use futures::FutureExt as _;
use futures::future::poll_fn;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response};
use http_body::{Body as _, Frame};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, warn};

use super::byte_stream::CountedStream;
use super::connection::{PortConfig, report};
use super::connections::{CloseReason, ConnectionState, InFlight};
use super::framing::RateDeadline;
use super::headers::{FIELD_OVERHEAD_BYTES, MAX_HEADER_LIST_BYTES};
use super::keepalive::{Keepalive, KeepalivePings};
use super::request_body;
use super::route::{PerConnection, PortBody, is_grpc, too_many_requests};
use etcd_types::errors::Error;
use runtime::budget::{BudgetExceeded, Charge};
use runtime::log_once::LogOnce;
use telemetry::metrics::NetworkMetrics;

/// The windows are large enough for a whole request without a round trip.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The number of pending requests that a client may cancel before they are begun: clients cancel many at once when they time out.
const MAX_PENDING_RESETS: usize = 32 * 1024;

/// The total number of streams of a connection that this side may reset.
const MAX_LOCAL_RESETS: usize = 64 * 1024;

/// The limit on small unread DATA frames: room for some 60,000.
const DATA_FRAME_BUDGET: usize = 16 * 1024 * 1024;

/// The charge of an open stream: its task, the decoder's buffer of 8 KiB, and a small answer.
const STREAM_CHARGE_BYTES: usize = 16 * 1024;

/// The memory of headers that the charge of a stream covers.
const STREAM_HEADERS_BYTES: usize = 4 * 1024;

/// The part of that charge for the response: a small one can be sent whatever else has arrived in the meantime.
const ANSWER_RESERVE_BYTES: usize = 4096;

/// The charge of a response in addition to its bytes, until the socket has accepted it.
const ANSWER_OVERHEAD_BYTES: usize = 512;

/// The charge of the head and the trailers of a response.
const ANSWER_HEAD_BYTES: usize = 1280;

/// The most bytes of a response that are passed to h2 at a time.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// The time for which a response may wait for its client, and the rate in bytes per second at which the client must read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
const MIN_ANSWER_RATE: u64 = 4096;

/// The number of requests that may arrive while the socket accepts no responses: more than a large client begins at once after it
/// connected.
const MAX_BEGUN_WHILE_BLOCKED: usize = 32 * 1024;

/// The number of requests that may be refused while the socket accepts no responses.
const MAX_REFUSED_WHILE_BLOCKED: usize = 1024;

/// The time for which a closed connection may try to send GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which open streams may continue when a connection is closed gracefully.
pub(super) const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The options of connections.
#[derive(Debug, Clone)]
pub(super) struct Http2Options {
    builder: h2::server::Builder,
    /// The SETTINGS frame that begins every connection.
    pub(super) settings: Bytes,
    keepalive: Keepalive,
    /// Limits log lines about GOAWAYs that were sent.
    goaways: LogOnce,
}

impl Http2Options {
    pub(super) fn new(max_concurrent_streams: u32, keepalive: Keepalive) -> Self {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(max_concurrent_streams)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
            .data_frame_budget(DATA_FRAME_BUDGET)
            .max_header_list_size(MAX_HEADER_LIST_BYTES);
        Self {
            settings: settings(&builder),
            builder,
            keepalive,
            goaways: LogOnce::default(),
        }
    }
}

/// Returns the SETTINGS that h2 sends at the start of a connection, before it reads anything.
fn settings(builder: &h2::server::Builder) -> Bytes {
    let (server, mut client) = tokio::io::duplex(1024);
    let handshake = builder.handshake::<_, ChargedPiece>(server);
    let mut sent = vec![0; 1024];
    let both = async {
        tokio::select! {
            biased;
            // The handshake waits for the client.
            _ = handshake => 0,
            sent = client.read(&mut sent) => sent.unwrap_or(0),
        }
    };
    let len = both.now_or_never().unwrap_or(0);
    sent.truncate(len);
    sent.into()
}

type H2Connection = h2::server::Connection<CountedStream, ChargedPiece>;

/// Serves a connection until its end; drains it from `stop` on. Returns true if it ended gracefully.
pub(super) async fn serve(
    mut io: CountedStream,
    service: PerConnection,
    port: &PortConfig,
    stop: CancellationToken,
) -> bool {
    io.watch_frames(port.ping_min_time);
    let socket = io.socket();
    let serving = Arc::new(ConnectionStreams {
        network: port.network.clone(),
        goaways: port.http2.goaways.clone(),
        connection: Arc::clone(&service.connection),
        service,
    });
    // Boxed: each move of this future would add its size to the memory of an idle connection. It is kept below 4 KiB, because the allocator
    // uses the next larger size above that.
    let serving = Box::pin(serve_streams(io, serving, port, stop));
    socket.gathering(serving).await.unwrap_or(false)
}

async fn serve_streams(
    io: CountedStream,
    serving: Arc<ConnectionStreams>,
    port: &PortConfig,
    stop: CancellationToken,
) -> bool {
    let handshake = port.http2.builder.handshake(io);
    let connected = tokio::select! {
        _ = serving.connection.closed() => return false,
        connected = handshake => connected,
    };
    let mut h2: H2Connection = match connected {
        Ok(h2) => h2,
        Err(error) => {
            debug!(%error, "a connection failed");
            return false;
        }
    };
    let ping = h2.ping_pong();
    let mut keepalive = pin!(KeepalivePings::new(port.http2.keepalive, ping));
    let mut streams = JoinSet::new();
    let (mut begun_while_blocked, mut refused_while_blocked) = (0, 0);
    let (mut draining, mut closing, mut abrupt) = (false, false, false);
    // Boxed when it is needed: most connections never are closed from here.
    let mut end: Option<Pin<Box<Sleep>>> = None;
    loop {
        tokio::select! {
            accepted = h2.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    if serving.connection.is_blocked() {
                        begun_while_blocked += 1;
                    } else {
                        (begun_while_blocked, refused_while_blocked) = (0, 0);
                    }
                    if let Some(stream) = serving.accept(request, respond) {
                        // Boxed: the runtime moves a task several times.
                        streams.spawn(Box::pin(stream.serve()));
                    } else {
                        refused_while_blocked += 1;
                    }
                    if begun_while_blocked > MAX_BEGUN_WHILE_BLOCKED
                        || serving.connection.is_blocked() && refused_while_blocked > MAX_REFUSED_WHILE_BLOCKED
                    {
                        serving.close(CloseReason::Memory);
                    }
                }
                Some(Err(error)) => {
                    serving.failed(&error);
                    return false;
                }
                None => return !abrupt,
            },
            Some(ended) = streams.join_next() => report(ended),
            reason = serving.connection.closed(), if !closing => {
                closing = true;
                let patience = if reason.is_graceful() {
                    h2.graceful_shutdown();
                    GRACEFUL_CLOSE_TIMEOUT
                } else {
                    abrupt = true;
                    h2.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                    GOAWAY_TIMEOUT
                };
                serving.said_goaway(reason.label());
                end = Some(Box::pin(sleep(patience)));
            }
            () = over(&mut end), if closing => return false,
            () = stop.cancelled(), if !draining => {
                draining = true;
                serving.network.goaways.with_label_values(&["shutdown"]).inc();
                h2.graceful_shutdown();
            }
            () = keepalive.as_mut().missed(&serving.connection), if !closing => serving.close(CloseReason::Ping),
        }
    }
}

/// Waits for the end of a time; for ever without one.
pub(super) async fn over(end: &mut Option<Pin<Box<Sleep>>>) {
    match end {
        Some(end) => end.as_mut().await,
        None => std::future::pending().await,
    }
}

/// State shared by the streams of a connection.
struct ConnectionStreams {
    service: PerConnection,
    connection: Arc<ConnectionState>,
    network: NetworkMetrics,
    goaways: LogOnce,
}

impl ConnectionStreams {
    /// Begins a stream if there is memory for it.
    fn accept(
        self: &Arc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<ChargedPiece>,
    ) -> Option<RequestInFlight> {
        // Charged from here on with the stream.
        drop(self.connection.take_headers(respond.stream_id().into()));
        let headers = held_by(request.headers()).saturating_sub(STREAM_HEADERS_BYTES);
        match self.connection.account.charge(STREAM_CHARGE_BYTES + headers) {
            Ok(charge) => Some(RequestInFlight {
                in_flight: self.connection.begin(),
                serving: Arc::clone(self),
                request,
                respond,
                charge,
            }),
            Err(exceeded) => {
                self.service.routes.refusals.exceeded(exceeded);
                let answer = too_many_requests(is_grpc(&request));
                self.connection.answer();
                let sent = respond.send_response(answer.map(|_| ()), true);
                if let Err(error) = sent {
                    debug!(%error, "could not send a refusal");
                }
                None
            }
        }
    }

    /// Closes the connection from this side.
    fn close(&self, reason: CloseReason) {
        if self.connection.close(reason) {
            self.network.closed.with_label_values(&[reason.label()]).inc();
        }
    }

    /// Logs and counts a connection that ended with an error.
    fn failed(&self, error: &h2::Error) {
        debug!(%error, "a connection failed");
        if error.is_go_away() && error.is_library() {
            self.said_goaway(match error.reason() {
                Some(h2::Reason::ENHANCE_YOUR_CALM) => "enhance_your_calm",
                Some(h2::Reason::PROTOCOL_ERROR) => "protocol_error",
                Some(h2::Reason::FLOW_CONTROL_ERROR) => "flow_control_error",
                Some(h2::Reason::FRAME_SIZE_ERROR) => "frame_size_error",
                Some(h2::Reason::COMPRESSION_ERROR) => "compression_error",
                _ => "other",
            });
        }
    }

    fn said_goaway(&self, reason: &'static str) {
        self.network.goaways.with_label_values(&[reason]).inc();
        let quiet = [CloseReason::Idle, CloseReason::NoRequest, CloseReason::Certificate];
        let is_quiet = quiet.map(CloseReason::label).contains(&reason);
        if !is_quiet && let Some(count) = self.goaways.due() {
            warn!(reason, count, "sent GOAWAY to a client: its in-flight requests fail");
        }
    }
}

/// Returns the memory that headers take.
fn held_by(headers: &http::HeaderMap) -> usize {
    let strings = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    strings.sum::<usize>() + headers.len() * FIELD_OVERHEAD_BYTES
}

/// A request in flight.
struct RequestInFlight {
    serving: Arc<ConnectionStreams>,
    request: Request<RecvStream>,
    respond: SendResponse<ChargedPiece>,
    charge: Charge,
    in_flight: InFlight,
}

impl RequestInFlight {
    /// Answers the request, and reads its body in the meantime.
    ///
    /// No async function: each argument of one is in its future twice, and this one is allocated for each request. Without the doubles it
    /// takes less than 4 KiB, beyond which an allocation costs more.
    fn serve(self) -> impl Future<Output = ()> + Send {
        let RequestInFlight {
            serving,
            request,
            respond,
            charge: mut stream_charge,
            in_flight,
        } = self;
        let charge = stream_charge.split(0);
        let reserve = stream_charge.split(ANSWER_RESERVE_BYTES);
        let (head, recv) = request.into_parts();
        let (body, mut pump) = request_body::open(recv, charge);
        let is_head = head.method == Method::HEAD;
        let request = Request::from_parts(head, body);
        let mut answering = ResponseSide {
            serving,
            respond,
            is_head,
            is_grpc: is_grpc(&request),
            only_reads: only_reads(request.uri().path()),
            reserve,
        };
        async move {
            {
                let mut answering = pin!(answering.answer(request));
                let pump_and_answer = poll_fn(|cx| {
                    pump.poll(cx);
                    let done = answering.as_mut().poll(cx);
                    pump.release();
                    done
                });
                pump_and_answer.await;
            }
            drop((stream_charge, in_flight));
        }
    }
}

/// The response side of one request.
struct ResponseSide {
    serving: Arc<ConnectionStreams>,
    respond: SendResponse<ChargedPiece>,
    is_head: bool,
    is_grpc: bool,
    /// True if the request changed nothing.
    only_reads: bool,
    /// The reserved charge for a small response.
    reserve: Charge,
}

/// Returns true for RPCs that change nothing: a client may get a refusal for them if their response cannot be sent.
fn only_reads(path: &str) -> bool {
    const READS: [&str; 12] = [
        "/etcdserverpb.KV/Range",
        "/etcdserverpb.KV/RangeStream",
        "/etcdserverpb.Watch/Watch",
        "/etcdserverpb.Lease/LeaseTimeToLive",
        "/etcdserverpb.Lease/LeaseLeases",
        "/etcdserverpb.Cluster/MemberList",
        "/etcdserverpb.Maintenance/Status",
        "/etcdserverpb.Maintenance/Hash",
        "/etcdserverpb.Maintenance/HashKV",
        "/etcdserverpb.Maintenance/Snapshot",
        "/v3electionpb.Election/Leader",
        "/v3electionpb.Election/Observe",
    ];
    READS.contains(&path)
}

/// The reason why a response was not sent completely.
enum ResponseCut {
    /// The client is gone, or has reset the stream.
    Gone,
    /// The client does not read it.
    Stalled,
    /// There is no memory for it.
    Exceeded(BudgetExceeded),
    /// The service failed to produce it.
    Failed(axum::Error),
}

impl From<h2::Error> for ResponseCut {
    fn from(_: h2::Error) -> Self {
        ResponseCut::Gone
    }
}

impl ResponseSide {
    async fn answer(&mut self, request: Request<request_body::InboundBody>) {
        let response = {
            let mut answering = pin!(self.serving.service.respond_http2(request));
            let respond = &mut self.respond;
            let answered = poll_fn(|cx| match respond.poll_reset(cx) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => answering.as_mut().poll(cx).map(Some),
            });
            answered.await
        };
        let Some(response) = response else { return };
        let sent = self.send(response).await;
        let refusals = &self.serving.service.routes.refusals;
        match sent {
            Ok(()) | Err(ResponseCut::Gone) => {}
            Err(ResponseCut::Failed(error)) => debug!(%error, "an answer failed"),
            Err(ResponseCut::Stalled) => refusals.count("answer_stalled"),
            Err(ResponseCut::Exceeded(exceeded)) => refusals.exceeded(exceeded),
        }
    }

    async fn send(&mut self, response: Response<PortBody>) -> Result<(), ResponseCut> {
        self.serving.connection.answer();
        let (mut head, body) = response.into_parts();
        let mut body = pin!(body);
        if body.is_end_stream() || self.is_head {
            self.respond.send_response(Response::from_parts(head, ()), true)?;
            self.keep_charge();
            return Ok(());
        }
        if let Some(len) = body.size_hint().exact() {
            head.headers
                .entry(CONTENT_LENGTH)
                .or_insert_with(|| HeaderValue::from(len));
        }
        // A refusal is sent before the response head, if possible: then the client gets the reason.
        let first = poll_fn(|cx| Poll::Ready(body.as_mut().poll_frame(cx))).await;
        let first = match first {
            Poll::Ready(frame) => match self.charged(frame)? {
                Ok(frame) => Some(frame),
                Err(exceeded) => {
                    let refusal = self.no_memory();
                    self.respond.send_response(refusal.map(|_| ()), true)?;
                    self.keep_charge();
                    return Err(ResponseCut::Exceeded(exceeded));
                }
            },
            Poll::Pending => None,
        };
        let mut to = self.respond.send_response(Response::from_parts(head, ()), false)?;
        let mut next = first;
        loop {
            let frame = match next.take() {
                Some(frame) => frame,
                None => {
                    let frame = poll_fn(|cx| frame_or_reset(&mut to, body.as_mut(), cx)).await?;
                    match self.charged(frame)? {
                        Ok(frame) => frame,
                        Err(exceeded) => {
                            to.send_trailers(self.no_memory().into_parts().0.headers)?;
                            self.keep_charge();
                            return Err(ResponseCut::Exceeded(exceeded));
                        }
                    }
                }
            };
            self.serving.connection.answer();
            match frame {
                AnswerPart::Data(bytes, charge) => {
                    let connection = &self.serving.connection;
                    send_data(&mut to, (bytes, charge), body.is_end_stream(), connection).await?;
                }
                AnswerPart::Trailers(trailers) => {
                    to.send_trailers(trailers)?;
                    self.keep_charge();
                    return Ok(());
                }
                AnswerPart::End => {
                    to.send_data(ChargedPiece::default(), true)?;
                    return Ok(());
                }
            }
            if body.is_end_stream() {
                return Ok(());
            }
        }
    }

    /// Keeps a part of what is reserved for the response until heads and trailers were sent, which have no charge of their own.
    fn keep_charge(&mut self) {
        let head = self.reserve.split(ANSWER_HEAD_BYTES);
        self.serving.connection.keep_until_sent(head);
    }

    /// Returns the response for lack of memory. A request that may have changed something has an unknown outcome then and is not
    /// refused.
    fn no_memory(&self) -> Response<Body> {
        if self.is_grpc && !self.only_reads {
            return Status::from(Error::Timeout).into_http();
        }
        too_many_requests(self.is_grpc)
    }

    /// Returns a frame, with the charge for it.
    fn charged(
        &mut self,
        frame: Option<Result<Frame<Bytes>, axum::Error>>,
    ) -> Result<Result<AnswerPart, BudgetExceeded>, ResponseCut> {
        let Some(frame) = frame else {
            return Ok(Ok(AnswerPart::End));
        };
        let frame = match frame.map_err(ResponseCut::Failed)?.into_data() {
            Ok(bytes) => {
                let len = bytes.len() + ANSWER_OVERHEAD_BYTES;
                if len <= self.reserve.bytes() {
                    return Ok(Ok(AnswerPart::Data(bytes, self.reserve.split(len))));
                }
                let charge = self.serving.connection.account.charge(len);
                return Ok(charge.map(|charge| AnswerPart::Data(bytes, charge)));
            }
            Err(frame) => frame,
        };
        Ok(Ok(match frame.into_trailers() {
            Ok(trailers) => AnswerPart::Trailers(trailers),
            Err(_) => AnswerPart::End,
        }))
    }
}

/// A part of an answer.
enum AnswerPart {
    Data(Bytes, Charge),
    Trailers(http::HeaderMap),
    End,
}

type NextFrame = Option<Result<Frame<Bytes>, axum::Error>>;

/// Returns the next frame of a response, unless the client resets the stream.
fn frame_or_reset(
    to: &mut SendStream<ChargedPiece>,
    body: Pin<&mut PortBody>,
    cx: &mut Context<'_>,
) -> Poll<Result<NextFrame, ResponseCut>> {
    if to.poll_reset(cx).is_ready() {
        return Poll::Ready(Err(ResponseCut::Gone));
    }
    body.poll_frame(cx).map(Ok)
}

/// Sends bytes as the client's window allows. The rest stays here.
async fn send_data(
    to: &mut SendStream<ChargedPiece>,
    (mut bytes, mut charge): (Bytes, Charge),
    ends: bool,
    connection: &Arc<ConnectionState>,
) -> Result<(), ResponseCut> {
    let mut due = RateDeadline::new(ANSWER_TIMEOUT, MIN_ANSWER_RATE);
    let all = bytes.len();
    while !bytes.is_empty() {
        to.reserve_capacity(bytes.len().min(MAX_PIECE_BYTES));
        if to.capacity() == 0 {
            due.moved(all - bytes.len());
            poll_fn(|cx| match capacity(to, cx) {
                Poll::Pending => due.poll(cx).map(|()| Err(ResponseCut::Stalled)),
                ready @ Poll::Ready(_) => ready,
            })
            .await?;
        }
        let len = to.capacity().min(bytes.len());
        let rest = bytes.len() - len;
        // All pieces share one buffer, which stays until the last of them is sent: so does the charge.
        let held = if rest == 0 { usize::MAX } else { 0 };
        let piece = ChargedPiece {
            bytes: bytes.split_to(len),
            charge: Some(charge.split(held)),
            connection: Some(Arc::clone(connection)),
        };
        to.send_data(piece, ends && rest == 0)?;
    }
    Ok(())
}

fn capacity(to: &mut SendStream<ChargedPiece>, cx: &mut Context<'_>) -> Poll<Result<(), ResponseCut>> {
    if to.poll_reset(cx).is_ready() {
        return Poll::Ready(Err(ResponseCut::Gone));
    }
    while to.capacity() == 0 {
        match ready!(to.poll_capacity(cx)) {
            Some(outcome) => outcome?,
            None => return Poll::Ready(Err(ResponseCut::Gone)),
        };
    }
    Poll::Ready(Ok(()))
}

/// Bytes on their way to the socket, charged until it has accepted them.
#[derive(Debug, Default)]
pub(super) struct ChargedPiece {
    bytes: Bytes,
    charge: Option<Charge>,
    connection: Option<Arc<ConnectionState>>,
}

impl Buf for ChargedPiece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
        // For each write, as grpc-go does: its clients ping once per round trip while data arrives.
        if let Some(connection) = &self.connection {
            connection.answer();
        }
        if let Some(charge) = &self.charge {
            charge.moved(len);
        }
    }
}
