//! The path of every RPC: its request is read and charged before it is begun, its deadline is enforced, its outcome is counted, and
//! tonic's own error texts are replaced by those of grpc-go.

use std::future::{poll_fn, ready};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http::{HeaderMap, Request, Response, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use prometheus::IntCounter;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Code, Status};
use tower::{BoxError, Service as _};

use super::decoded_size::decoded_bytes;
use super::framing::{
    BODY_TIMEOUT, FramedMessages, MESSAGE_PREFIX_BYTES, MIN_BODY_RATE, MessageProgress, RateDeadline, announced,
};
use super::gzip::{self, DeflatedBody, InflateError, InflatedMessages, MessageEncoding};
use super::head;
use super::route::RefusalCounters;
use super::rpc_timer::RpcTimer;
use super::unary::{self, UnaryBody, UnaryRpc};
use etcd_types::errors::Error;
use runtime::budget::{Account, BudgetExceeded, Charge, Meter};
use telemetry::metrics::{InFlight, has_one_request};
use telemetry::otel::RpcSpan;
use telemetry::slow_requests::RpcLog;

/// The longest deadline that is enforced; a later one is ignored.
const MAX_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The limits of RPCs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RpcLimits {
    /// The longest message in bytes.
    pub(super) message: usize,
    /// The most operations in one list of a txn.
    pub(super) txn_ops: usize,
}

/// An RPC that has not begun.
pub(super) struct RpcCall {
    pub(super) grpc: Router,
    /// Answers it without tonic, if it is one of these.
    pub(super) unary: Option<Arc<dyn UnaryRpc>>,
    pub(super) limits: RpcLimits,
    pub(super) account: Account,
    pub(super) refusals: RefusalCounters,
    /// Counts messages of a client that may send several.
    pub(super) received: Option<IntCounter>,
    /// The log of slow RPCs, and the address of the client.
    pub(super) slow: Option<(RpcLog, Option<SocketAddr>)>,
}

