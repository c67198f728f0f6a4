use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;
use prost::Message as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tower::ServiceExt as _;

mod foreign;
mod goaway;
mod hostile;
mod spans;
mod unary;

use super::*;
use crate::grpc_health::HealthService;
use crate::http::AlarmKind;
use crate::not_ready::NotReady;
use crate::refusal::{self, Refusal};
use etcd_types::pb::healthpb::HealthCheckRequest;
use etcd_types::pb::healthpb::health_client::HealthClient;
use etcd_types::pb::healthpb::health_server::HealthServer;
use telemetry::otel::Tracing;
use testkit::certificates::Ca;

/// A store whose reads wait for a permit.
struct Store {
    turns: Semaphore,
    asked: AtomicUsize,
}

impl Store {
    fn with(turns: usize) -> Arc<Store> {
        Arc::new(Store {
            turns: Semaphore::new(turns),
            asked: AtomicUsize::new(0),
        })
    }
}

#[tonic::async_trait]
impl HealthChecks for Store {
    async fn linearizable_read(&self) -> Result<(), String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.turns.acquire().await.map_err(|error| error.to_string())?.forget();
        Ok(())
    }

    async fn serializable_read(&self) -> Result<(), String> {
        self.linearizable_read().await
    }

    fn alarms(&self) -> Vec<AlarmKind> {
        Vec::new()
    }

    fn has_leader(&self) -> bool {
        true
    }
}

const PLAIN: &str = "http://127.0.0.1:0";
const SECURE: &str = "https://127.0.0.1:0";

/// The ports of a server, and their options.
struct Ports {
    urls: Vec<(Url, PortPurpose)>,
    tls: TlsOptions,
    options: PortOptions,
}

impl Ports {
    fn new(urls: &[(&str, PortPurpose)]) -> Ports {
        let urls = urls.iter().map(|(url, purpose)| (Url::parse(url).unwrap(), *purpose));
        Ports {
            urls: urls.collect(),
            tls: TlsOptions::default(),
            options: PortOptions::default(),
        }
    }

    fn with_tls(self, files: &Files) -> Ports {
        let tls = files.options();
        Ports { tls, ..self }
    }
}

/// A server in this process.
struct Running {
    urls: Vec<String>,
    leave: CancellationToken,
    stop: CancellationToken,
    tasks: Tasks,
    metrics: Arc<Metrics>,
    open: OpenPorts,
}

fn services(store: Arc<Store>, routes: Routes, metrics: &Arc<Metrics>) -> PortServices {
    PortServices {
        has_leader: None,
        slow: None,
        tracing: Tracing::default(),
        is_open: true,
        routes,
        unary: UnaryRpcs::default(),
        health: store,
        member: Err(Arc::new(|| Refusal::new(refusal::RefusalCode::NoLeader, "no store"))),
        metrics: Arc::clone(metrics),
    }
}

fn probes() -> Routes {
    let probes = HealthServer::new(HealthService {
        stop: CancellationToken::new(),
    });
    let mut routes = Routes::builder();
    routes.add_service(probes.max_decoding_message_size(64));
    routes.routes()
}

impl Running {
    fn start(ports: Ports, store: Arc<Store>) -> Running {
        Running::serving(ports, store, probes())
    }

    fn serving(ports: Ports, store: Arc<Store>, routes: Routes) -> Running {
        Running::with(ports, |metrics| services(store, routes, metrics))
    }

    fn with(ports: Ports, services: impl FnOnce(&Arc<Metrics>) -> PortServices) -> Running {
        Running::by_clock(ports, tls::now, services)
    }

    fn by_clock(ports: Ports, clock: fn() -> i64, services: impl FnOnce(&Arc<Metrics>) -> PortServices) -> Running {
        let server = Server::bind(&ports.urls, &ports.tls, ports.options).unwrap();
        let server = Server { clock, ..server };
        let urls = server.bound().unwrap();
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let metrics = Arc::new(Metrics::new(false));
        let leave = stop.child_token();
        let services = services(&metrics);
        let open = server.start(services, &leave, &stop, Duration::from_secs(3), &mut tasks);
        Running {
            urls,
            leave,
            stop,
            tasks,
            metrics,
            open,
        }
    }

