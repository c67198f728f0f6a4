//! Clients that occupy as many resources as they can, over WebSockets.

use super::super::*;
use super::{dripped, start};

/// Opens a WebSocket for watches.
async fn open(server: &Running) -> TcpStream {
    let mut io = server.dial().await;
    let head = "GET /v3/watch HTTP/1.1\r\nhost: brain\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    io.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(io.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 101 ") && answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "{answer}"
    );
    io
}

/// A frame of a client, whose mask changes nothing.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u64).to_be_bytes();
    [&[0x80 | kind, 0xff][..], &len, &[0; 4], payload].concat()
}

#[tokio::test]
async fn end_of_a_web_socket_is_answered() {
    let (server, _) = start();
    let mut io = open(&server).await;
    // Closed for no special reason: 1000.
    io.write_all(&[0x88, 0x82, 0, 0, 0, 0, 3, 0xe8]).await.unwrap();
    let mut answer = Vec::new();
    io.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [0x88, 2, 3, 0xe8]);
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn web_socket_of_a_client_that_only_pings_stays_open() {
    let (server, _) = start();
    let mut io = open(&server).await;
    for _ in 0..3 {
        io.write_all(&[0x89, 0x84, 0, 0, 0, 0, b'p', b'i', b'n', b'g'])
            .await
            .unwrap();
        let mut pong = [0; 6];
        io.read_exact(&mut pong).await.unwrap();
        assert_eq!(pong, *b"\x8a\x04ping");
        // Much longer than a message may take.
        tokio::time::sleep(12 * HANDSHAKE_TIMEOUT).await;
    }
    server.end().await;
}

#[tokio::test]
async fn messages_of_a_web_socket_behind_the_end_of_its_requests_are_thrown_away() {
    const TEXT: u8 = 1;
    let (server, asked) = start();
    let mut io = open(&server).await;
    for text in [r#"{"create_request":{}}"#, "x"] {
        io.write_all(&frame(TEXT, text.as_bytes())).await.unwrap();
    }
    for _ in 0..5 {
        io.write_all(&frame(TEXT, &[b' '; 100_000])).await.unwrap();
    }
    drop(io);
    let gone = async {
        while server.metrics.network.connections.get() > 0 {
            // The server's threads send no notification.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    assert_eq!(asked.begun.load(Ordering::SeqCst), 1);
    assert_eq!(server.metrics.network.held.get(), 0);
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn message_of_a_web_socket_is_charged_and_has_to_come_at_a_rate() {
    let (server, _) = start();
    let mut slow = open(&server).await;
    let before = server.metrics.network.held.get();
    // The first half of a text of a million bytes.
    let frame = [
        &[0x81, 0xff][..],
        &1_000_000_u64.to_be_bytes(),
        &[0; 4],
        &[b' '; 500_000],
    ]
    .concat();
    slow.write_all(&frame).await.unwrap();
    while server.metrics.network.held.get() < before + 3 * 500_000 {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_secs(600), dripped(&mut slow))
        .await
        .unwrap();
    while server.metrics.network.held.get() > before {
        tokio::task::yield_now().await;
    }
    server.end().await;
}