impl RpcCall {
    /// Begins the RPC: a unary one when its whole request has arrived and there is memory for it.
    ///
    /// No async functions here and below: each argument of one is in its future twice.
    #[allow(clippy::manual_async_fn, reason = "its future is smaller")]
    pub(super) fn run<B>(mut self, mut request: Request<B>) -> impl Future<Output = Response<RpcBody>> + Send + use<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        async move {
            let begun = match self.admit(&mut request) {
                Err(refusal) => Err(refusal),
                Ok(admitted) if has_one_request(request.uri().path()) => {
                    let encoding = admitted.encoding;
                    let begun = self.one_request(request, admitted).await;
                    begun.map(|response| (response, encoding))
                }
                Ok(admitted) => self.stream(request, admitted).await,
            };
            match begun {
                Ok((response, encoding)) => self.encoded(response, encoding),
                Err(RpcRefusal::Exceeded(exceeded)) => {
                    self.refusals.exceeded(exceeded);
                    Error::TooManyRequests.status().into_http()
                }
                Err(RpcRefusal::Status(status)) => status.into_http(),
                Err(RpcRefusal::Stalled) => {
                    self.refusals.count("request_stalled");
                    Error::DeadlineExceeded.status().into_http()
                }
            }
        }
    }

    /// Charges an RPC before its request is read.
    fn admit<B>(&self, request: &mut Request<B>) -> Result<AdmittedRpc, RpcRefusal> {
        let meter = Meter::new(&self.account)?;
        request.extensions_mut().insert(meter.clone());
        Ok(AdmittedRpc {
            encoding: MessageEncoding::take(request.headers_mut())?,
            charge: self.account.charge(0)?,
            meter,
        })
    }

    /// Returns a response with its messages compressed, for a client that compresses.
    fn encoded(&self, mut response: Response<RpcBody>, encoding: MessageEncoding) -> Response<RpcBody> {
        if encoding == MessageEncoding::Gzip && !response.headers().contains_key(Status::GRPC_STATUS) {
            gzip::announce(response.headers_mut());
            let account = self.account.clone();
            return response.map(|body| Body::new(DeflatedBody::new(Body::new(body), account)).into());
        }
        response
    }

    /// Begins an RPC that may take several requests.
    async fn stream<B>(
        &mut self,
        request: Request<B>,
        admitted: AdmittedRpc,
    ) -> Result<(Response<RpcBody>, MessageEncoding), RpcRefusal>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let AdmittedRpc {
            encoding,
            charge,
            meter,
        } = admitted;
        let plain = self.account.charge(0)?;
        let received = self.received.take();
        let request = request.map(|body| {
            let framed = FramedMessages::new(body.map_err(axum::Error::new), charge, received);
            match encoding {
                MessageEncoding::Identity => Body::new(framed),
                MessageEncoding::Gzip => Body::new(InflatedMessages::new(framed, self.limits.message, plain)),
            }
        });
        Ok((self.call(request, meter).await, encoding))
    }

    /// Begins an RPC that takes one request.
    fn one_request<B>(
        &mut self,
        request: Request<B>,
        admitted: AdmittedRpc,
    ) -> impl Future<Output = Result<Response<RpcBody>, RpcRefusal>> + Send
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let AdmittedRpc {
            encoding,
            mut charge,
            meter,
        } = admitted;
        let (head, body) = request.into_parts();
        async move {
            let whole = self.read(body, &mut charge).await?;
            let (whole, inflated) = gzip::inflate(encoding, whole, self.limits.message, &self.account).await?;
            let mut charge = inflated.unwrap_or(charge);
            if let Some(message) = whole.get(MESSAGE_PREFIX_BYTES..) {
                charge.grow(decoded_bytes(head.uri.path(), message, self.limits.txn_ops)?)?;
            }
            let slow = self.slow.take();
            let timed = slow.and_then(|(log, client)| RpcTimer::begin(log, client, &head.uri, whole.clone()));
            // tonic has the error for a longer one.
            let is_short = whole.len() <= MESSAGE_PREFIX_BYTES.saturating_add(self.limits.message);
            let request = Request::from_parts(head, whole);
            let begun = match self.unary.take().filter(|_| is_short) {
                Some(rpc) => rpc.begin(request),
                None => Err(request),
            };
            let response = match begun {
                Ok(answer) => unary::respond(answer.await, meter),
                Err(request) => self.call(request.map(Body::from), meter).await,
            };
            // The memory of the request is charged as long as the log needs it.
            let Some(timed) = timed.and_then(RpcTimer::answered) else {
                drop(charge);
                return Ok(response);
            };
            let mut held = Some((timed, charge));
            Ok(response.map(|body| {
                let body = body.map_frame(move |frame| {
                    if let Some((timed, _charge)) = held.take() {
                        timed.end(frame.data_ref());
                    }
                    frame
                });
                Body::new(body).into()
            }))
        }
    }

    /// Reads the body of a request that is one message.
    async fn read<B>(&self, body: B, charge: &mut Charge) -> Result<Bytes, RpcRefusal>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        let mut read = BytesMut::new();
        let mut first = None;
        let mut due = RateDeadline::new(BODY_TIMEOUT, MIN_BODY_RATE);
        loop {
            let mut next = body.frame();
            let next = poll_fn(|cx| match Pin::new(&mut next).poll(cx) {
                Poll::Pending => due.poll(cx).map(|()| Err(RpcRefusal::Stalled)),
                Poll::Ready(next) => Poll::Ready(Ok(next)),
            });
            let Some(frame) = next.await? else { break };
            let Ok(bytes) = frame.map_err(refused)?.into_data() else {
                continue;
            };
            let earlier: Option<Bytes> = first.take();
            let len = earlier.as_ref().map_or(read.len(), Bytes::len) + bytes.len();
            due.moved(len);
            if len == bytes.len() {
                charge.set(len)?;
                first = Some(bytes);
            } else {
                // The buffer doubles, but not beyond the announced length.
                let announced =
                    announced(earlier.as_deref().unwrap_or(&read)).map_or(0, |len| MESSAGE_PREFIX_BYTES + len);
                if read.capacity() < len {
                    let capacity = len.max(announced.min(2 * len));
                    charge.set(capacity)?;
                    read.reserve(capacity - read.len());
                }
                read.extend(earlier);
                read.extend_from_slice(&bytes);
            }
            let so_far: &[u8] = first.as_deref().unwrap_or(&read);
            let len = announced(so_far).unwrap_or(0);
            // Too long according to its header, or longer than announced: the service refuses it.
            if len > self.limits.message || so_far.len() > MESSAGE_PREFIX_BYTES + len {
                break;
            }
        }
        Ok(first.unwrap_or_else(|| read.freeze()))
    }

    async fn call(&mut self, request: Request<Body>, meter: Meter) -> Response<RpcBody> {
        let response = self.grpc.call(request).await.unwrap_or_else(|never| match never {});
        response.map(|body| Body::new(MeteredBody { body, meter }).into())
    }
}

/// An RPC that may read its request.
struct AdmittedRpc {
    encoding: MessageEncoding,
    /// For the request, as it grows.
    charge: Charge,
    /// For the answer.
    meter: Meter,
}

