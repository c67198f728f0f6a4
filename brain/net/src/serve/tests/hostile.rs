//! Clients that occupy as many resources as they can, on connections of raw HTTP/2.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::Instant;

use super::*;
use runtime::tasks::Owned;

mod frames;
mod web_socket;

/// Counts the calls of handlers.
#[derive(Default)]
struct Asked {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    messages: AtomicUsize,
}

struct Guard(Arc<Asked>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Answers with as many bytes as the request's message requests.
async fn range(State(asked): State<Arc<Asked>>, request: ::http::Request<Body>) -> ::http::Response<Body> {
    asked.begun.fetch_add(1, Ordering::SeqCst);
    let message = request.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&message[5..]).unwrap();
    let mut trailers = ::http::HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    let frames = [
        Frame::data(Bytes::from(vec![0; text.parse().unwrap()])),
        Frame::trailers(trailers),
    ];
    let frames = frames.map(Ok::<_, Infallible>);
    ::http::Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))))
}

/// Never answers.
async fn stuck(State(asked): State<Arc<Asked>>) -> ::http::Response<Body> {
    asked.begun.fetch_add(1, Ordering::SeqCst);
    let _guard = Guard(asked);
    std::future::pending().await
}

/// Reads messages of one byte as long as they arrive.
async fn watch(State(asked): State<Arc<Asked>>, request: ::http::Request<Body>) -> ::http::Response<Body> {
    asked.begun.fetch_add(1, Ordering::SeqCst);
    let mut body = request.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let len = frame.data_ref().map_or(0, Bytes::len);
        asked.messages.fetch_add(len / 6, Ordering::SeqCst);
    }
    std::future::pending().await
}

fn start() -> (Running, Arc<Asked>) {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut PortOptions)) -> (Running, Arc<Asked>) {
    let asked = Arc::new(Asked::default());
    let router = Router::new()
        .route("/etcdserverpb.KV/Range", post(range))
        .route("/etcdserverpb.KV/DeleteRange", post(range))
        .route("/etcdserverpb.KV/Put", post(stuck))
        .route("/etcdserverpb.KV/Txn", post(stuck))
        .route("/etcdserverpb.Watch/Watch", post(watch))
        .route("/etcdserverpb.Lease/LeaseKeepAlive", post(stuck))
        .with_state(asked.clone());
    let mut ports = Ports::new(&[(PLAIN, PortPurpose::Both)]);
    change(&mut ports.options);
    (Running::serving(ports, Store::with(0), Routes::from(router)), asked)
}

/// A connection; dropping it ends its task.
struct Client {
    send: SendRequest<Bytes>,
    driver: Owned<Result<(), h2::Error>>,
}

impl Client {
    async fn connect(server: &Running, window: u32) -> Client {
        let io = server.dial().await;
        let connected = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_max_send_streams(100_000)
            .max_concurrent_reset_streams(100_000)
            .handshake(io);
        let (send, connection) = connected.await.unwrap();
        Client {
            send,
            driver: Owned::start(connection),
        }
    }

    async fn begin(&mut self, method: &str, timeout: Option<&str>) -> (ResponseFuture, SendStream<Bytes>) {
        let request = ::http::Request::post(format!("http://brain/etcdserverpb.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = timeout
            .into_iter()
            .fold(request, |request, timeout| request.header("grpc-timeout", timeout));
        std::future::poll_fn(|cx| self.send.poll_ready(cx)).await.unwrap();
        self.send.send_request(request.body(()).unwrap(), false).unwrap()
    }

    async fn ask(&mut self, method: &str, message: &[u8], timeout: Option<&str>) -> ResponseFuture {
        let (response, mut body) = self.begin(method, timeout).await;
        body.send_data(framed(message), true).unwrap();
        response
    }
}

fn framed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &len[..], message].concat().into()
}

/// Returns the code and text with which an RPC ended.
async fn ended(response: ResponseFuture) -> (i32, String) {
    let response = response.await.unwrap();
    let mut headers = response.headers().clone();
    let mut body = response.into_body();
    while let Some(bytes) = body.data().await {
        let len = bytes.unwrap().len();
        body.flow_control().release_capacity(len).unwrap();
    }
    headers.extend(body.trailers().await.unwrap().unwrap_or_default());
    let status = Status::from_header_map(&headers).expect("a status");
    (status.code().into(), status.message().to_owned())
}

fn refused(server: &Running, reason: &str) -> u64 {
    server.metrics.network.refused.with_label_values(&[reason]).get()
}

