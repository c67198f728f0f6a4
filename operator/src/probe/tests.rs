//! Brains that answer correctly, and brains that give false answers.

use std::io::Write as _;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use plan::certificates::{Authority, CertificatePair, CertificateRequest, Leaf};
use plan::names::Names;
use plan::testing::full;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;

const HOST: &str = "dev-0.dev-headless.brains.svc";

fn names() -> Names {
    Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    }
}

/// A server for one connection. The task ends when the connection does.
async fn serve<F, E>(behaviour: impl FnOnce(TcpStream) -> F + Send + 'static) -> (SocketAddr, JoinHandle<E>)
where
    F: Future<Output = E> + Send + 'static,
    E: Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test's server has no Tasks")]
    let task = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        behaviour(stream).await
    });
    (address, task)
}

/// Answers one request over HTTP/2, and returns it with its body.
pub(crate) async fn reply<T>(
    io: T,
    code: u16,
    body: Bytes,
    trailers: &[(&'static str, &'static str)],
) -> (Request<()>, Bytes)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = h2::server::handshake(io).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let (head, mut upload) = request.into_parts();
    let exchange = async {
        let mut sent = BytesMut::new();
        while let Some(part) = upload.data().await {
            sent.extend_from_slice(&part.unwrap());
        }
        let response = http::Response::builder().status(code).body(()).unwrap();
        let mut download = respond.send_response(response, false).unwrap();
        download.send_data(body, trailers.is_empty()).unwrap();
        if !trailers.is_empty() {
            let all = trailers
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            download.send_trailers(all.collect()).unwrap();
        }
        sent.freeze()
    };
    let drive = async {
        while let Some(more) = connection.accept().await {
            drop(more);
        }
    };
    let (sent, ()) = tokio::join!(exchange, drive);
    (Request::from_parts(head, ()), sent)
}

async fn asked(address: SocketAddr) -> Result<MemberAnswer, String> {
    member(address, HOST, None, None).await.map_err(|silence| silence.text)
}

#[tokio::test]
async fn brain_is_asked_without_tls() {
    let (address, server) = serve(|stream| reply(stream, 200, full().to_string().into(), &[])).await;
    assert_eq!(asked(address).await.unwrap().name, "dev-0");
    let (request, _) = server.await.unwrap();
    assert_eq!((request.method().as_str(), request.uri().path()), ("GET", "/member"));

    let (address, server) = serve(|stream| reply(stream, 200, full().to_string().into(), &[])).await;
    member(address, HOST, None, Some(7)).await.unwrap();
    assert_eq!(server.await.unwrap().0.uri().query(), Some("after=7"));
}

#[tokio::test]
async fn refusals_say_what_was_answered() {
    let (address, _server) = serve(|stream| reply(stream, 404, "404 page not found".into(), &[])).await;
    assert_eq!(
        asked(address).await.unwrap_err(),
        "it has no /member endpoint: its version is older than this operator supports"
    );
    let body = format!("too many\n{}", "x".repeat(5000));
    let (address, _server) = serve(|stream| reply(stream, 429, body.into(), &[])).await;
    let error = asked(address).await.unwrap_err();
    assert!(
        error.starts_with("it answered 429: too manyxxx") && error.len() < 300,
        "{error}"
    );
    let refused = asked("127.0.0.1:1".parse().unwrap()).await.unwrap_err();
    assert!(refused.starts_with("no connection: "), "{refused}");
    let nowhere = ask("nowhere", HOST, None).await.unwrap_err();
    assert!(nowhere.text.contains("\"nowhere\""), "{nowhere:?}");
}

#[tokio::test]
async fn brain_that_does_not_serve_says_why_by_a_code() {
    let body = json!({"refusal": {"code": "PrefixTaken", "message": "it is\n another's"}});
    let (address, _server) = serve(move |stream| reply(stream, 503, body.to_string().into(), &[])).await;
    let silence = member(address, HOST, None, None).await.unwrap_err();
    assert_eq!(silence.text, "it does not serve: it is another's");
    let refusal = silence.refusal.unwrap();
    assert_eq!(
        (refusal.code.as_str(), refusal.message.as_str()),
        ("PrefixTaken", "it is another's")
    );
    let (address, _server) = serve(|stream| reply(stream, 503, "TiKV is away".into(), &[])).await;
    let silence = member(address, HOST, None, None).await.unwrap_err();
    assert_eq!(silence, ProbeFailure::from("it answered 503: TiKV is away".to_owned()));
}

#[tokio::test]
async fn answer_of_four_megabytes_is_cut_off() {
    let (address, server) = serve(|stream| reply(stream, 200, vec![b' '; 4 << 20].into(), &[])).await;
    assert_eq!(
        asked(address).await.unwrap_err(),
        "its answer is longer than 65536 bytes"
    );
    server.await.unwrap();
}

#[tokio::test]
async fn endless_answer_is_cut_off_and_its_connection_closed() {
    let (address, server) = serve(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut download = respond.send_response(http::Response::new(()), false).unwrap();
        let endless = async {
            loop {
                download.reserve_capacity(1000);
                let capacity = std::future::poll_fn(|context| download.poll_capacity(context)).await;
                let Some(Ok(capacity)) = capacity else { return };
                if download.send_data(vec![b'['; capacity].into(), false).is_err() {
                    return;
                }
            }
        };
        let drive = async { while connection.accept().await.is_some() {} };
        tokio::join!(endless, drive);
    })
    .await;
    assert_eq!(
        asked(address).await.unwrap_err(),
        "its answer is longer than 65536 bytes"
    );
    server.await.unwrap();
}

