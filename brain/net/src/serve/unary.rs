//! Unary RPCs without streams: a request that was read whole is decoded where it is, and its answer is encoded once, in its own length.
//!
//! tonic takes a unary RPC for a stream in both directions: it copies the request into a buffer of 8 KiB, encodes the answer into another
//! one, and boxes both bodies and what is around them. Requests that are not one plain message of an RPC that is known here are left to
//! it, with its errors.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use prost::Message;
use tonic::Status;

use super::framing::{MESSAGE_PREFIX_BYTES, announced};
use super::rpc::RpcBody;
use runtime::budget::Meter;

/// The longest message of an answer in bytes, as of grpc-go.
const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// Metadata of an answer that the server sets itself, as tonic's server does. An answer of the leader that a follower passes on has it.
const RESERVED_HEADERS: [&str; 5] = ["te", "content-type", "grpc-message", "grpc-message-type", "grpc-status"];

/// RPCs of one request and one answer, by their paths. Clones share them.
#[derive(Clone, Default)]
pub struct UnaryRpcs(Arc<HashMap<&'static str, Arc<dyn UnaryRpc>>>);

/// The answer of an RPC: its message with the prefix, and metadata.
type UnaryFuture = Pin<Box<dyn Future<Output = Result<(HeaderMap, Bytes), Status>> + Send>>;

/// An RPC of one request and one answer.
pub(super) trait UnaryRpc: Send + Sync {
    /// Begins the RPC. Returns its request if it is not one message that can be decoded.
    #[allow(clippy::result_large_err, reason = "the request, for tonic")]
    fn begin(&self, request: Request<Bytes>) -> Result<UnaryFuture, Request<Bytes>>;
}

impl UnaryRpcs {
    /// Adds an RPC. Its request must have been read whole.
    #[must_use]
    pub fn with<Q, A, F>(
        self,
        path: &'static str,
        answer: impl Fn(tonic::Request<Q>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        Q: Message + Default + 'static,
        A: Message + 'static,
        F: Future<Output = Result<tonic::Response<A>, Status>> + Send + 'static,
    {
        let handler = UnaryHandler {
            answer,
            request: PhantomData,
        };
        let mut rpcs = Arc::unwrap_or_clone(self.0);
        rpcs.insert(path, Arc::new(handler));
        Self(Arc::new(rpcs))
    }

    pub(super) fn get(&self, path: &str) -> Option<Arc<dyn UnaryRpc>> {
        self.0.get(path).cloned()
    }
}

struct UnaryHandler<Q, F> {
    answer: F,
    request: PhantomData<fn(Q)>,
}

impl<Q, A, F, H> UnaryRpc for UnaryHandler<Q, H>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<tonic::Response<A>, Status>> + Send + 'static,
    H: Fn(tonic::Request<Q>) -> F + Send + Sync,
{
    fn begin(&self, request: Request<Bytes>) -> Result<UnaryFuture, Request<Bytes>> {
        let Some(message) = decoded(request.body()) else {
            return Err(request);
        };
        let answer = (self.answer)(tonic::Request::from_http(request.map(|_| message)));
        Ok(Box::pin(async move {
            let (metadata, message, _) = answer.await?.into_parts();
            let mut headers = metadata.into_headers();
            for name in RESERVED_HEADERS {
                headers.remove(name);
            }
            Ok((headers, framed(&message)?))
        }))
    }
}

/// Returns the message of a body that is one message, neither compressed nor damaged.
fn decoded<Q: Message + Default>(body: &Bytes) -> Option<Q> {
    let is_whole = announced(body).is_some_and(|len| MESSAGE_PREFIX_BYTES + len == body.len());
    if body.first() != Some(&0) || !is_whole {
        return None;
    }
    Q::decode(body.slice(MESSAGE_PREFIX_BYTES..)).ok()
}

/// Returns a message as the body of an answer.
fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let len = message.encoded_len();
    if len > MAX_MESSAGE_BYTES {
        return Err(Status::out_of_range(format!(
            "Error, encoded message length too large: found {len} bytes, the limit is: {MAX_MESSAGE_BYTES} bytes"
        )));
    }
    let mut bytes = BytesMut::with_capacity(MESSAGE_PREFIX_BYTES + len);
    bytes.put_u8(0);
    bytes.put_u32(len as u32);
    message.encode_raw(&mut bytes);
    Ok(bytes.freeze())
}

/// Returns the response to an RPC. `meter` charged its answer, before it was encoded.
pub(super) fn respond(answered: Result<(HeaderMap, Bytes), Status>, meter: Meter) -> Response<RpcBody> {
    let (mut headers, message) = match answered {
        Ok(answer) => answer,
        Err(status) => return status.into_http(),
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut response = Response::new(RpcBody::Unary(UnaryBody {
        message: Some(message),
        is_over: false,
        meter,
    }));
    *response.headers_mut() = headers;
    response
}

/// The answer of an RPC, and the trailers that follow it.
#[derive(Debug)]
pub(super) struct UnaryBody {
    message: Option<Bytes>,
    is_over: bool,
    meter: Meter,
}

impl http_body::Body for UnaryBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(message) = self.message.take() {
            // Charged in its encoded form from here on.
            self.meter.release();
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_types::pb::healthpb::{HealthCheckRequest, HealthCheckResponse};

    #[tokio::test]
    async fn status_of_an_answer_that_is_passed_on_is_not_in_its_head() {
        let rpcs = UnaryRpcs::default().with("/check", |_: tonic::Request<HealthCheckRequest>| async {
            let mut answer = tonic::Response::new(HealthCheckResponse::default());
            for name in RESERVED_HEADERS.into_iter().chain(["own"]) {
                answer.metadata_mut().insert(name, "0".parse().unwrap());
            }
            Ok(answer)
        });
        let request = Request::new(framed(&HealthCheckRequest::default()).unwrap());
        let begun = rpcs.get("/check").unwrap().begin(request);
        let (headers, _) = begun.ok().unwrap().await.unwrap();
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["own"]);
    }
}