fn goaways(server: &Running) -> u64 {
    let families = ["enhance_your_calm", "protocol_error", "memory", "other"];
    let sent = families.map(|reason| server.metrics.network.goaways.with_label_values(&[reason]).get());
    sent.iter().sum()
}

const DEADLINE_EXCEEDED: (i32, &str) = (4, "etcdserver: context deadline exceeded");
const TOO_MANY_REQUESTS: (i32, &str) = (8, "etcdserver: too many requests");

fn is((code, text): (i32, String), expected: (i32, &str)) {
    assert_eq!((code, text.as_str()), expected);
}

#[tokio::test(start_paused = true)]
async fn deadline_of_the_client_ends_an_rpc() {
    let (server, asked) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let begun = client.ask("KV/Put", b"", Some("50m")).await;
    let patience = Duration::from_secs(3600);
    is(
        tokio::time::timeout(patience, ended(begun))
            .await
            .expect("the deadline is kept"),
        DEADLINE_EXCEEDED,
    );
    assert_eq!(
        (asked.begun.load(Ordering::SeqCst), asked.dropped.load(Ordering::SeqCst)),
        (1, 1)
    );
    // A request that is incomplete by then is not begun.
    let (response, _body) = client.begin("KV/Put", Some("50m")).await;
    is(ended(response).await, DEADLINE_EXCEEDED);
    assert_eq!(asked.begun.load(Ordering::SeqCst), 1);
    let text = String::from_utf8(server.metrics.render().unwrap()).unwrap();
    let counted = "grpc_server_handled_total{grpc_code=\"DeadlineExceeded\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 2\n";
    assert!(text.contains(counted));
    drop(client);
    server.end().await;
}

/// A small budget: 5 MiB. A connection may use half of it.
fn small(options: &mut PortOptions) {
    options.limits.max_receive_bytes = (64 + 512) << 10;
    options.limits.max_inflight_bytes = 5 << 20;
}

const SMALL_BUDGET_BYTES: i64 = 5_242_880;
/// The memory of a few connections without any request.
const OPEN_CONNECTIONS_BYTES: i64 = 150_000;

#[tokio::test]
async fn unfinished_requests_hold_no_more_than_the_budget() {
    let (server, asked) = start_with(small);
    let (mut clients, mut streams) = (Vec::new(), Vec::new());
    let message = framed(&vec![0; 500_000]);
    for _ in 0..3 {
        let mut client = Client::connect(&server, 1 << 20).await;
        for _ in 0..10 {
            let (response, mut body) = client.begin("KV/Put", None).await;
            body.send_data(message.slice(..message.len() - 1), false).unwrap();
            streams.push((response, body));
        }
        clients.push(client);
    }
    // Four complete ones fit into a connection's half, and seven into the share of an address.
    while ["connection_memory", "address_memory"]
        .map(|reason| refused(&server, reason))
        .iter()
        .sum::<u64>()
        < 20
    {
        assert!(server.metrics.network.held.get() <= SMALL_BUDGET_BYTES);
        tokio::task::yield_now().await;
    }
    // The memory of a request that does not progress is released.
    tokio::time::pause(); // no real time passes: the sleep lets the deadline of each request fire
    while server.metrics.network.held.get() > OPEN_CONNECTIONS_BYTES {
        tokio::time::sleep(HANDSHAKE_TIMEOUT).await;
    }
    assert!(refused(&server, "request_stalled") > 0);
    assert_eq!(asked.begun.load(Ordering::SeqCst), 0);
    is(ended(clients[0].ask("KV/Range", b"10", None).await).await, (0, ""));
    drop((clients, streams));
    server.end().await;
}

#[tokio::test]
async fn answers_that_nobody_takes_are_refused_then_reset() {
    let (server, _) = start_with(small);
    let mut greedy = Client::connect(&server, 0).await;
    let mut responses = Vec::new();
    for _ in 0..10 {
        responses.push(greedy.ask("KV/Range", b"800000", None).await);
    }
    while refused(&server, "connection_memory") < 7 {
        tokio::task::yield_now().await;
    }
    assert!((2_400_000..=SMALL_BUDGET_BYTES / 2).contains(&server.metrics.network.held.get()));
    let mut quiet = Client::connect(&server, 1 << 20).await;
    is(ended(quiet.ask("KV/Range", b"800000", None).await).await, (0, ""));
    let mut held = Vec::new();
    for response in responses {
        let head = response.await.unwrap();
        match Status::from_header_map(head.headers()) {
            Some(status) => is((status.code().into(), status.message().to_owned()), TOO_MANY_REQUESTS),
            None => held.push(head.into_body()),
        }
    }
    assert_eq!(held.len(), 3);
    tokio::time::pause();
    for body in &mut held {
        let reset = body.data().await.unwrap().unwrap_err();
        assert_eq!(reset.reason(), Some(Reason::CANCEL));
    }
    assert_eq!(refused(&server, "answer_stalled"), 3);
    while server.metrics.network.held.get() > OPEN_CONNECTIONS_BYTES {
        tokio::task::yield_now().await;
    }
    drop((greedy, quiet));
    server.end().await;
}

