//! Requests as clients of other languages write them.

use bytes::Bytes;
use h2::client::SendRequest;

use super::goaway::frame;
use super::*;
use runtime::tasks::Owned;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn text(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// A call of the health service on a stream, with a field for its authority.
fn call(stream: u32, authority: &[u8]) -> Vec<u8> {
    let block = [
        &[0x83, 0x86, 0x04][..],
        &text("/grpc.health.v1.Health/Check"),
        authority,
        &[0x0f, 0x10],
        &text("application/grpc"),
    ]
    .concat();
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    [frame(HEADERS, END_HEADERS, &block), frame(0, END_STREAM, &[0; 5])].concat()
}

/// Reads until a response is complete.
async fn answered(io: &mut TcpStream) -> bool {
    loop {
        let (kind, flags, _) = frame(io).await;
        match kind {
            HEADERS if flags & END_STREAM != 0 => return true,
            RST_STREAM | GOAWAY => return false,
            _ => {}
        }
    }
}

#[tokio::test]
async fn authority_may_be_what_go_takes() {
    let server = Running::plain(Store::with(9));
    for authority in [
        "unix:/var/run/etcd.sock",
        "#initially=[http://127.0.0.1:2379]",
        "#initially=[http://a:2379;http://b:2379]",
        "etcd-endpoints:",
        "::1:2379",
        "/var/run/etcd.sock",
        "%2Fvar%2Frun%2Fetcd.sock",
        "my_etcd:2379",
    ] {
        let mut io = server.dial().await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        io.write_all(preface).await.unwrap();
        let entry = [&[0x41][..], &text(authority)].concat();
        // Later requests name the entry that the first one has made.
        for (stream, field) in [(1, &entry[..]), (3, &[0xbe][..]), (5, &[0x81][..]), (7, &[][..])] {
            io.write_all(&call(stream, field)).await.unwrap();
            assert!(answered(&mut io).await, "{authority}, stream {stream}");
        }
    }
    server.end().await;
}

/// A connection, with a request whose headers are as long as these values.
async fn begin(send: &mut SendRequest<Bytes>, values: &[usize]) -> Result<::http::Response<h2::RecvStream>, h2::Error> {
    let mut request = ::http::Request::post("http://brain/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    for len in values {
        let value = ::http::HeaderValue::from_str(&"p".repeat(*len)).unwrap();
        request.headers_mut().append("x-pad", value);
    }
    std::future::poll_fn(|cx| send.poll_ready(cx)).await?;
    let (response, mut body) = send.send_request(request, false)?;
    body.send_data(Bytes::from_static(&[0; 5]), true)?;
    response.await
}

#[tokio::test]
async fn long_headers_are_taken_and_those_that_are_too_long_end_their_stream_alone() {
    let server = Running::plain(Store::with(9));
    let io = server.dial().await;
    let (mut send, connection) = h2::client::handshake(io).await.unwrap();
    let _driver = Owned::start(connection);
    for values in [&[30_000][..], &[9_000; 11], &[200; 400], &[500_000]] {
        let response = begin(&mut send, values).await.unwrap();
        assert_eq!(response.status(), 200, "{} values", values.len());
    }
    // It is answered, or its stream reset.
    let refused = begin(&mut send, &[550_000, 550_000]).await;
    assert!(refused.is_err() || refused.is_ok_and(|refused| refused.status() == 431));
    assert_eq!(begin(&mut send, &[]).await.unwrap().status(), 200);
    drop(send);
    server.end().await;
}

/// A head of HTTP/1.1 with a padding of this length, in fields of 1,000 bytes.
fn head_with(padding: usize, connection: &str) -> String {
    let fields = format!("x-pad: {}\r\n", "p".repeat(1000)).repeat(padding / 1000);
    format!("GET /livez HTTP/1.1\r\nhost: brain\r\nconnection: {connection}\r\n{fields}\r\n")
}

#[tokio::test]
async fn long_heads_of_http1_are_taken_and_those_that_are_too_long_are_refused() {
    let server = Running::plain(Store::with(9));
    for (padding, status) in [(0, "200"), (100_000, "200"), (900_000, "200"), (1_060_000, "431")] {
        let (mut from, mut to) = server.dial().await.into_split();
        // The server may answer, and close, before it has read all.
        let head = head_with(padding, "close");
        let sent = async { to.write_all(head.as_bytes()).await.is_ok() || padding > 1_000_000 };
        let mut answer = [0; 12];
        let (sent, read) = tokio::join!(sent, from.read_exact(&mut answer));
        assert!(sent && read.is_ok(), "{padding}");
        assert_eq!(answer[9..], *status.as_bytes(), "{padding}");
    }
    server.end().await;
}

/// hyper keeps the buffer of a long head for the next one.
#[tokio::test]
async fn long_head_of_http1_is_charged_while_it_arrives_and_until_its_connection_ends() {
    let server = Running::plain(Store::with(9));
    let held = || server.metrics.network.held.get();
    let mut io = server.dial().await;
    let head = head_with(500_000, "keep-alive");
    let (begun, rest) = head.split_at(head.len() - 2);
    io.write_all(begun.as_bytes()).await.unwrap();
    while held() < 2 * 500_000 {
        tokio::task::yield_now().await;
    }
    for head in [rest, &head_with(0, "keep-alive")] {
        io.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok\n") {
            answer.push(io.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        assert!(held() >= 2 * 500_000, "{} bytes", held());
    }
    drop(io);
    while held() >= 500_000 {
        tokio::task::yield_now().await;
    }
    server.end().await;
}

#[tokio::test]
async fn empty_lines_before_a_request_are_few() {
    let server = Running::plain(Store::with(9));
    let mut io = server.dial().await;
    io.write_all(b"\r\n\r\n").await.unwrap();
    assert!(ask(&mut io, "/livez").await.starts_with("HTTP/1.1 200"));
    let mut io = server.dial().await;
    io.write_all(&b"\r\n".repeat(30)).await.unwrap();
    let mut answer = Vec::new();
    // It is closed, or reset for what was not read.
    let _ended = io.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
    let closed = server.metrics.network.closed.with_label_values(&["empty_lines"]);
    assert_eq!(closed.get(), 1);
    server.end().await;
}
