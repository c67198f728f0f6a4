//! Distributed tracing: spans of RPCs and of what they consist of, sent to an OpenTelemetry collector.
//!
//! Names and attributes of the spans of RPCs are those of otelgrpc, which etcd uses. The context of a request is current while its handler
//! is polled, so that its parts find their parent without an argument. While tracing is off, a span costs a branch.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use tonic::Code;
use tonic::metadata::MetadataMap;

use exporter::LoggedExporter;
use propagation::{HeaderExtractor, MetadataInjector};

mod exporter;
mod propagation;

/// The export of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingOptions {
    /// The URL of the collector: OTLP over gRPC, without TLS.
    pub collector: http::Uri,
    /// The service name, the same for all members.
    pub service_name: String,
    /// The id of this member among those of the service.
    pub instance_id: Option<String>,
    /// The traced requests in a million, of those that a client has no trace for.
    pub sampling_rate: u32,
}

/// The time for which the end of the process waits for spans to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The sampling rate at which every request is traced.
const FULL_SAMPLING_RATE: f64 = 1_000_000.0;

/// The tracer of this member; off by default. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Tracing {
    exporting: Option<Arc<TraceExport>>,
    /// True if only requests that belong to a trace get spans.
    continues_only: bool,
}

#[derive(Debug)]
struct TraceExport {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    propagator: TraceContextPropagator,
}

impl Tracing {
    /// Begins to send spans, if `options` ask for it. Must be called inside a runtime.
    ///
    /// A collector that cannot be reached is an error neither now nor later: 2,048 spans wait for it, and further ones are dropped.
    /// The SDK's variables `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_*` and `OTEL_RESOURCE_ATTRIBUTES` are followed, as by etcd.
    ///
    /// # Errors
    /// If such a variable is not valid.
    pub fn start(options: Option<&TracingOptions>) -> anyhow::Result<Tracing> {
        let Some(options) = options else {
            return Ok(Tracing::default());
        };
        let collector = options.collector.to_string();
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&collector).build();
        let exporter = exporter.context("set up distributed tracing")?;
        let mut resource = Resource::builder_empty()
            .with_detector(Box::new(EnvResourceDetector::new()))
            .with_service_name(options.service_name.clone());
        if let Some(id) = &options.instance_id {
            resource = resource.with_attribute(KeyValue::new("service.instance.id", id.clone()));
        }
        let root = match options.sampling_rate {
            0 => Sampler::AlwaysOff,
            rate => Sampler::TraceIdRatioBased(f64::from(rate) / FULL_SAMPLING_RATE),
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_batch_exporter(LoggedExporter::new(exporter))
            .build();
        tracing::info!(collector, "distributed tracing setup enabled");
        Ok(Self::of(provider))
    }

    fn of(provider: SdkTracerProvider) -> Tracing {
        Tracing {
            exporting: Some(Arc::new(TraceExport {
                tracer: provider.tracer("kubebrain"),
                provider,
                propagator: TraceContextPropagator::new(),
            })),
            continues_only: false,
        }
    }

    /// Returns the same tracer, but for requests of other members: those that belong to no trace get no span.
    #[must_use]
    pub fn continues_only(self) -> Self {
        Self {
            continues_only: true,
            ..self
        }
    }