#[tokio::test]
async fn answer_is_charged_until_all_of_it_is_taken() {
    const TAKEN: usize = 700_000;
    let (server, _) = start();
    let mut client = Client::connect(&server, 65_535).await;
    let mut body = client.ask("KV/Range", b"800000", None).await.await.unwrap().into_body();
    let mut taken = 0;
    while taken < TAKEN {
        let len = body.data().await.unwrap().unwrap().len();
        body.flow_control().release_capacity(len).unwrap();
        taken += len;
    }
    // The last piece that the socket took is given back by now.
    let mut other = Client::connect(&server, 1 << 20).await;
    is(ended(other.ask("KV/Range", b"10", None).await).await, (0, ""));
    assert!(server.metrics.network.held.get() >= 800_000);
    while let Some(bytes) = body.data().await {
        body.flow_control().release_capacity(bytes.unwrap().len()).unwrap();
    }
    drop((body, client, other));
    while server.metrics.network.held.get() > OPEN_CONNECTIONS_BYTES {
        tokio::task::yield_now().await;
    }
    server.end().await;
}

#[tokio::test]
async fn many_headers_are_charged() {
    let (server, asked) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let (mut held, mut open) = (Vec::new(), Vec::new());
    for headers in [0, 400] {
        let mut request = ::http::Request::post("http://brain/etcdserverpb.Lease/LeaseKeepAlive")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        for _ in 0..headers {
            let value = ::http::HeaderValue::from_static("x");
            request.headers_mut().append("via", value);
        }
        std::future::poll_fn(|cx| client.send.poll_ready(cx)).await.unwrap();
        let (response, mut body) = client.send.send_request(request, false).unwrap();
        body.send_data(framed(b"x"), false).unwrap();
        open.push((response, body));
        while asked.begun.load(Ordering::SeqCst) < open.len() {
            tokio::task::yield_now().await;
        }
        held.push(server.metrics.network.held.get());
    }
    let more = held[1] - held[0];
    assert!(more > 16 * 1024 + 300 * 96, "{more}");
    drop((open, client));
    server.end().await;
}

