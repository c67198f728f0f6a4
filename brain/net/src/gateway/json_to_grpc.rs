//! From an HTTP request to the RPC, and from its answer to an HTTP response.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame};
use prost_reflect::MessageDescriptor;
use tonic::{Code, Status};
use tower::BoxError;

use super::body::{self, RequestMessages};
use super::error::GatewayRefusal;
use super::methods::RpcMethod;
use super::{json, metadata, translation_limit};
use etcd_types::errors::Error;
use runtime::budget::{Account, BudgetExceeded, Charge};

/// The beginning of a line with a message.
const RESULT_LINE_START: &[u8] = b"{\"result\":";

/// Bytes of a large answer.
const LARGE_ANSWER_BYTES: usize = 256 << 10;

/// The RPC of a request: its path, its limits and the account that its memory is charged to.
pub(crate) struct GatewayCall {
    pub(crate) method: &'static RpcMethod,
    /// Longest message in bytes.
    pub(crate) message: usize,
    pub(crate) account: Account,
}

impl GatewayCall {
    /// Answers a request. `call` makes the RPC; `exceeded` counts requests that there is no memory for.
    pub(crate) async fn answer<B, F>(
        self,
        request: Request<B>,
        call: impl FnOnce(Request<Body>) -> F,
        exceeded: impl FnOnce(BudgetExceeded),
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        F: Future<Output = Result<Response<Body>, Infallible>>,
    {
        if request.method() != HttpMethod::POST {
            return failure(&Status::unimplemented("Method Not Allowed"));
        }
        let (parts, body) = request.into_parts();
        let outcome = async {
            let metadata = metadata::of(&parts.headers)?;
            let (body, _charge) = self.requests(body).await?;
            let request = self.rpc(parts, metadata, body)?;
            let response = call(request).await.unwrap_or_else(|never| match never {});
            self.response(response).await
        };
        match outcome.await {
            Ok(response) => response,
            Err(GatewayRefusal::Status(status)) => failure(&status),
            Err(GatewayRefusal::Exceeded(why)) => {
                exceeded(why);
                failure(&Error::TooManyRequests.status())
            }
        }
    }

    /// The messages of a request, and what is charged for its text.
    async fn requests<B>(&self, body: B) -> Result<(Body, Option<Charge>), GatewayRefusal>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let input = &self.method.input;
        if self.method.takes_stream {
            let charge = self.account.charge(0)?;
            let requests = RequestMessages::new(body, input.clone(), (self.message, charge));
            return Ok((Body::new(requests), None));
        }
        let (frame, charge) = body::one(body, input, (self.message, &self.account)).await?;
        Ok((Body::from(frame), Some(charge)))
    }

    /// The request that a gRPC client would send.
    fn rpc(&self, parts: Parts, metadata: HeaderMap, body: Body) -> Result<Request<Body>, Status> {
        let mut request = Request::new(body);
        *request.method_mut() = HttpMethod::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self
            .method
            .rpc
            .parse::<Uri>()
            .map_err(|error| Status::internal(error.to_string()))?;
        *request.extensions_mut() = parts.extensions;
        *request.headers_mut() = metadata;
        Ok(request)
    }

    async fn response(&self, response: Response<Body>) -> Result<Response<Body>, GatewayRefusal> {
        let (parts, body) = response.into_parts();
        if let Some(ended) = ended(&parts.headers) {
            let status = ended.err().unwrap_or_else(|| Status::internal("no answer"));
            return match self.method.answers_stream {
                true => Ok(stream_failure(&status)),
                false => Err(status.into()),
            };
        }
        let charge = self.account.charge(0)?;
        let mut lines = AnswerLines {
            body,
            kind: self.method.output.clone(),
            buffer: BytesMut::new(),
            next: None,
            charge,
            translating: None,
            is_over: false,
        };
        if !self.method.answers_stream {
            return Ok(success(Body::from(lines.only().await?)));
        }
        // If an RPC fails before its first answer, the status reports that.
        match lines.message().await {
            Ok(Some(message)) => {
                lines.next = Some(message);
                Ok(success(Body::new(lines)))
            }
            Ok(None) => Ok(Response::new(Body::new(lines))),
            Err(GatewayRefusal::Status(status)) => Ok(stream_failure(&status)),
            Err(exceeded) => Err(exceeded),
        }
    }
}

/// The outcome that headers or trailers carry, if they do.
fn ended(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let status = Status::from_header_map(headers)?;
    Some(match status.code() {
        Code::Ok => Ok(()),
        _ => Err(status),
    })
}

/// The answers of an RPC as lines of JSON.
struct AnswerLines {
    body: Body,
    kind: MessageDescriptor,
    buffer: BytesMut,
    /// A message that was read already.
    next: Option<Bytes>,
    /// Charged for the message at hand and its JSON.
    charge: Charge,
    /// A large one that is being translated.
    translating: Option<BoxFuture<'static, Result<Vec<u8>, Status>>>,
    is_over: bool,
}

