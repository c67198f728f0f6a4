use std::sync::Mutex;

use opentelemetry::trace::FutureExt as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;

use super::*;

const PATH: &str = "/etcdserverpb.KV/Put";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// The spans that have ended.
#[derive(Debug, Clone, Default)]
struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl opentelemetry_sdk::trace::SpanExporter for Ended {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Ended {
    fn names(&self) -> Vec<String> {
        let spans = self.0.lock().unwrap();
        spans.iter().map(|span| span.name.to_string()).collect()
    }

    fn all(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().clone()
    }
}

/// Returns a tracer that samples only what clients sample.
fn tracer() -> (Tracing, Ended) {
    let ended = Ended::default();
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)))
        .with_simple_exporter(ended.clone());
    (Tracing::of(provider.build()), ended)
}

fn headers(sampled: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let parent = format!("00-{TRACE}-{CLIENT}-0{}", u8::from(sampled));
    headers.insert("traceparent", parent.parse().unwrap());
    headers.insert("tracestate", "vendor=1".parse().unwrap());
    headers
}

#[test]
fn nothing_is_traced_while_tracing_is_off() {
    let tracing = Tracing::default();
    assert!(tracing.rpc(PATH, &headers(true), None).is_none());
    assert!(tracing.part("range").0.is_none());
    let mut metadata = MetadataMap::from_headers(headers(true));
    assert!(tracing.forward(7, &mut metadata).0.is_none());
    // The leader may trace it.
    assert_eq!(metadata.into_headers(), headers(true));
}

#[test]
fn servers_fault_alone_is_an_error_of_the_span() {
    let (tracing, ended) = tracer();
    let rpc = || tracing.rpc(PATH, &headers(true), None).unwrap();
    rpc().end(Code::Ok, || unreachable!("it has no message"));
    rpc().end(Code::NotFound, || unreachable!("it is not wanted"));
    rpc().end(Code::Unavailable, || "no leader".to_owned());
    drop(rpc());
    let status = ended.all().into_iter().map(|span| {
        let code = span
            .attributes
            .iter()
            .find(|one| one.key.as_str() == "rpc.grpc.status_code");
        (code.unwrap().value.clone(), span.status)
    });
    let expected = [
        (Value::I64(0), Status::Unset),
        (Value::I64(5), Status::Unset),
        (Value::I64(14), Status::error("no leader")),
        (Value::I64(1), Status::Unset),
    ];
    assert_eq!(status.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn parts_of_a_traced_rpc_are_its_children_while_it_is_polled() {
    let (tracing, ended) = tracer();
    let rpc = tracing.rpc(PATH, &headers(true), None).unwrap();
    let handler = async {
        tokio::task::yield_now().await;
        tracing.part("put").set("revision", 7);
    };
    handler.with_context(rpc.context()).await;
    tracing.part("of no rpc").set("revision", 8);
    rpc.end(Code::Ok, String::new);
    let [put, rpc] = ended.all().try_into().unwrap();
    assert_eq!(
        (put.name.as_ref(), put.parent_span_id),
        ("put", rpc.span_context.span_id())
    );
    assert_eq!(rpc.parent_span_id.to_string(), CLIENT);
    for span in [put, rpc] {
        assert_eq!(span.span_context.trace_id().to_string(), TRACE);
    }
}

#[test]
fn leader_gets_the_span_of_the_follower_and_the_clients_decision() {
    let (tracing, ended) = tracer();
    for sampled in [true, false] {
        let rpc = tracing.rpc(PATH, &headers(sampled), None).unwrap();
        let current = rpc.context().attach();
        let mut metadata = MetadataMap::from_headers(headers(sampled));
        let span = tracing.forward(7, &mut metadata);
        let context = span.0.as_ref().unwrap().span_context().clone();
        drop((span, current));
        let parent = format!("00-{TRACE}-{}-0{}", context.span_id(), u8::from(sampled));
        assert_eq!(metadata.get("traceparent").unwrap(), parent.as_str());
        assert_eq!(metadata.get("tracestate").unwrap(), "vendor=1");
        assert_ne!(context.span_id().to_string(), CLIENT);
        rpc.end(Code::Ok, String::new);
    }
    assert_eq!(ended.names(), ["forward", "etcdserverpb.KV/Put"]);
}

#[test]
fn leader_traces_of_members_requests_only_what_belongs_to_a_trace() {
    let tracing = tracer().0.continues_only();
    assert!(tracing.rpc(PATH, &HeaderMap::new(), None).is_none());
    assert!(tracing.rpc(PATH, &headers(true), None).is_some());
}

#[test]
fn trace_context_that_is_not_valid_begins_a_new_trace() {
    let (tracing, ended) = tracer();
    for parent in ["", "00-0-0-01", "not a context", &format!("ff-{TRACE}-{CLIENT}-01")] {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", parent.parse().unwrap());
        let rpc = tracing.rpc(PATH, &headers, None).unwrap();
        assert!(!rpc.context().span().is_recording(), "{parent}");
    }
    assert_eq!(ended.names(), [""; 0]);
}