#[tokio::test]
async fn write_whose_answer_does_not_fit_has_an_unknown_outcome() {
    let (server, _) = start_with(small);
    let mut client = Client::connect(&server, 0).await;
    let mut responses = Vec::new();
    for _ in 0..4 {
        responses.push(client.ask("KV/Range", b"800000", None).await);
    }
    while refused(&server, "connection_memory") < 1 {
        tokio::task::yield_now().await;
    }
    let outcome = ended(client.ask("KV/DeleteRange", b"800000", None).await).await;
    is(outcome, (14, "etcdserver: request timed out"));
    // A small response is charged before the request is begun.
    let mut held = Vec::new();
    for _ in 0..5 {
        let response = client.ask("KV/DeleteRange", b"3000", None).await.await.unwrap();
        assert_eq!(
            Status::from_header_map(response.headers()).map(|status| status.code()),
            None
        );
        held.push(response);
    }
    drop((client, responses, held));
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn bodies_have_to_come_at_a_rate() {
    let (server, asked) = start();
    let message = framed(&[0; 1000]);
    for method in ["KV/Put", "KV/Txn"] {
        let mut client = Client::connect(&server, 1 << 20).await;
        let (response, mut body) = client.begin(method, None).await;
        let outcome = ended(response);
        tokio::pin!(outcome);
        let mut sent = 0;
        let outcome = loop {
            body.send_data(message.slice(sent..=sent), false).unwrap();
            sent += 1;
            assert!(sent < 10, "{method} goes on for ever");
            if let Ok(outcome) = tokio::time::timeout(Duration::from_secs(15), &mut outcome).await {
                break outcome;
            }
        };
        is(outcome, DEADLINE_EXCEEDED);
    }
    assert_eq!(
        (asked.begun.load(Ordering::SeqCst), refused(&server, "request_stalled")),
        (0, 2)
    );
    server.end().await;
}

#[tokio::test]
async fn stream_is_charged_for_its_longest_message() {
    const LONG: usize = 1_000_000;
    let (server, asked) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let (_response, mut body) = client.begin("Watch/Watch", None).await;
    body.send_data(framed(&[0; LONG]), false).unwrap();
    body.send_data(framed(b"x"), false).unwrap();
    // Each frame is rounded down.
    while asked.messages.load(Ordering::SeqCst) * 6 < LONG / 10 * 9 {
        tokio::task::yield_now().await;
    }
    is(ended(client.ask("KV/Range", b"10", None).await).await, (0, ""));
    let held = server.metrics.network.held.get();
    assert!(held > i64::try_from(LONG).unwrap(), "{held} bytes are charged");
    drop(client);
    server.end().await;
}

#[tokio::test]
async fn small_frames_that_nobody_reads_cause_no_goaway() {
    const FRAMES: usize = 20_000;
    let (server, _) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let (_response, mut body) = client.begin("Lease/LeaseKeepAlive", None).await;
    for _ in 0..FRAMES {
        body.send_data(framed(b"x"), false).unwrap();
    }
    is(ended(client.ask("KV/Range", b"10", None).await).await, (0, ""));
    assert_eq!(goaways(&server), 0);
    drop(client);
    server.end().await;
}

#[tokio::test]
async fn many_streams_of_one_connection_are_all_served_and_may_all_be_cancelled() {
    const STREAMS: usize = 20_000;
    let (server, asked) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let (response, mut body) = client.begin("Watch/Watch", None).await;
        body.send_data(framed(b"x"), false).unwrap();
        streams.push((response, body));
    }
    let begun = Instant::now();
    loop {
        let come = asked.messages.load(Ordering::SeqCst);
        if come >= STREAMS {
            break;
        }
        assert_eq!(goaways(&server), 0, "{come} messages have come");
        assert!(begun.elapsed() < 12 * HANDSHAKE_TIMEOUT, "{come} messages have come");
        tokio::task::yield_now().await;
    }
    assert_eq!(asked.begun.load(Ordering::SeqCst), STREAMS);
    for (_, body) in &mut streams {
        body.send_reset(Reason::CANCEL);
    }
    // Requests that are cancelled before they are begun.
    for _ in 0..5_000 {
        let (_, mut body) = client.begin("Watch/Watch", None).await;
        body.send_reset(Reason::CANCEL);
    }
    is(ended(client.ask("KV/Range", b"10", None).await).await, (0, ""));
    assert_eq!(goaways(&server), 0);
    drop(client);
    server.end().await;
}

#[tokio::test]
async fn txn_of_empty_operations_is_refused_before_it_is_decoded() {
    let (server, asked) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let empty: Vec<u8> = [0x12, 0].repeat(500_000);
    let refusal = ended(client.ask("KV/Txn", &empty, None).await).await;
    is(refusal, (3, "etcdserver: too many operations in txn request"));
    // Nested operations count with their size in memory.
    let (server, nested) = {
        drop(client);
        server.end().await;
        start_with(|options| {
            options.limits.max_txn_ops = 1_000_000;
            options.limits.max_inflight_bytes = 32 << 20;
        })
    };
    let mut client = Client::connect(&server, 1 << 20).await;
    is(ended(client.ask("KV/Txn", &empty, None).await).await, TOO_MANY_REQUESTS);
    assert_eq!(
        asked.begun.load(Ordering::SeqCst) + nested.begun.load(Ordering::SeqCst),
        0
    );
    drop(client);
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn client_that_asks_nothing_is_dropped() {
    let (server, _) = start();
    let mut client = Client::connect(&server, 1 << 20).await;
    let ended = tokio::time::timeout(Duration::from_secs(3600), client.driver.end()).await;
    assert!(ended.expect("the connection is closed").is_ok());
    assert_eq!(
        server.metrics.network.closed.with_label_values(&["no_request"]).get(),
        1
    );
    server.end().await;
}

#[tokio::test]
async fn metrics_port_speaks_http1_alone() {
    let ports = Ports::new(&[(PLAIN, PortPurpose::Both), (PLAIN, PortPurpose::Metrics)]);
    let server = Running::start(ports, Store::with(0));
    let mut client = TcpStream::connect(server.address(1)).await.unwrap();
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut reply = Vec::new();
    if let Err(error) = client.read_to_end(&mut reply).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    assert!(reply.is_empty(), "{reply:?}");
    let page = ask(&mut TcpStream::connect(server.address(1)).await.unwrap(), "/metrics").await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"));
    server.end().await;
}

/// Checks that a client can connect while as many connections as there are slots have sent this part of a handshake.
async fn gets_in_beside(sent: &[u8]) {
    const OTHERS: i64 = 1_100;
    let ca = Ca::new("ca");
    let dir = Files::new(&ca);
    let ports = Ports::new(&[(SECURE, PortPurpose::Both)]).with_tls(&dir);
    let server = Running::start(ports, Store::with(9));
    let leaf = ca.client("apiserver");
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ca.pem))
        .domain_name("brain.example")
        .identity(Identity::from_pem(leaf.cert, leaf.key));
    let endpoint = Endpoint::from_shared(server.urls[0].clone())
        .unwrap()
        .tls_config(tls)
        .unwrap();
    let mut others = Vec::new();
    for _ in 0..OTHERS {
        let mut other = server.dial().await;
        other.write_all(sent).await.unwrap();
        others.push(other);
    }
    while server.metrics.network.connections.get() < OTHERS {
        tokio::task::yield_now().await;
    }
    // No handshake needs to be aborted first.
    check(&endpoint.connect().await.unwrap(), "").await.unwrap();
    assert_eq!(server.metrics.network.handshakes_failed.get(), 0);
    drop(others);
    server.end().await;
}

