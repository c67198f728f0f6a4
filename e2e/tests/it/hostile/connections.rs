//! Many connections, and those that say nothing.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::*;

const SOCKETS: usize = 300;
const IDLE_CONNECTIONS: usize = 4_000;
/// Memory that an idle connection may cost, in bytes: before its first request, and after it.
const CONNECTION_BYTES: u64 = 10 << 10;
const EACH_THAT_ASKED: u64 = 24 << 10;
/// Memory that the server may need beside them.
const OTHER_BYTES: u64 = 12 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn metrics_port_survives_streams_that_are_never_read() {
    let _deadline = deadline();
    let mut victim = Victim::with_metrics().await;
    let metrics = victim.metrics.unwrap();
    let mut attackers = Vec::new();
    for _ in 0..4 {
        let Ok(mut attacker) = Http2::open(metrics, 0).await else {
            continue;
        };
        let headers = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/metrics"),
            (":authority", "a"),
        ];
        for _ in 0..10_000 {
            if attacker.request(&headers, true).await.is_err() {
                break; // a port without HTTP/2 ends it
            }
        }
        attackers.push(attacker);
    }
    victim.serves().await;
    victim.is_bounded(MAX_MEMORY_GROWTH / 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_with_only_a_preface_shut_nobody_out() {
    let _deadline = deadline();
    let mut victim = Victim::with_metrics().await;
    let mut held = Vec::new();
    for port in [victim.metrics.unwrap(), victim.address()] {
        for _ in 0..SOCKETS {
            held.extend(Http2::open(port, 0).await);
        }
    }
    victim.serves().await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_with_half_a_request_shut_nobody_out() {
    let _deadline = deadline();
    let mut victim = Victim::with_metrics().await;
    let mut held: Vec<TcpStream> = Vec::new();
    for port in [victim.metrics.unwrap(), victim.address()] {
        for _ in 0..SOCKETS {
            let Ok(mut socket) = http2::connect(port).await else {
                continue;
            };
            if socket
                .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-More: ")
                .await
                .is_ok()
            {
                held.push(socket);
            }
        }
    }
    victim.serves().await;
    drop(held);
}

/// Opens connections, which have sent their settings.
async fn open(address: SocketAddr) -> Vec<Http2> {
    let mut held = Vec::new();
    for _ in 0..IDLE_CONNECTIONS / 100 {
        let opened = join_all((0..100).map(|_| Http2::open(address, 65_535))).await;
        held.extend(opened.into_iter().flatten());
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_cheap() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let held = open(victim.address()).await;
    victim.serves().await;
    victim.is_bounded(CONNECTION_BYTES * u64::try_from(IDLE_CONNECTIONS).unwrap() + OTHER_BYTES);
    drop(held);
    victim.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_asked_once_are_cheap() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let mut held = open(victim.address()).await;
    for connection in &mut held {
        connection
            .unary("/etcdserverpb.KV/Range", &[10, 1, b'a'])
            .await
            .unwrap();
    }
    for connection in &held {
        connection.ended(1).await;
    }
    victim.serves().await;
    victim.is_bounded(EACH_THAT_ASKED * u64::try_from(IDLE_CONNECTIONS).unwrap() + OTHER_BYTES);
    drop(held);
    victim.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_are_not_logged_one_by_one() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    for _ in 0..200 {
        let mut socket = http2::connect(victim.address()).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n").await.unwrap();
        socket.set_zero_linger().unwrap();
    }
    victim.serves().await;
    let said = victim.server.last_lines();
    let warnings = said.lines().filter(|line| line.contains(r#""level":"warn""#)).count();
    assert!(warnings <= 2, "{warnings} warnings among the last lines");
}
