//! Dispatches requests to gRPC or HTTP, and adds the caller's address and certificates, and for gRPC the limits.

use std::convert::Infallible;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode, Version};
use opentelemetry::trace::FutureExt as _;
use prometheus::IntCounterVec;
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo, UdsConnectInfo};
use tower::{BoxError, Service};
use tracing::{Instrument as _, warn};

use super::connections::ConnectionState;
use super::peer_admission::PeerId;
use super::rpc::{self, AnswerBody, RpcLimits, RpcObserver};
use super::unary::UnaryRpcs;
use super::{head, path};
use crate::gateway::{self, GatewayCall, MethodLookup, websocket};
use crate::http::{Cors, OverTls};
use crate::require_leader::refuses;
use etcd_types::errors::Error;
use runtime::budget::BudgetExceeded;
use runtime::log_once::LogOnce;
use telemetry::metrics::{GrpcMetrics, InFlight, NetworkMetrics};
use telemetry::otel::{RpcSpan, Tracing};
use telemetry::slow_requests::RpcLog;

/// The routers of the ports: the same on all ports.
pub(super) struct PortRouters {
    pub(super) grpc: Router,
    /// RPCs that are answered without the router.
    pub(super) unary: UnaryRpcs,
    pub(super) http: Router,
    /// True if there is a leader, for gRPC clients that require one.
    pub(super) has_leader: Option<watch::Receiver<bool>>,
    /// The log of slow RPCs, if they are logged.
    pub(super) slow: Option<RpcLog>,
    /// The tracer of RPCs.
    pub(super) tracing: Tracing,
}

/// The routes of one port.
#[derive(Clone)]
pub(super) struct PortRoutes {
    /// The current routers.
    pub(super) answers: Arc<ArcSwap<PortRouters>>,
    /// True if a store serves requests.
    pub(super) opened: watch::Receiver<bool>,
    /// True if gRPC is served here.
    pub(super) grpc: bool,
    /// True if HTTP is served here.
    pub(super) http: bool,
    /// True if the JSON gateway is served beside it.
    pub(super) gateway: bool,
    /// The policy in front of HTTP, if there is one.
    pub(super) cors: Option<Cors>,
    pub(super) metrics: GrpcMetrics,
    /// The limits of RPCs.
    pub(super) limits: RpcLimits,
    pub(super) refusals: RefusalCounters,
}

/// Counts requests that were refused or reset because of the memory held by them or by their connections.
#[derive(Debug, Clone)]
pub(super) struct RefusalCounters {
    by_reason: IntCounterVec,
    log: LogOnce,
}

impl RefusalCounters {
    pub(super) fn new(network: &NetworkMetrics) -> Self {
        Self {
            by_reason: network.refused.clone(),
            log: LogOnce::default(),
        }
    }

    pub(super) fn count(&self, reason: &'static str) {
        self.by_reason.with_label_values(&[reason]).inc();
        if let Some(count) = self.log.due() {
            warn!(reason, count, "requests of clients were refused or reset");
        }
    }

    pub(super) fn exceeded(&self, exceeded: BudgetExceeded) {
        self.count(match exceeded {
            BudgetExceeded::Connection => "connection_memory",
            BudgetExceeded::Address => "address_memory",
            BudgetExceeded::Total => "total_memory",
        });
    }
}

/// The other end of a connection, in the types that tonic's requests expect.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    Tcp(TcpConnectInfo),
    TcpTls(TlsConnectInfo<TcpConnectInfo>),
    Unix(UdsConnectInfo),
    UnixTls(TlsConnectInfo<UdsConnectInfo>),
}

impl Caller {
    /// Returns the address of the other end; none on a Unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.socket_address().map(|address| address.ip().to_canonical())
    }

    /// Returns address and port of the other end; none on a Unix socket.
    fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Caller::Tcp(info) => info.remote_addr(),
            Caller::TcpTls(info) => info.get_ref().remote_addr(),
            Caller::Unix(_) | Caller::UnixTls(_) => None,
        }
    }

    fn describe(&self, extensions: &mut http::Extensions) {
        match self {
            Caller::Tcp(info) => {
                extensions.insert(info.clone());
            }
            Caller::Unix(info) => {
                extensions.insert(info.clone());
            }
            Caller::TcpTls(info) => {
                extensions.insert(info.clone());
                extensions.insert(OverTls);
            }
            Caller::UnixTls(info) => {
                extensions.insert(info.clone());
                extensions.insert(OverTls);
            }
        }
    }
}

