//! Spans of RPCs, as a collector receives them.

use std::path::Path;
use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tonic::{Code, Request};

use crate::collector::{Collector, Span};
use crate::members::Site;
use crate::program::{Process, READY_MESSAGE, STEP_TIMEOUT, lone};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// The flags that send spans to `address`, for `rate` of a million requests.
fn tracing(address: &str, rate: u32) -> Vec<String> {
    vec![
        "--enable-distributed-tracing".to_owned(),
        format!("--distributed-tracing-address={address}"),
        "--distributed-tracing-service-name=brains".to_owned(),
        "--distributed-tracing-instance-id=one".to_owned(),
        format!("--distributed-tracing-sampling-rate={rate}"),
    ]
}

async fn start(dir: &Path, more: &[String]) -> Process {
    let (mut flags, url) = lone(dir);
    flags.extend_from_slice(more);
    let process = Process::begin(&flags, url);
    process.says(READY_MESSAGE).await;
    process
}

/// A request of a client's span, which the client samples or not.
fn of_trace<T>(trace: &str, sampled: bool, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{trace}-{CLIENT}-0{}", u8::from(sampled));
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request
}

fn range() -> pb::RangeRequest {
    pb::RangeRequest {
        key: "secret".into(),
        ..Default::default()
    }
}

fn put() -> pb::PutRequest {
    pb::PutRequest {
        key: "secret".into(),
        value: "secret".into(),
        ..Default::default()
    }
}

/// Returns the only span with this name.
fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "more than one {name} in {spans:#?}");
    span
}

#[tokio::test]
async fn rpc_is_a_span_of_the_clients_trace_and_the_last_ones_arrive_before_the_end() {
    let (collector, dir) = (Collector::start().await, tempfile::tempdir().unwrap());
    let server = start(dir.path(), &tracing(&collector.address, 0)).await;
    let mut kv = KvClient::new(server.connect().await);
    kv.put(of_trace(TRACE, true, put())).await.unwrap();
    kv.range(of_trace(TRACE, true, range())).await.unwrap();
    let future = pb::RangeRequest {
        revision: 1_000,
        ..range()
    };
    let refused = kv.range(of_trace(&TRACE.replace('4', "5"), true, future)).await;
    assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
    // Neither of these is sampled.
    kv.range(of_trace(&TRACE.replace('4', "6"), false, range()))
        .await
        .unwrap();
    kv.range(range()).await.unwrap();
    drop(kv);
    server.stop().await;
    let all = collector.spans();
    let (spans, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|span| span.trace == TRACE);
    let rpc = named(&spans, "etcdserverpb.KV/Range");
    assert_eq!((rpc.parent.as_str(), rpc.kind), (CLIENT, SpanKind::Server));
    for (name, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "etcdserverpb.KV"),
        ("rpc.method", "Range"),
        ("rpc.grpc.status_code", "0"),
        ("net.sock.peer.addr", "127.0.0.1"),
    ] {
        assert_eq!(rpc.attribute(name), value, "{name}");
    }
    for (name, value) in [("service.name", "brains"), ("service.instance.id", "one")] {
        assert_eq!(rpc.resource[name], value, "{name}");
    }
    for part in ["read_index", "range"] {
        let part = named(&spans, part);
        assert_eq!((part.parent.as_str(), part.kind), (rpc.id.as_str(), SpanKind::Internal));
    }
    assert_eq!(named(&spans, "range").attribute("count"), "1");
    let changed = named(&spans, "put");
    assert_eq!(changed.parent, named(&spans, "etcdserverpb.KV/Put").id);
    assert_eq!(changed.attribute("revision"), "2");
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let failed = named(&others, "etcdserverpb.KV/Range");
    // As with otelgrpc, a client's mistake is no error of the server's span.
    assert_eq!((failed.attribute("rpc.grpc.status_code"), &failed.error), ("11", &None));
    assert!(named(&others, "range").error.is_some());
    assert!(others.iter().all(|span| span.trace == failed.trace), "{others:#?}");
    assert!(!format!("{spans:?}{others:?}").contains("secret"));
}