    /// Sends the spans that wait, but not for longer than two seconds. Nothing is traced any more.
    pub async fn end(self) {
        let Some(exporting) = self.exporting else { return };
        let provider = exporting.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        match flushed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not send the last spans to the collector"),
            Err(error) => tracing::warn!(%error, "could not send the last spans to the collector"),
        }
    }

    /// Begins the span of an RPC of a client or member at `peer`; `path` is that of its request, whose headers may name a trace.
    #[must_use]
    pub fn rpc(&self, path: &str, headers: &HeaderMap, peer: Option<SocketAddr>) -> Option<RpcSpan> {
        let exporting = self.exporting.as_ref()?;
        let parent = exporting
            .propagator
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        if self.continues_only && !parent.has_active_span() {
            return None;
        }
        let name = path.trim_start_matches('/');
        let span = SpanBuilder::from_name(name.to_owned()).with_kind(SpanKind::Server);
        let mut span = exporting.tracer.build_with_context(span, &parent);
        if span.is_recording() {
            span.set_attribute(KeyValue::new("rpc.system", "grpc"));
            if let Some((service, method)) = name.rsplit_once('/') {
                span.set_attribute(KeyValue::new("rpc.service", service.to_owned()));
                span.set_attribute(KeyValue::new("rpc.method", method.to_owned()));
            }
            if let Some(peer) = peer {
                span.set_attribute(KeyValue::new(
                    "net.sock.peer.addr",
                    peer.ip().to_canonical().to_string(),
                ));
                span.set_attribute(KeyValue::new("net.sock.peer.port", i64::from(peer.port())));
            }
        }
        Some(RpcSpan {
            context: parent.with_span(span),
            status: (Code::Cancelled, String::new()),
        })
    }

    /// Begins the span of a part of the current RPC.
    pub fn part(&self, name: &'static str) -> PartSpan {
        let Some(exporting) = &self.exporting else {
            return PartSpan(None);
        };
        PartSpan(Context::map_current(|context| {
            let is_traced = context.span().is_recording();
            is_traced.then(|| Box::new(exporting.tracer.start_with_context(name, context)))
        }))
    }

    /// Begins the span of forwarding the current RPC to the leader, whose id is `leader`, and puts it into the metadata of the
    /// forwarded request in the place of the client's: the leader's span is its child, or none if the RPC is not traced.
    pub fn forward(&self, leader: u64, metadata: &mut MetadataMap) -> PartSpan {
        let Some(exporting) = &self.exporting else {
            return PartSpan(None);
        };
        PartSpan(Context::map_current(|context| {
            if !context.has_active_span() {
                return None;
            }
            let span = SpanBuilder::from_name("forward").with_kind(SpanKind::Client);
            let mut span = exporting.tracer.build_with_context(span, context);
            if span.is_recording() {
                span.set_attribute(KeyValue::new("rpc.system", "grpc"));
                span.set_attribute(KeyValue::new("leader", format!("{leader:x}")));
            }
            let forwarded = Context::new().with_remote_span_context(span.span_context().clone());
            exporting
                .propagator
                .inject_context(&forwarded, &mut MetadataInjector(metadata));
            Some(Box::new(span))
        }))
    }
}

/// The span of an RPC. Dropped without a status, it counts as cancelled: its client has disconnected.
#[derive(Debug)]
pub struct RpcSpan {
    context: Context,
    status: (Code, String),
}

impl RpcSpan {
    /// Returns the context that is current while the RPC is answered.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context.clone()
    }

    /// Ends it with a status; `message` returns the text if it is needed.
    pub fn end(mut self, code: Code, message: impl FnOnce() -> String) {
        let text = if is_servers_fault(code) {
            message()
        } else {
            String::new()
        };
        self.status = (code, text);
    }
}

impl Drop for RpcSpan {
    fn drop(&mut self) {
        let (code, text) = (self.status.0, std::mem::take(&mut self.status.1));
        let span = self.context.span();
        if is_servers_fault(code) {
            span.set_status(Status::error(text));
        }
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        span.end();
    }
}

/// Returns true for the codes that make a server's span an error in otelgrpc.
fn is_servers_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The span of a part of an RPC, which ends when it is dropped; nothing if the RPC is not traced.
#[derive(Debug)]
#[must_use]
pub struct PartSpan(Option<Box<Span>>);

impl PartSpan {
    /// Adds an attribute. Keys and values of the store do not belong into spans.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(name, value));
        }
    }

    /// Records that it failed.
    pub fn fail(&mut self, status: &tonic::Status) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(status.message().to_owned()));
        }
    }

    /// Records the outcome, if it failed.
    pub fn outcome<T>(&mut self, outcome: &Result<T, tonic::Status>) {
        if let Err(status) = outcome {
            self.fail(status);
        }
    }
}

#[cfg(test)]
mod tests;