type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The service of one connection.
#[derive(Clone)]
pub(super) struct PerConnection {
    pub(super) routes: PortRoutes,
    pub(super) caller: Caller,
    /// The member at the other end, on ports where members must prove their identity.
    pub(super) peer: Option<PeerId>,
    pub(super) connection: Arc<ConnectionState>,
    /// The protocol that follows on the connection.
    pub(super) upgraded: UpgradedProtocol,
}

impl<B> Service<Request<B>> for PerConnection
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // routers always are
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.respond(request)
    }
}

impl PerConnection {
    /// Answers a request over HTTP/2.
    pub(super) fn respond_http2<B>(
        &self,
        mut request: Request<B>,
    ) -> impl Future<Output = Response<PortBody>> + Send + use<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if !self.routes.grpc || !is_grpc(&request) {
            let answered = self.respond(request).map(|answered| match answered {
                Ok(response) => response.map(PortBody::Page),
            });
            return answered.left_future();
        }
        self.describe(&mut request);
        match head::refuse(&request) {
            Some(refusal) => ready(refusal.map(PortBody::Page)).left_future(),
            None => self
                .rpc(request)
                .map(|response| response.map(PortBody::Rpc))
                .right_future(),
        }
        .right_future()
    }

    /// Describes the other end to what answers a request.
    fn describe<B>(&self, request: &mut Request<B>) {
        self.caller.describe(request.extensions_mut());
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
    }

    /// Answers a request that is no RPC served here.
    pub(super) fn respond<B>(&self, mut request: Request<B>) -> AnswerFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let http1 = (request.version() != Version::HTTP_2).then(|| self.connection.begin());
        self.describe(&mut request);
        let routes = &self.routes;
        match is_grpc(&request) {
            true => {
                let refusal = head::unknown(request.uri().path());
                Box::pin(async move { Ok(refusal.into_http()) })
            }
            false if routes.http => {
                if let Some(refusal) = path::refuse_host(&request) {
                    return Box::pin(async { Ok(refusal) });
                }
                let answer = match routes.cors.clone() {
                    Some(cors) => self.gated(&cors, request),
                    None => self.page(request),
                };
                Box::pin(async move {
                    // The connection is busy until its last byte is on its way.
                    Ok(answer.await?.map(|body| Body::new(BusyBody { body, _http1: http1 })))
                })
            }
            false => Box::pin(async { Ok(nothing_here()) }),
        }
    }

    /// Answers an RPC.
    fn rpc<B>(&self, request: Request<B>) -> impl Future<Output = Response<AnswerBody>> + Send + use<B>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let routes = &self.routes;
        let in_flight = routes.metrics.start(request.uri().path(), request.headers());
        let uri = request.uri().clone();
        let answers = routes.answers.load();
        let span = in_flight.as_ref().and_then(|_| {
            let peer = self.caller.socket_address();
            answers.tracing.rpc(uri.path(), request.headers(), peer)
        });
        let context = span.as_ref().map(RpcSpan::context);
        let observed = RpcObserver { in_flight, span };
        let deadline = rpc::deadline(request.headers());
        // For a stream, the span covers the part up to its first response.
        let logged = tracing::debug_span!(
            "rpc",
            method = uri.path(),
            client = self.caller.address().map(tracing::field::display)
        );
        let has_leader = answers.has_leader.as_ref();
        let pending = if has_leader.is_some_and(|has_leader| refuses(request.headers(), has_leader)) {
            ready(Status::from(Error::NoLeader).into_http()).left_future()
        } else {
            let call = rpc::RpcCall {
                grpc: answers.grpc.clone(),
                unary: answers.unary.get(uri.path()),
                limits: routes.limits,
                account: self.connection.account.clone(),
                refusals: routes.refusals.clone(),
                received: observed.in_flight.as_ref().and_then(InFlight::received),
                slow: answers.slow.clone().map(|log| (log, self.caller.socket_address())),
            };
            rpc::within(deadline, call.run(request)).right_future()
        };
        let pending = match context {
            None => pending.left_future(),
            Some(context) => pending.with_context(context).right_future(),
        };
        pending
            .instrument(logged)
            .map(move |response| rpc::answer(response, uri, observed, deadline))
    }

    /// Refuses a request that the CORS policy does not allow, and adds the CORS headers to the response.
    fn gated<B>(&self, cors: &Cors, request: Request<B>) -> AnswerFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if let Some(refusal) = cors.refuse(&request) {
            return Box::pin(async { Ok(refusal) });
        }
        let (cors, origin) = (cors.clone(), cors.origin(&request));
        let answer = self.page(request);
        Box::pin(async move {
            let mut response = answer.await?;
            cors.mark(origin, &mut response);
            Ok(response)
        })
    }

    /// Answers a request of plain HTTP: an RPC of the gateway, or a page.
    fn page<B>(&self, mut request: Request<B>) -> AnswerFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if let Some(answer) = path::settle(&mut request, self.routes.gateway) {
            return Box::pin(async { Ok(answer) });
        }
        let found = match self.routes.gateway {
            true => gateway::find(request.uri().path()),
            false => MethodLookup::Elsewhere,
        };
        let method = match found {
            MethodLookup::Method(method) => method,
            MethodLookup::Elsewhere => return Box::pin(self.routes.answers.load().http.clone().call(request)),
            MethodLookup::Nothing => {
                let nothing = Status::not_found("Not Found");
                return Box::pin(async move { Ok(gateway::failure(&nothing)) });
            }
        };
        let exchange = GatewayCall {
            method,
            message: self.routes.limits.message,
            account: self.connection.account.clone(),
        };
        let here = self.clone();
        if !websocket::is_asked_for(&request) {
            return Box::pin(async move { Ok(here.exchange(exchange, request).await) });
        }
        let response = websocket::handshake(request.headers());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgrade = hyper::upgrade::on(&mut request);
            let (longest, account) = (gateway::longest(exchange.message), exchange.account.clone());
            let request = websocket::rpc(request);
            let serving = websocket::serve(upgrade, (request, longest, account), async move |request| {
                here.exchange(exchange, request).await
            });
            self.upgraded.set(Box::pin(serving));
        }
        Box::pin(async { Ok(response) })
    }

    async fn exchange<B>(&self, exchange: GatewayCall, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let exceeded = |exceeded| self.routes.refusals.exceeded(exceeded);
        let call = |request| self.rpc(request).map(|response| Ok(response.map(Body::new)));
        exchange.answer(request, call, exceeded).await
    }
}