    fn plain(store: Arc<Store>) -> Running {
        Running::start(Ports::new(&[(PLAIN, PortPurpose::Both)]), store)
    }

    fn address(&self, index: usize) -> &str {
        self.urls[index].split("://").nth(1).unwrap()
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.address(0)).await.unwrap()
    }

    async fn end(self) {
        self.leave.cancel();
        self.tasks.join().await.unwrap();
    }
}

/// Sends a request over HTTP/1.1 and returns the whole response.
async fn ask(io: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin), path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: brain\r\nconnection: close\r\n\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    io.read_to_string(&mut reply).await.unwrap();
    reply
}

async fn check(channel: &Channel, service: &str) -> Result<(), Status> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    HealthClient::new(channel.clone()).check(request).await.map(|_| ())
}

#[tokio::test]
async fn grpc_and_http_share_a_port() {
    let server = Running::plain(Store::with(9));
    let channel = Endpoint::from_shared(server.urls[0].clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    check(&channel, "").await.unwrap();
    let reply = ask(&mut server.dial().await, "/livez").await;
    assert!(
        reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("\r\n\r\nok\n"),
        "{reply}"
    );
    let reply = ask(&mut server.dial().await, "/grpc.health.v1.Health/Check").await;
    assert!(reply.starts_with("HTTP/1.1 404 "), "{reply}");
    let text = String::from_utf8(server.metrics.render().unwrap()).unwrap();
    let counted = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Check\",grpc_service=\"grpc.health.v1.Health\",grpc_type=\"unary\"} 1\n";
    assert!(text.contains(counted));
    server.end().await;
}

#[tokio::test]
async fn rpcs_that_cannot_be_are_refused_as_grpc_go_does() {
    let server = Running::plain(Store::with(0));
    let channel = Endpoint::from_shared(server.urls[0].clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let long = "x".repeat(100);
    let status = check(&channel, &long).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::ResourceExhausted,
            "grpc: received message larger than max (102 vs. 64)"
        )
    );
    for (path, text) in [
        (
            "/grpc.health.v1.Health/No",
            "unknown method No for service grpc.health.v1.Health",
        ),
        ("/no.Such/Get", "unknown service no.Such"),
    ] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
        let request = tonic::Request::new(HealthCheckRequest::default());
        let status = client
            .unary(request, ::http::uri::PathAndQuery::from_static(path), codec)
            .await
            .unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, text));
    }
    server.end().await;
}

#[tokio::test]
async fn compressed_request_is_answered_in_its_encoding() {
    let server = Running::plain(Store::with(0));
    let endpoint = Endpoint::from_shared(server.urls[0].clone()).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let answer = async |encoding: &str, service: &str| {
        let mut gzip = GzEncoder::new(vec![1, 0, 0, 0, 0], Compression::fast());
        let service = service.to_owned();
        io::Write::write_all(&mut gzip, &HealthCheckRequest { service }.encode_to_vec()).unwrap();
        let mut message = gzip.finish().unwrap();
        message[4] = u8::try_from(message.len() - 5).unwrap();
        let request = ::http::Request::post("/grpc.health.v1.Health/Check")
            .header("content-type", "application/grpc")
            .header("grpc-encoding", encoding)
            .body(tonic::body::Body::new(http_body_util::Full::new(message.into())))
            .unwrap();
        let (head, body) = channel.clone().oneshot(request).await.unwrap().into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let status = Status::from_header_map(&head.headers)
            .or(Status::from_header_map(&trailers))
            .unwrap();
        (status.code(), head.headers.get("grpc-encoding").cloned())
    };
    let gzip = Some(::http::HeaderValue::from_static("gzip"));
    assert_eq!(answer("gzip", "").await, (Code::Ok, gzip));
    // It was read, but there is no message in answer.
    assert_eq!(answer("gzip", "unknown").await, (Code::NotFound, None));
    assert_eq!(answer("odd", "").await, (Code::Unimplemented, None));
    server.end().await;
}

