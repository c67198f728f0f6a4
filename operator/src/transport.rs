//! Middleware for all requests to the API server. It counts them, refuses writes while this replica does not lead, and records the answers
//! to writes in the expectations. No caller can bypass it.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use crate::expectations::Expectations;
use crate::leadership::{Leadership, NotLeading};
use crate::metrics::{Metrics, RequestVerb};

/// Body of an answer.
type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// Layer for a client of the API server.
#[derive(Clone)]
pub(crate) struct LeadershipFence {
    pub(crate) leadership: Leadership,
    pub(crate) metrics: Metrics,
    pub(crate) expectations: Expectations,
}

impl<S> Layer<S> for LeadershipFence {
    type Service = FencedService<S>;

    fn layer(&self, inner: S) -> FencedService<S> {
        FencedService {
            fence: self.clone(),
            inner,
        }
    }
}

/// The fenced inner service.
#[derive(Clone)]
pub(crate) struct FencedService<S> {
    fence: LeadershipFence,
    inner: S,
}

impl<S, B> Service<Request<Body>> for FencedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(&request);
        let writes = !matches!(verb, RequestVerb::Get | RequestVerb::List | RequestVerb::Watch);
        if writes && !self.fence.leadership.is_leading() {
            return std::future::ready(Err(NotLeading.into())).boxed();
        }
        self.fence.metrics.requested(verb);
        let method = request.method().clone();
        let path = writes.then(|| request.uri().path().to_owned());
        let (expectations, answer) = (self.fence.expectations.clone(), self.inner.call(request));
        async move {
            let (head, body) = answer.await.map_err(Into::into)?.into_parts();
            let Some(path) = path else {
                return Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
            };
            let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
            expectations.record(&method, &path, head.status, &bytes);
            let body = Full::new(bytes).map_err(|never| match never {});
            Ok(Response::from_parts(head, body.boxed_unsync()))
        }
        .boxed()
    }
}

/// Returns the Kubernetes verb of a request.
fn verb(request: &Request<Body>) -> RequestVerb {
    let query = request.uri().query().unwrap_or_default();
    match *request.method() {
        Method::GET | Method::HEAD if query.split('&').any(|part| part == "watch=true" || part == "watch=1") => {
            RequestVerb::Watch
        }
        Method::GET | Method::HEAD if is_named(request.uri().path()) => RequestVerb::Get,
        Method::GET | Method::HEAD => RequestVerb::List,
        Method::POST => RequestVerb::Create,
        Method::PUT => RequestVerb::Update,
        Method::DELETE => RequestVerb::Delete,
        _ => RequestVerb::Patch,
    }
}

/// Returns true if a path names one object, or the resources of a group, rather than a collection.
fn is_named(path: &str) -> bool {
    let parts = path.trim_matches('/').split('/').count();
    let prefix = if path.starts_with("/apis/") { 3 } else { 2 };
    let scope = if path.contains("/namespaces/") { 2 } else { 0 };
    parts != prefix + scope + 1
}