/// The body of a response.
#[allow(
    clippy::large_enum_variant,
    reason = "most responses are of RPCs, and a box for each costs more"
)]
pub(super) enum PortBody {
    /// Of an RPC.
    Rpc(AnswerBody),
    /// Of anything else.
    Page(Body),
}

impl http_body::Body for PortBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            PortBody::Rpc(body) => Pin::new(body).poll_frame(cx),
            PortBody::Page(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            PortBody::Rpc(body) => body.is_end_stream(),
            PortBody::Page(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            PortBody::Rpc(body) => body.size_hint(),
            PortBody::Page(body) => body.size_hint(),
        }
    }
}

/// A body whose connection counts as busy while it is sent.
struct BusyBody<T> {
    body: Body,
    _http1: T,
}

impl<T: Unpin> http_body::Body for BusyBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// The protocol that follows HTTP/1.1 on a connection, once a client has asked for it.
#[derive(Clone, Default)]
pub(super) struct UpgradedProtocol(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl UpgradedProtocol {
    fn set(&self, serving: BoxFuture<'static, ()>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
    }

    /// Returns what serves the connection from then on, if it was upgraded.
    pub(super) fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns the refusal of a request for which there is no memory.
pub(super) fn too_many_requests(is_grpc: bool) -> Response<Body> {
    if is_grpc {
        return Status::from(Error::TooManyRequests).into_http();
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response
}

/// Returns true for gRPC requests, by content type; they need HTTP/2.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn nothing_here() -> Response<Body> {
    let mut response = Response::new(Body::from("404 page not found\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}