#[tokio::test]
async fn requests_under_way_finish_when_the_server_stops() {
    let store = Store::with(0);
    let server = Running::plain(Arc::clone(&store));
    let mut client = server.dial().await;
    let (leave, stop) = (server.leave.clone(), server.stop.clone());
    let address = server.address(0).to_owned();
    let stopper = async {
        while store.asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        leave.cancel();
        // No new connections: the listener is closed, or a connection that the kernel still accepts is never answered.
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!stop.is_cancelled(), "the store ended before its clients");
        store.turns.add_permits(1);
    };
    let (reply, ()) = tokio::join!(ask(&mut client, "/livez"), stopper);
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    server.tasks.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_grace_period_are_cut_off() {
    let store = Store::with(0);
    let server = Running::plain(Arc::clone(&store));
    let mut client = server.dial().await;
    client
        .write_all(b"GET /livez HTTP/1.1\r\nhost: brain\r\n\r\n")
        .await
        .unwrap();
    while store.asked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    server.end().await;
    let mut reply = Vec::new();
    let ended = client.read_to_end(&mut reply).await;
    assert!(ended.is_err() || reply.is_empty(), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_that_say_nothing_or_never_finish_are_dropped() {
    let ca = Ca::new("ca");
    let dir = Files::new(&ca);
    let ports = Ports::new(&[(PLAIN, PortPurpose::Both), (SECURE, PortPurpose::Both)]).with_tls(&dir);
    let server = Running::start(ports, Store::with(1));
    for (index, said) in [
        (0, &b""[..]),
        (0, b"PRI * HTTP/2.0\r\n"),
        (0, b"GET /health HTTP/1.1\r\nhost: "),
        (1, b""),
        (1, b"\x16\x03\x01\x02\x00\x01"),
    ] {
        let mut client = TcpStream::connect(server.address(index)).await.unwrap();
        client.write_all(said).await.unwrap();
        let mut reply = Vec::new();
        match client.read_to_end(&mut reply).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
        assert!(!reply.windows(6).any(|bytes| bytes == b"200 OK"), "{said:?}");
    }
    while server.metrics.network.connections.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.metrics.network.handshakes_failed.get(), 2);
    server.end().await;
}

/// Certificates in files.
struct Files(TempDir);

impl Files {
    fn new(ca: &Ca) -> Files {
        let (dir, leaf) = (TempDir::new().unwrap(), ca.server());
        fs::write(dir.path().join("tls.crt"), leaf.cert).unwrap();
        fs::write(dir.path().join("tls.key"), leaf.key).unwrap();
        fs::write(dir.path().join("ca.crt"), &ca.pem).unwrap();
        Files(dir)
    }

    fn options(&self) -> TlsOptions {
        let path = |name| self.0.path().join(name);
        TlsOptions {
            pair: Some((path("tls.crt"), path("tls.key"))),
            trusted_ca: Some(path("ca.crt")),
            ..TlsOptions::default()
        }
    }
}

#[tokio::test]
async fn tls_asks_clients_and_scrapers_for_certificates() {
    let ca = Ca::new("ca");
    let dir = Files::new(&ca);
    let urls = [
        (SECURE, PortPurpose::Both),
        (SECURE, PortPurpose::Metrics),
        (PLAIN, PortPurpose::Metrics),
    ];
    let server = Running::start(Ports::new(&urls).with_tls(&dir), Store::with(9));
    let connect = async |index: usize, identity: Option<Identity>| {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&ca.pem))
            .domain_name("brain.example");
        let tls = identity.into_iter().fold(tls, ClientTlsConfig::identity);
        let endpoint = Endpoint::from_shared(server.urls[index].clone())
            .unwrap()
            .tls_config(tls)
            .unwrap();
        // With TLS 1.3 a client learns only from its first request that its certificate was refused.
        match endpoint.connect().await {
            Ok(channel) => check(&channel, "").await.map_err(|status| status.code()),
            Err(_) => Err(Code::Unavailable),
        }
    };
    let leaf = ca.client("apiserver");
    assert_eq!(connect(0, Some(Identity::from_pem(leaf.cert, leaf.key))).await, Ok(()));
    assert!(connect(0, None).await.is_err());
    let stranger = Ca::new("other").client("apiserver");
    assert!(
        connect(0, Some(Identity::from_pem(stranger.cert, stranger.key)))
            .await
            .is_err()
    );
    // As with etcd, but HTTP/2 is not served on this port.
    let leaf = ca.client("prometheus");
    let scraper = Identity::from_pem(leaf.cert, leaf.key);
    for identity in [None, Some(scraper)] {
        assert_ne!(connect(1, identity).await, Err(Code::Unimplemented));
    }
    let mut probe = TcpStream::connect(server.address(2)).await.unwrap();
    assert!(ask(&mut probe, "/livez").await.ends_with("ok\n"));
    server.end().await;
}