impl AnswerLines {
    /// The next message; none where the RPC has ended well.
    async fn message(&mut self) -> Result<Option<Bytes>, GatewayRefusal> {
        Ok(poll_fn(|cx| self.poll_message(cx)).await?)
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = self.next.take().or_else(|| json::next_message(&mut self.buffer)) {
                if self.charge.set(json::memory(&message, &self.kind)).is_err() {
                    self.end();
                    return Poll::Ready(Err(Error::TooManyRequests.status()));
                }
                return Poll::Ready(Ok(Some(message)));
            }
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            if self.buffer.is_empty() {
                // It would keep the memory of the last message until the next one.
                self.buffer = BytesMut::new();
            }
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => {
                        self.is_over = true;
                        let trailers = frame.into_trailers().unwrap_or_default();
                        if let Some(Err(status)) = ended(&trailers) {
                            return Poll::Ready(Err(status));
                        }
                    }
                },
                Some(Err(error)) => {
                    self.is_over = true;
                    return Poll::Ready(Err(Status::from_error(error.into())));
                }
                None => self.is_over = true,
            }
        }
    }

    /// Ends the stream: nothing follows an error.
    fn end(&mut self) {
        self.is_over = true;
        self.buffer.clear();
        self.body = Body::empty();
    }

    /// The JSON of the only message.
    async fn only(&mut self) -> Result<Bytes, GatewayRefusal> {
        let Some(message) = self.message().await? else {
            return Err(Status::internal("the RPC ended without an answer").into());
        };
        // The outcome follows it.
        while self.message().await?.is_some() {}
        self.charge.set(json::memory(&message, &self.kind))?;
        let text = text(b"", message, self.kind.clone()).await?;
        Ok(self.held(text))
    }

    /// Text that stays charged until it is sent.
    fn held(&mut self, text: Vec<u8>) -> Bytes {
        let charge = self.charge.split(text.len());
        charge.moved(text.len());
        // The message is gone, and the next one may never come.
        self.charge.shrink(usize::MAX);
        Bytes::from_owner(ChargedText { text, _charge: charge })
    }

    /// Returns the line of a message that was translated after [`RESULT_LINE_START`].
    fn line(&mut self, text: Result<Vec<u8>, Status>) -> Bytes {
        let line = match text {
            Ok(mut line) => {
                line.extend_from_slice(b"}\n");
                line
            }
            Err(status) => {
                self.end();
                error_line(&status).into_bytes()
            }
        };
        self.held(line)
    }
}

/// Returns the JSON of a message, after `start`.
async fn text(start: &'static [u8], message: Bytes, kind: MessageDescriptor) -> Result<Vec<u8>, Status> {
    match message.len() > LARGE_ANSWER_BYTES {
        true => translation_limit::on_a_turn(move || text_at_once(start, &message, &kind)).await?,
        false => text_at_once(start, &message, &kind),
    }
}

fn text_at_once(start: &[u8], message: &[u8], kind: &MessageDescriptor) -> Result<Vec<u8>, Status> {
    let mut text = Vec::with_capacity(start.len() + message.len() * 3 / 2);
    text.extend_from_slice(start);
    json::from_message(message, kind, &mut text)?;
    Ok(text)
}

/// Text of an answer, and what is charged for it.
struct ChargedText {
    text: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for ChargedText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl http_body::Body for AnswerLines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let text = if let Some(translating) = &mut self.translating {
                let text = std::task::ready!(translating.as_mut().poll(cx));
                self.translating = None;
                text
            } else {
                match std::task::ready!(self.poll_message(cx)) {
                    Ok(None) => return Poll::Ready(None),
                    Ok(Some(message)) if message.len() > LARGE_ANSWER_BYTES => {
                        self.translating = Some(Box::pin(text(RESULT_LINE_START, message, self.kind.clone())));
                        continue;
                    }
                    Ok(Some(message)) => text_at_once(RESULT_LINE_START, &message, &self.kind),
                    Err(status) => Err(status),
                }
            };
            let line = self.line(text);
            return Poll::Ready(Some(Ok(Frame::data(line))));
        }
    }
}

fn success(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        "grpc-metadata-content-type",
        HeaderValue::from_static("application/grpc"),
    );
    response
}

/// The answer to an RPC with a stream of answers that failed before the first one.
fn stream_failure(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(error_line(status)));
    *response.status_mut() = http_status(status.code());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to an RPC that failed.
pub(crate) fn failure(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::from(describe(status)));
    *response.status_mut() = http_status(status.code());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status.code() == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(status.message())
    {
        headers.insert(WWW_AUTHENTICATE, text);
    }
    response
}