#[tokio::test]
async fn endless_headers_are_cut_off() {
    let (address, server) = serve(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut response = http::Response::new(());
        for number in 0..300 {
            let name: http::HeaderName = format!("x-{number}").parse().unwrap();
            response.headers_mut().insert(name, "y".repeat(1000).parse().unwrap());
        }
        drop(respond.send_response(response, true));
        while connection.accept().await.is_some_and(|accepted| accepted.is_ok()) {}
    })
    .await;
    let error = asked(address).await.unwrap_err();
    assert!(error.starts_with("the connection failed"), "{error}");
    server.await.unwrap();
}

#[tokio::test]
async fn garbage_instead_of_http_is_an_error() {
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0xff; 100_000], b""] {
        let (address, server) = serve(move |mut stream| async move {
            use tokio::io::AsyncWriteExt as _;
            // The client may close the connection in the middle of this.
            drop(stream.write_all(garbage).await);
            drop(stream.shutdown().await);
            drop(stream.read_to_end(&mut Vec::new()).await);
        })
        .await;
        let error = asked(address).await.unwrap_err();
        assert!(error.starts_with("the connection failed"), "{error}");
        server.await.unwrap();
    }
}

#[tokio::test]
async fn silent_brain_costs_two_seconds() {
    let silent = |mut stream: TcpStream| async move { stream.read_to_end(&mut Vec::new()).await.map(drop) };
    let (address, server) = serve(silent).await;
    let began = tokio::time::Instant::now();
    assert_eq!(asked(address).await.unwrap_err(), "it did not answer in time");
    assert!(began.elapsed() < 5 * ANSWER_TIMEOUT, "{:?}", began.elapsed());
    server.await.unwrap().unwrap();

    let (_, operator, _) = pairs();
    let (address, server) = serve(silent).await;
    let error = member(address, HOST, Some(&operator), None).await.unwrap_err();
    assert_eq!(error.text, "no connection within 2 s");
    server.await.unwrap().unwrap();
}

/// Returns the authority's certificate, the operator's identity, and a brain's certificate with its key.
fn pairs() -> (String, ClientIdentity, CertificatePair) {
    let now = Timestamp::now();
    let day = Duration::from_secs(24 * 3600);
    let authority = Authority::create("dev", 1, now).unwrap();
    let issue = |leaf| {
        let request = CertificateRequest::new(leaf, &names(), &[], 2 * day, day);
        authority.issue(leaf, &request, now).unwrap()
    };
    let operator = issue(Leaf::OperatorClient);
    let trusted = authority.pair().certificate.clone();
    let identity = ClientIdentity {
        certificate: operator.certificate,
        key: operator.key,
        trusted: trusted.clone(),
    };
    (trusted, identity, issue(Leaf::Server))
}

fn acceptor(trusted: &str, brain: &CertificatePair) -> TlsAcceptor {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(trusted)).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(
            vec![der(&brain.certificate)],
            PrivateKeyDer::from_pem_slice(brain.key.as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn brain_is_asked_with_certificates_on_both_sides() {
    let (trusted, operator, brain) = pairs();
    let tls = acceptor(&trusted, &brain);
    let (address, server) = serve(|stream| async move {
        let stream = tls.accept(stream).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap().len();
        (shown, reply(stream, 200, full().to_string().into(), &[]).await)
    })
    .await;
    let answer = member(address, HOST, Some(&operator), None).await.unwrap();
    assert_eq!(answer.member, 0x8e9e_05c5_2164_694d);
    assert_eq!(server.await.unwrap().0, 1);
}

#[tokio::test]
async fn certificate_of_another_name_or_authority_is_refused() {
    let (trusted, operator, brain) = pairs();
    let stranger = pairs();
    for (host, identity) in [("dev-0.other-headless.brains.svc", &operator), (HOST, &stranger.1)] {
        let tls = acceptor(&trusted, &brain);
        let (address, server) = serve(|stream| async move { tls.accept(stream).await.is_err() }).await;
        let error = member(address, host, Some(identity), None).await.unwrap_err();
        let error = error.text;
        assert!(error.starts_with("no connection: invalid peer certificate"), "{error}");
        assert!(error.len() < 300, "{error}");
        assert!(server.await.unwrap());
    }
}

#[tokio::test]
async fn hand_over_names_the_member_by_its_id() {
    let (address, server) = serve(|stream| {
        let empty = Bytes::from_static(&[0, 0, 0, 0, 0]);
        reply(stream, 200, empty, &[("grpc-status", "0")])
    })
    .await;
    transfer(address, HOST, None, 0x8e9e_05c5_2164_694d).await.unwrap();
    let (request, body) = server.await.unwrap();
    assert_eq!(request.uri().path(), "/etcdserverpb.Maintenance/MoveLeader");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    // Field 1 as a varint: seven bits a byte, lowest first.
    let mut expected = vec![0, 0, 0, 0, 11, 8];
    let mut rest = 0x8e9e_05c5_2164_694d_u64;
    while rest >= 128 {
        expected.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    expected.write_all(&[u8::try_from(rest).unwrap()]).unwrap();
    assert_eq!(&body[..], expected);
}

#[tokio::test]
async fn refused_hand_over_says_why() {
    let refusal = &[("grpc-status", "9"), ("grpc-message", "etcdserver: not leader")];
    let (address, _server) = serve(|stream| reply(stream, 200, Bytes::new(), refusal)).await;
    let error = transfer(address, HOST, None, 1).await.unwrap_err();
    assert_eq!(error, "it refused with gRPC code 9: etcdserver: not leader");
    let (address, _server) = serve(|stream| reply(stream, 200, Bytes::new(), &[])).await;
    let error = transfer(address, HOST, None, 1).await.unwrap_err();
    assert_eq!(error, "it answered 200 without a gRPC status");
}
