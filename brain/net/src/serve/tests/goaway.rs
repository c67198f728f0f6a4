//! SETTINGS and GOAWAY: how a connection over HTTP/2 begins and ends.

use super::*;

/// Reads the next HTTP/2 frame: type, flags and payload.
pub(super) async fn frame(io: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    io.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], payload)
}

#[tokio::test]
async fn client_that_waits_for_settings_gets_them_when_a_store_answers() {
    let waiting = NotReady::new(Refusal::new(refusal::RefusalCode::NoLeader, "no store"));
    let server = Running::with(Ports::new(&[(PLAIN, PortPurpose::Both)]), |metrics| {
        waiting.services(Arc::clone(metrics))
    });
    let mut patient = server.dial().await;
    patient.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    patient.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    // A client that sends a request at once is answered.
    let endpoint = Endpoint::from_shared(server.urls[0].clone()).unwrap();
    let hasty = endpoint.connect().await.unwrap();
    let refused = check(&hasty, "").await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
    let early = patient.try_read(&mut [0; 9]).unwrap_err();
    assert_eq!(early.kind(), io::ErrorKind::WouldBlock);

    server.open.replace(services(Store::with(9), probes(), &server.metrics));
    assert_eq!(frame(&mut patient).await.0, 4, "SETTINGS");
    check(&hasty, "").await.unwrap();
    drop(patient);
    server.end().await;
}

#[tokio::test]
async fn settings_are_sent_once_before_the_first_request() {
    let server = Running::plain(Store::with(9));
    let mut io = server.dial().await;
    io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let (kind, flags, settings) = frame(&mut io).await;
    assert_eq!((kind, flags), (4, 0), "SETTINGS");
    let streams = [&[0, 3][..], &u32::MAX.to_be_bytes()].concat();
    assert!(
        settings.chunks(6).any(|setting| setting == streams),
        "SETTINGS_MAX_CONCURRENT_STREAMS in {settings:?}"
    );
    io.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).await.unwrap();
    // From a PING on, h2 handles the connection.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    io.write_all(&ping).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (kind, flags, _) = frame(&mut io).await;
        seen.push((kind, flags));
    }
    seen.sort_unstable();
    assert_eq!(
        seen,
        [(4, 1), (6, 1), (8, 0)],
        "two acknowledgements, and the connection's window"
    );
    drop(io);
    server.end().await;
}

#[tokio::test]
async fn client_that_waits_after_its_settings_is_served() {
    let server = Running::plain(Store::with(9));
    let mut io = server.dial().await;
    let client = h2::client::Builder::new();
    let (send, connection) = client.handshake::<_, bytes::Bytes>(&mut io).await.unwrap();
    let mut connection = std::pin::pin!(connection);
    // The server's SETTINGS allow more streams than a client assumes.
    let heard = std::future::poll_fn(|cx| {
        assert!(connection.as_mut().poll(cx).is_pending(), "the connection ended");
        if connection.max_concurrent_send_streams() > 1_000_000 {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    });
    tokio::time::timeout(Duration::from_secs(30), heard).await.unwrap();
    let mut send = send.ready().await.unwrap();
    let request = ::http::Request::get(format!("{}/version", server.urls[0]));
    let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
    let response = tokio::select! {
        response = response => response.unwrap(),
        _ = &mut connection => panic!("the connection ended"),
    };
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn client_without_a_request_is_told_to_go() {
    let server = Running::plain(Store::with(9));
    let mut io = server.dial().await;
    io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    assert_eq!(frame(&mut io).await.0, 4, "SETTINGS");
    server.end().await;
    let (kind, _, payload) = frame(&mut io).await;
    assert_eq!((kind, payload), (7, vec![0; 8]), "GOAWAY without an error");
    assert_eq!(io.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn request_on_a_connection_that_is_opened_while_the_server_stops_is_told_to_go_elsewhere() {
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // HEADERS of stream 1: GET, http, /, without an authority.
    let request = [0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84];
    for sent_before in [0, 10, hello.len()] {
        let server = Running::plain(Store::with(0));
        let mut io = server.dial().await;
        io.write_all(&hello[..sent_before]).await.unwrap();
        server.leave.cancel();
        tokio::task::yield_now().await;
        io.write_all(&[&hello[sent_before..], &request].concat()).await.unwrap();
        let mut kinds = Vec::new();
        while io.peek(&mut [0]).await.unwrap() > 0 {
            kinds.push(frame(&mut io).await);
        }
        let (kind, _, payload) = kinds.last().unwrap();
        assert_eq!(kinds[0].0, 4, "SETTINGS");
        assert_eq!((*kind, &payload[..4]), (7, &[0; 4][..]), "GOAWAY that begins no stream");
        drop(io);
        server.end().await;
    }
}

/// Returns an HTTP/2 PING, or its answer.
fn ping(is_answer: bool, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, 8, 6, u8::from(is_answer), 0, 0, 0, 0], payload].concat()
}

#[tokio::test]
async fn client_that_sends_more_after_goaway_reads_it_and_is_not_reset() {
    for first in [vec![], ping(false, &[7; 8])] {
        let server = Running::plain(Store::with(0));
        let mut io = server.dial().await;
        let hello = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &[0, 0, 0, 4, 0, 0, 0, 0, 0],
            &first,
        ]
        .concat();
        io.write_all(&hello).await.unwrap();
        assert_eq!(frame(&mut io).await.0, 4, "SETTINGS");
        server.leave.cancel();
        let mut last = 0;
        while io.peek(&mut [0]).await.unwrap() > 0 {
            let (kind, flags, payload) = frame(&mut io).await;
            if (kind, flags) == (6, 0) {
                io.write_all(&ping(true, &payload)).await.unwrap();
            }
            last = kind;
        }
        assert_eq!(last, 7, "GOAWAY");
        // The client pauses for some time first.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        tokio::time::resume();
        for _ in 0..100 {
            io.write_all(&ping(false, &[8; 8])).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(io.read(&mut [0]).await.unwrap(), 0);
        drop(io);
        server.end().await;
    }
}