/// The reason why an RPC was not begun.
enum RpcRefusal {
    Exceeded(BudgetExceeded),
    Status(Status),
    Stalled,
}

impl From<BudgetExceeded> for RpcRefusal {
    fn from(exceeded: BudgetExceeded) -> Self {
        RpcRefusal::Exceeded(exceeded)
    }
}

impl From<Status> for RpcRefusal {
    fn from(status: Status) -> Self {
        RpcRefusal::Status(status)
    }
}

impl From<InflateError> for RpcRefusal {
    fn from(unreadable: InflateError) -> Self {
        match unreadable {
            InflateError::Exceeded(exceeded) => RpcRefusal::Exceeded(exceeded),
            InflateError::Status(status) => RpcRefusal::Status(status),
        }
    }
}

impl From<Error> for RpcRefusal {
    fn from(error: Error) -> Self {
        RpcRefusal::Status(error.into())
    }
}

/// Converts an error of the client's body, or the lack of memory for it.
fn refused(error: impl Into<BoxError>) -> RpcRefusal {
    let status = Status::from_error(error.into());
    if status.message() == Error::TooManyRequests.text() {
        RpcRefusal::Exceeded(BudgetExceeded::Connection)
    } else {
        RpcRefusal::Status(status)
    }
}

/// Returns the deadline of the client, from its `grpc-timeout`, which was [judged](super::head::refuse).
pub(super) fn deadline(headers: &HeaderMap) -> Option<Instant> {
    let time = head::timeout(headers.get(head::TIMEOUT_HEADER)?.as_bytes()).ok()?;
    (time < MAX_DEADLINE).then(|| Instant::now() + time)
}

/// Awaits the outcome of a call until its deadline. Then the call is dropped: parts that have not begun do not begin any more.
pub(super) fn within(
    deadline: Option<Instant>,
    pending: impl Future<Output = Response<RpcBody>>,
) -> impl Future<Output = Response<RpcBody>> {
    let exceeded = || Error::DeadlineExceeded.status().into_http();
    match deadline {
        None => pending.left_future(),
        // Otherwise an answer that is ready at once would be given.
        Some(deadline) if deadline <= Instant::now() => ready(exceeded()).left_future().right_future(),
        Some(deadline) => tokio::time::timeout_at(deadline, pending)
            .map(move |answered| answered.unwrap_or_else(|_| exceeded()))
            .right_future()
            .right_future(),
    }
}

/// Records the outcome of an RPC: metrics and a span. If it is dropped before the outcome is known, the client has disconnected.
pub(super) struct RpcObserver {
    pub(super) in_flight: Option<InFlight>,
    pub(super) span: Option<RpcSpan>,
}

impl RpcObserver {
    /// Takes the status of the RPC, which `headers` contain.
    fn end(self, code: Code, headers: &HeaderMap) {
        if let Some(in_flight) = self.in_flight {
            in_flight.end(code);
        }
        if let Some(span) = self.span {
            span.end(code, || {
                Status::from_header_map(headers).map_or_else(String::new, |status| status.message().to_owned())
            });
        }
    }
}

/// Counts the outcome of an RPC whose service has responded, at its deadline at the latest.
pub(super) fn answer(
    response: Response<RpcBody>,
    uri: Uri,
    observed: RpcObserver,
    deadline: Option<Instant>,
) -> Response<AnswerBody> {
    let (mut parts, body) = response.into_parts();
    let mut body = AnswerBody {
        body,
        uri,
        sent: None,
        observed: None,
        deadline: None,
        is_over: false,
    };
    // A response without messages carries its status in its head.
    if let Some(code) = mend(&mut parts.headers, &body.uri) {
        observed.end(code, &parts.headers);
        return Response::from_parts(parts, body);
    }
    let sent = observed.in_flight.as_ref().and_then(InFlight::sent);
    body.sent = sent.map(|sent| (sent, MessageProgress::default()));
    body.observed = Some(observed);
    body.deadline = deadline
        .filter(|_| !body.body.is_unary())
        .map(|deadline| Box::pin(sleep_until(deadline)));
    Response::from_parts(parts, body)
}

/// The body of an answer: of tonic, or of a [unary RPC](super::unary) without it.
#[derive(Debug)]
pub(super) enum RpcBody {
    Tonic(Body),
    Unary(UnaryBody),
}

impl RpcBody {
    /// Returns true if it is complete: it waits for nothing.
    fn is_unary(&self) -> bool {
        matches!(self, RpcBody::Unary(_))
    }
}

impl Default for RpcBody {
    fn default() -> Self {
        RpcBody::Tonic(Body::empty())
    }
}

