//! What every RPC goes through: counted by its outcome, and with the texts of grpc-go where tonic has its own.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Response, Uri};
use http_body::{Frame, SizeHint};
use tonic::{Code, Status};

use crate::metrics::{InFlight, is_service};

/// Awaits the answer of the service and counts how the RPC ends.
pub(super) async fn answer(
    pending: impl Future<Output = Result<Response<Body>, Infallible>>,
    uri: Uri,
    in_flight: Option<InFlight>,
) -> Result<Response<Body>, Infallible> {
    let (mut parts, body) = pending.await?.into_parts();
    // An answer without messages carries its status in its head.
    if let Some(code) = mend(&mut parts.headers, &uri) {
        if let Some(in_flight) = in_flight {
            in_flight.end(code);
        }
        return Ok(Response::from_parts(parts, body));
    }
    let body = Body::new(Answer { body, uri, in_flight });
    Ok(Response::from_parts(parts, body))
}

/// A body whose trailers tell how the RPC ended.
struct Answer {
    body: Body,
    uri: Uri,
    in_flight: Option<InFlight>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
            && let Some(code) = mend(trailers, &self.uri)
            && let Some(in_flight) = self.in_flight.take()
        {
            in_flight.end(code);
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

/// The code that the headers or trailers carry, if they do; its text is brought into the shape of grpc-go.
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
        Code::Unimplemented if status.message().is_empty() => Some(unknown(uri.path())),
        _ => None,
    }
}

/// From tonic's text for messages that are too long to grpc-go's.
fn too_large(text: &str) -> Option<Status> {
    let rest = text.strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
    let limit = rest.strip_suffix(" bytes")?;
    Some(Status::resource_exhausted(format!(
        "grpc: received message larger than max ({found} vs. {limit})"
    )))
}

/// The answer to calls of what is not served here.
pub(super) fn unknown(path: &str) -> Status {
    Status::unimplemented(match path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        Some((service, method)) if is_service(service) => format!("unknown method {method} for service {service}"),
        Some((service, _)) => format!("unknown service {service}"),
        None => format!("malformed method name: {path:?}"),
    })
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

    #[test]
    fn unknown_names_are_told_apart() {
        for (path, text) in [
            ("/etcdserverpb.KV/No", "unknown method No for service etcdserverpb.KV"),
            ("/no.Such/Get", "unknown service no.Such"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            assert_eq!(unknown(path).message(), text);
        }
    }
}