/// The line that ends a stream of answers.
fn error_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", describe(status))
}

/// The JSON of `google.rpc.Status`.
fn describe(status: &Status) -> String {
    let (code, message) = (i32::from(status.code()), status.message());
    serde_json::json!({"code": code, "message": message}).to_string()
}

/// The status of HTTP for a code of gRPC: grpc-gateway's table.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;
    use prost::Message as _;

    use super::*;
    use crate::gateway::methods::{MethodLookup, find};
    use etcd_types::pb::etcdserverpb::watch_request::RequestUnion;
    use etcd_types::pb::etcdserverpb::{WatchRequest, WatchResponse};
    use runtime::budget::Budget;

    /// Answers each request by its key.
    async fn echo(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let mut requests = BytesMut::from(&request.into_body().collect().await.unwrap().to_bytes()[..]);
        let mut answers = BytesMut::new();
        while let Some(message) = json::next_message(&mut requests) {
            let Some(RequestUnion::CreateRequest(create)) = WatchRequest::decode(message).unwrap().request_union else {
                panic!("not what was sent");
            };
            let answer = WatchResponse {
                cancel_reason: String::from_utf8(create.key.to_vec()).unwrap(),
                ..WatchResponse::default()
            };
            answers.extend_from_slice(&[0]);
            answers.extend_from_slice(&u32::try_from(answer.encoded_len()).unwrap().to_be_bytes());
            answers.extend_from_slice(&answer.encode_to_vec());
        }
        Ok(Response::new(Body::from(answers.freeze())))
    }

    /// The exchange of watches, and the bytes that are charged.
    fn watches() -> (GatewayCall, prometheus::IntGauge) {
        let MethodLookup::Method(method) = find("/v3/watch") else {
            panic!("no method")
        };
        let held = prometheus::IntGauge::new("held", "held").unwrap();
        let account = Budget::new(64 << 20, held.clone()).account(None);
        let exchange = GatewayCall {
            method,
            message: 4 << 20,
            account,
        };
        (exchange, held)
    }

    #[tokio::test]
    async fn large_messages_of_a_stream_stay_in_their_order() {
        let (exchange, held) = watches();
        let keys = [1, 2 * LARGE_ANSWER_BYTES, 2, 3, 3 * LARGE_ANSWER_BYTES].map(|len| "k".repeat(len));
        let requests = keys
            .each_ref()
            .map(|key| format!(r#"{{"create_request":{{"key":"{}"}}}}"#, STANDARD.encode(key)));
        let request = Request::post("/v3/watch").body(Body::from(requests.concat())).unwrap();
        let answer = exchange.answer(request, echo, |exceeded| panic!("{exceeded:?}")).await;
        let lines = answer.into_body().collect().await.unwrap().to_bytes();
        let expected = keys.map(|key| format!("{{\"result\":{{\"cancel_reason\":\"{key}\"}}}}\n"));
        assert!(lines == expected.concat(), "{} bytes", lines.len());
        assert_eq!(held.get(), 0);
    }

    #[tokio::test]
    async fn stream_that_fails_at_once_has_one_line() {
        let (exchange, _) = watches();
        let refuse = async |_| Ok(Status::unauthenticated("who").into_http());
        let request = Request::post("/v3/watch").body(Body::empty()).unwrap();
        let answer = exchange
            .answer(request, refuse, |exceeded| panic!("{exceeded:?}"))
            .await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert!(!answer.headers().contains_key(WWW_AUTHENTICATE));
        let line = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(line, "{\"error\":{\"code\":16,\"message\":\"who\"}}\n");
    }

    #[tokio::test]
    async fn stream_that_waits_for_its_next_message_holds_no_memory_of_the_last() {
        let (exchange, held) = watches();
        // One answer, and none after it.
        let once = async |request: Request<Body>| {
            let answer = echo(request).await?.into_body().collect().await.unwrap().to_bytes();
            let answers = futures::stream::iter([Ok::<_, Infallible>(Frame::data(answer))]);
            let answers = answers.chain(futures::stream::pending());
            Ok(Response::new(Body::new(http_body_util::StreamBody::new(answers))))
        };
        let asked = STANDARD.encode("k".repeat(1_000));
        let asked = format!(r#"{{"create_request":{{"key":"{asked}"}}}}"#);
        let request = Request::post("/v3/watch").body(Body::from(asked)).unwrap();
        let answer = exchange.answer(request, once, |exceeded| panic!("{exceeded:?}")).await;
        let mut lines = answer.into_body();
        let line = lines.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(line.starts_with(b"{\"result\""), "{line:?}");
        drop(line);
        assert_eq!(held.get(), 0);
        drop(lines);
    }
}