#[tokio::test]
async fn sampled_requests_without_a_trace_begin_one_and_a_stream_is_one_span() {
    let (collector, dir) = (Collector::start().await, tempfile::tempdir().unwrap());
    let server = start(dir.path(), &tracing(&collector.address, 1_000_000)).await;
    let create = pb::WatchCreateRequest {
        key: "secret".into(),
        ..Default::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    };
    let mut watch = WatchClient::new(server.connect().await);
    let mut events = watch.watch(tokio_stream::once(create)).await.unwrap().into_inner();
    assert!(events.message().await.unwrap().unwrap().created);
    let mut kv = KvClient::new(server.connect().await);
    kv.put(put()).await.unwrap();
    drop((events, watch, kv));
    server.stop().await;
    let spans = collector.spans();
    let (rpc, watch) = (
        named(&spans, "etcdserverpb.KV/Put"),
        named(&spans, "etcdserverpb.Watch/Watch"),
    );
    assert_eq!((rpc.parent.as_str(), watch.parent.as_str()), ("", ""));
    assert_ne!(rpc.trace, watch.trace);
    assert!(!watch.attribute("rpc.grpc.status_code").is_empty());
}

#[tokio::test]
async fn one_trace_shows_client_follower_and_leader() {
    let (collector, site) = (Collector::start().await, Site::new(2).await);
    let flags = tracing(&collector.address, 1_000_000);
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let leader = site.start(0, 2, &flags).await;
    flags.retain(|flag| !flag.contains("instance-id"));
    let follower = site.start(1, 2, &flags).await;
    let mut kv = KvClient::new(follower.connect().await);
    kv.put(of_trace(TRACE, true, put())).await.unwrap();
    kv.put(of_trace(&TRACE.replace('4', "5"), false, put())).await.unwrap();
    kv.range(of_trace(TRACE, true, range())).await.unwrap();
    drop(kv);
    follower.stop().await;
    leader.stop().await;
    let spans = collector.spans();
    let at = |span: &Span| span.resource.get("service.instance.id").cloned();
    let (here, there): (Vec<Span>, Vec<Span>) = spans.into_iter().partition(|span| at(span).is_none());
    // Requests between members begin no traces of their own.
    assert!(
        here.iter().chain(&there).all(|span| span.trace == TRACE),
        "{here:#?} {there:#?}"
    );
    let put = "etcdserverpb.KV/Put";
    let (rpc, forward) = (named(&here, put), named(&here, "forward"));
    assert_eq!((rpc.parent.as_str(), &forward.parent), (CLIENT, &rpc.id));
    assert_eq!(forward.kind, SpanKind::Client);
    let forwarded = named(&there, put);
    assert_eq!(forwarded.parent, forward.id);
    assert_eq!(named(&there, "put").parent, forwarded.id);
    assert_eq!(named(&here, "wait_applied").parent, rpc.id);
    assert_eq!(
        named(&here, "read_index").parent,
        named(&here, "etcdserverpb.KV/Range").id
    );
    assert_eq!(there.len(), 2, "{there:#?}");
}

#[tokio::test]
async fn collector_that_does_not_answer_delays_nothing() {
    // The kernel accepts connections, but no process answers them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = crate::program::free_port();
    for address in [silent.local_addr().unwrap().to_string(), format!("127.0.0.1:{closed}")] {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path(), &tracing(&address, 1_000_000)).await;
        let mut kv = KvClient::new(server.connect().await);
        // More than wait for the collector.
        let asked = async {
            for _ in 0..3_000 {
                kv.range(range()).await.unwrap();
            }
        };
        timeout(STEP_TIMEOUT, asked)
            .await
            .expect("requests wait for the collector");
        drop(kv);
        let warnings = server.said("could not be sent to the collector");
        assert!(warnings <= 1, "{warnings} warnings");
        server.signal(rustix::process::Signal::TERM);
        let began = Instant::now();
        let mut server = server;
        let (code, log) = server.ended().await;
        assert_eq!(code, Some(0), "{log}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(log.contains("to the collector"), "nobody hears of lost spans: {log}");
    }
}
