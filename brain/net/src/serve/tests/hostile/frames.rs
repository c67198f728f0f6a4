//! Clients that occupy as many resources as they can, with HTTP/2 frames of their own.

use super::super::*;
use super::{framed, start};
use crate::serve::tests::hostile::start_with;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of an RPC; all lengths fit into seven bits.
fn headers(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // POST and http by their numbers in the static table, the names of the others by theirs, but for "te".
    let fields = [
        &[0x83, 0x86, 0x04][..],
        &text(path),
        &[0x01],
        &text("brain"),
        &[0x0f, 0x10],
        &text("application/grpc"),
        &[0x00],
        &text("te"),
        &text("trailers"),
    ];
    fields.concat()
}

async fn is_closed(server: &Running, reason: &str) -> bool {
    let closed = async {
        while server.metrics.network.closed.with_label_values(&[reason]).get() == 0 {
            // The server's threads send no notification.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.is_ok()
}

/// Each of them may make the server look at all streams of the connection.
#[tokio::test]
async fn settings_without_end_close_the_connection() {
    let (server, _) = start();
    let mut io = server.dial().await;
    io.write_all(PREFACE).await.unwrap();
    let window = |bytes: u32| frame(SETTINGS, 0, 0, &[&[0, 4][..], &bytes.to_be_bytes()].concat());
    for bytes in 0..300 {
        // It may be closed by now.
        if io.write_all(&window(bytes)).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    // A reset is an end, too.
    if let Err(error) = io.read_to_end(&mut answer).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    assert!(is_closed(&server, "settings").await);
    assert_eq!(server.metrics.network.closed.with_label_values(&["settings"]).get(), 1);
    server.end().await;
}

/// Answers without a body are queued, too.
#[tokio::test(flavor = "multi_thread")]
async fn errors_that_nobody_reads_are_charged() {
    let (server, asked) = start_with(|options| options.limits.max_inflight_bytes = 64 << 20);
    let mut io = server.dial().await;
    let large = u32::MAX >> 1;
    let window = frame(SETTINGS, 0, 0, &[&[0, 4][..], &large.to_be_bytes()].concat());
    let more = frame(WINDOW_UPDATE, 0, 0, &(large - 65_535).to_be_bytes());
    io.write_all(&[PREFACE, &window, &more].concat()).await.unwrap();
    // More than the sockets take in.
    let message = framed(b"4000000");
    for n in 0..6 {
        let stream = 2 * n + 1;
        let head = frame(HEADERS, END_HEADERS, stream, &headers("/etcdserverpb.KV/Range"));
        let body = frame(0, END_STREAM, stream, &message);
        io.write_all(&[head, body].concat()).await.unwrap();
    }
    while asked.begun.load(Ordering::SeqCst) < 6 {
        tokio::task::yield_now().await;
    }
    let block = headers("/etcdserverpb.KV/Nothing");
    for n in 6..20_000 {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &block);
        if io.write_all(&request).await.is_err() {
            break;
        }
    }
    assert!(is_closed(&server, "memory").await, "it holds what nobody reads");
    assert_eq!(server.metrics.network.closed.with_label_values(&["memory"]).get(), 1);
    drop(io);
    server.end().await;
}