#[tokio::test]
async fn connection_is_closed_when_the_certificate_of_its_client_has_expired() {
    let ca = Ca::new("ca");
    let dir = Files::new(&ca);
    let ports = Ports::new(&[(SECURE, PortPurpose::Both)]).with_tls(&dir);
    // Handshakes have the clock of this machine; looks at open connections have one that is far ahead.
    let ahead = || i64::MAX - 1;
    let server = Running::by_clock(ports, ahead, |metrics| services(Store::with(9), probes(), metrics));
    let leaf = ca.client("apiserver");
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&ca.pem))
        .identity(Identity::from_pem(leaf.cert, leaf.key))
        .domain_name("brain.example");
    let endpoint = Endpoint::from_shared(server.urls[0].clone()).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    let closed = server
        .metrics
        .network
        .closed
        .with_label_values(&["certificate_expired"]);
    let goaways = server
        .metrics
        .network
        .goaways
        .with_label_values(&["certificate_expired"]);
    while closed.get() == 0 || goaways.get() == 0 {
        // The client connects again each time.
        drop(check(&channel, "").await);
    }
    drop(channel);
    server.end().await;
}

#[tokio::test]
async fn http_can_have_ports_and_files_of_its_own() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("brain.sock");
    let socket = format!("unix://{}", path.display());
    let ports = Ports::new(&[(&socket, PortPurpose::Grpc), (PLAIN, PortPurpose::Http)]);
    let server = Running::start(ports, Store::with(9));
    assert!(
        ask(&mut UnixStream::connect(&path).await.unwrap(), "/livez")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    let mut client = TcpStream::connect(server.address(1)).await.unwrap();
    assert!(ask(&mut client, "/livez").await.ends_with("ok\n"));
    server.end().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn clients_take_no_memory_from_probes() {
    let ports = Ports::new(&[(PLAIN, PortPurpose::Both), (PLAIN, PortPurpose::Metrics)]);
    let server = Running::start(ports, Store::with(0));
    let mut io = TcpStream::connect(server.address(1)).await.unwrap();
    io.write_all(b"GET /metrics HTTP/1.1\r\nhost: brain\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    io.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"HTTP/1.1 200");
    let network = &server.metrics.network;
    assert!(network.held_for_probes.get() > 0);
    assert_eq!(network.held.get(), 0);
    drop(io);
    server.end().await;
}

#[tokio::test]
async fn request_over_http_1_that_comes_while_the_server_stops_is_answered() {
    const CLIENTS: usize = 8;
    let server = Running::plain(Store::with(CLIENTS));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(server.dial().await);
    }
    server.leave.cancel();
    tokio::task::yield_now().await;
    for io in &mut clients {
        io.write_all(b"GET /health HTTP/1.1\r\nhost: brain\r\n\r\n")
            .await
            .unwrap();
    }
    for mut io in clients {
        let mut answer = String::new();
        io.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    server.end().await;
}

#[tokio::test(start_paused = true)]
async fn idle_connection_of_http_1_delays_no_stop() {
    let server = Running::plain(Store::with(1));
    let mut io = server.dial().await;
    io.write_all(b"GET /health HTTP/1.1\r\nhost: brain\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    io.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"HTTP/1.1 200");
    let began = tokio::time::Instant::now();
    server.end().await;
    assert!(
        began.elapsed() < 2 * lingering_close::LINGER_TIMEOUT,
        "{:?}",
        began.elapsed()
    );
    drop(io);
}
