//! An OpenTelemetry collector that keeps the spans that it receives.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Attributes by name; numbers as text.
type Attributes = BTreeMap<String, String>;

/// A span, with ids in hexadecimal digits.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty if it is the root of its trace.
    pub(crate) parent: String,
    pub(crate) kind: SpanKind,
    /// The text of its error, if it failed.
    pub(crate) error: Option<String>,
    pub(crate) attributes: Attributes,
    /// Those of the program that sent it.
    pub(crate) resource: Attributes,
}

impl Span {
    pub(crate) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// A running collector.
pub(crate) struct Collector {
    /// Its address, host:port.
    pub(crate) address: String,
    received: watch::Receiver<Vec<Span>>,
    _serving: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, received) = watch::channel(Vec::new());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let service = TraceServiceServer::new(Receiving(sender));
            let server = tonic::transport::Server::builder().add_service(service);
            server
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Collector {
            address,
            received,
            _serving: serving,
        }
    }

    /// Returns the spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.received.borrow().clone()
    }
}

struct Receiving(watch::Sender<Vec<Span>>);

#[tonic::async_trait]
impl TraceService for Receiving {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_resource in request.into_inner().resource_spans {
            let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
            for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let status = span.status.unwrap_or_default();
                let span = Span {
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    kind: SpanKind::try_from(span.kind).unwrap(),
                    error: (status.code == i32::from(StatusCode::Error)).then_some(status.message),
                    attributes: attributes(span.attributes),
                    resource: resource.clone(),
                };
                self.0.send_modify(|spans| spans.push(span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(listed: Vec<KeyValue>) -> Attributes {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("an attribute of another kind: {other:?}"),
    };
    listed.into_iter().map(|one| (one.key, text(one.value))).collect()
}