#[tokio::test]
async fn silent_connections_take_no_turns_to_shake_hands() {
    gets_in_beside(b"").await;
}

#[tokio::test]
async fn first_byte_of_a_handshake_takes_no_turn() {
    gets_in_beside(&[0x16]).await;
}

/// Sends a byte each 15 seconds until the server has closed the connection; returns what it answered.
async fn dripped(io: &mut TcpStream) -> Vec<u8> {
    let mut reply = Vec::new();
    for _ in 0..10 {
        if let Ok(read) = tokio::time::timeout(Duration::from_secs(15), io.read_to_end(&mut reply)).await {
            read.unwrap();
            return reply;
        }
        io.write_all(b" ").await.unwrap();
    }
    panic!("it goes on for ever");
}

#[tokio::test(start_paused = true)]
async fn json_has_to_come_at_a_rate() {
    let (server, asked) = start();
    let mut slow = server.dial().await;
    let head = "POST /v3/kv/put HTTP/1.1\r\nhost: brain\r\ncontent-length: 1000\r\nconnection: close\r\n\r\n";
    slow.write_all(format!("{head}{{").as_bytes()).await.unwrap();
    let reply = String::from_utf8(dripped(&mut slow).await).unwrap();
    assert!(reply.starts_with("HTTP/1.1 504 "), "{reply}");
    assert_eq!(asked.begun.load(Ordering::SeqCst), 0);
    server.end().await;
}

#[tokio::test]
async fn client_that_pings_too_often_is_told_so_unless_it_is_answered_meanwhile() {
    let (server, _) = start_with(|options| options.keepalive.min_time = Duration::from_secs(3600));
    let io = server.dial().await;
    let (send, mut connection) = h2::client::handshake(io).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut client = Client {
        send,
        driver: Owned::start(connection),
    };
    for _ in 0..20 {
        let response = client.ask("KV/Range", b"10", None).await;
        assert_eq!(ended(response).await.0, 0);
        pings.ping(h2::Ping::opaque()).await.unwrap();
    }
    for _ in 0..2 {
        pings.ping(h2::Ping::opaque()).await.unwrap();
    }
    pings.ping(h2::Ping::opaque()).await.unwrap_err();
    let error = client.driver.end().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    assert!(error.to_string().contains("too_many_pings"), "{error}");
}

/// As clients of grpc-go do to measure the bandwidth, once per round trip.
#[tokio::test]
async fn client_may_ping_for_each_piece_of_a_large_answer() {
    const WINDOW: u32 = 16 << 10;
    let (server, _) = start_with(|options| options.keepalive.min_time = Duration::from_secs(3600));
    let io = server.dial().await;
    let handshake = h2::client::Builder::new().initial_window_size(WINDOW).handshake(io);
    let (send, mut connection) = handshake.await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut client = Client {
        send,
        driver: Owned::start(connection),
    };
    let response = client.ask("KV/Range", b"1000000", None).await.await.unwrap();
    let (mut body, mut pieces) = (response.into_body(), 0);
    while let Some(bytes) = body.data().await {
        pings.ping(h2::Ping::opaque()).await.unwrap();
        body.flow_control().release_capacity(bytes.unwrap().len()).unwrap();
        pieces += 1;
    }
    assert!(pieces > 50, "{pieces} pieces");
}