impl From<Body> for RpcBody {
    fn from(body: Body) -> Self {
        RpcBody::Tonic(body)
    }
}

impl http_body::Body for RpcBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            RpcBody::Tonic(body) => Pin::new(body).poll_frame(cx),
            RpcBody::Unary(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RpcBody::Tonic(body) => body.is_end_stream(),
            RpcBody::Unary(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RpcBody::Tonic(body) => body.size_hint(),
            RpcBody::Unary(body) => body.size_hint(),
        }
    }
}

/// A body that keeps the charge of its request until it is encoded.
struct MeteredBody {
    body: Body,
    meter: Meter,
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.meter.release();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose trailers contain the outcome of the RPC.
pub(super) struct AnswerBody {
    body: RpcBody,
    uri: Uri,
    /// Counts messages of an answer that may have several.
    sent: Option<(IntCounter, MessageProgress)>,
    /// Until the outcome is known.
    observed: Option<RpcObserver>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// True if the deadline ended it.
    is_over: bool,
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending()
            && let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.is_over = true;
            self.body = RpcBody::default();
            let mut trailers = HeaderMap::new();
            if Error::DeadlineExceeded.status().add_header(&mut trailers).is_ok() {
                polled = Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
            && let Some((sent, progress)) = &mut self.sent
        {
            sent.inc_by(progress.take(bytes));
        }
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
            && let Some(code) = mend(trailers, &self.uri)
            && let Some(observed) = self.observed.take()
        {
            observed.end(code, trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        !self.is_over && self.body.is_end_stream() || self.is_over && self.observed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the status code in headers or trailers, if there is one, and converts its text to that of grpc-go.
fn mend(headers: &mut HeaderMap, uri: &Uri) -> Option<Code> {
    let code = Code::from_bytes(headers.get(Status::GRPC_STATUS)?.as_bytes());
    let better = match code {
        Code::OutOfRange | Code::Unimplemented => {
            Status::from_header_map(headers).and_then(|status| reword(&status, uri))
        }
        _ => None,
    };
    let Some(better) = better else { return Some(code) };
    match better.add_header(headers) {
        Ok(()) => Some(better.code()),
        Err(_) => Some(code), // the text does not fit into a header: keep tonic's
    }
}

fn reword(status: &Status, uri: &Uri) -> Option<Status> {
    match status.code() {
        Code::OutOfRange => too_large(status.message()),
        Code::Unimplemented if status.message().is_empty() => Some(head::unknown(uri.path())),
        _ => None,
    }
}

/// Converts tonic's text for messages that are too long to grpc-go's.
fn too_large(text: &str) -> Option<Status> {
    let rest = text.strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
    let limit = rest.strip_suffix(" bytes")?;
    Some(Status::resource_exhausted(format!(
        "grpc: received message larger than max ({found} vs. {limit})"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_grpc_go() {
        let tonic = "Error, decoded message length too large: found 3000000 bytes, the limit is: 2097152 bytes";
        for (before, after) in [
            (
                Status::out_of_range(tonic),
                (
                    Code::ResourceExhausted,
                    "grpc: received message larger than max (3000000 vs. 2097152)",
                ),
            ),
            (
                Status::out_of_range("etcdserver: mvcc: required revision has been compacted"),
                (
                    Code::OutOfRange,
                    "etcdserver: mvcc: required revision has been compacted",
                ),
            ),
            (
                Status::unimplemented(""),
                (Code::Unimplemented, "unknown method No for service etcdserverpb.KV"),
            ),
            (Status::unimplemented("why"), (Code::Unimplemented, "why")),
            (Status::not_found("x"), (Code::NotFound, "x")),
        ] {
            let mut headers = HeaderMap::new();
            before.add_header(&mut headers).unwrap();
            assert_eq!(
                mend(&mut headers, &Uri::from_static("/etcdserverpb.KV/No")),
                Some(after.0)
            );
            let status = Status::from_header_map(&headers).unwrap();
            assert_eq!((status.code(), status.message()), after);
        }
        assert_eq!(mend(&mut HeaderMap::new(), &Uri::from_static("/a/b")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_that_is_over_lets_no_answer_through() {
        let answer = || ready(Response::new(RpcBody::default()));
        let mut headers = HeaderMap::new();
        for (timeout, is_answered) in [("1S", true), ("99999999H", true), ("0n", false)] {
            headers.insert(head::TIMEOUT_HEADER, timeout.parse().unwrap());
            let response = within(deadline(&headers), answer()).await;
            assert_eq!(
                Status::from_header_map(response.headers()).is_none(),
                is_answered,
                "{timeout}"
            );
        }
    }
}
