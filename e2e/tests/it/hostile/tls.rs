//! Ports with certificates: a client without a certificate is not served, and does not shut out other clients.

use std::fs;
use std::net::TcpStream as BlockingStream;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::*;

const SILENT_CONNECTIONS: usize = 6_000;

/// An authority, a certificate of a server and one of a client, and their files.
pub(super) struct Pki {
    dir: TempDir,
    ca: String,
    client: (String, String),
}

impl Pki {
    pub(super) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let issue = |usage| {
            let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
        };
        let server = issue(ExtendedKeyUsagePurpose::ServerAuth);
        let client = issue(ExtendedKeyUsagePurpose::ClientAuth);
        for (name, content) in [("ca.crt", &ca), ("server.crt", &server.0), ("server.key", &server.1)] {
            fs::write(dir.path().join(name), content).unwrap();
        }
        Self { dir, ca, client }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Flags of a server on this port that asks for certificates.
    pub(super) fn flags(&self, port: u16) -> Vec<String> {
        vec![
            format!("--listen-client-urls=https://127.0.0.1:{port}"),
            format!("--advertise-client-urls=https://127.0.0.1:{port}"),
            format!("--cert-file={}", self.file("server.crt").display()),
            format!("--key-file={}", self.file("server.key").display()),
            format!("--trusted-ca-file={}", self.file("ca.crt").display()),
            "--client-cert-auth=true".to_owned(),
        ]
    }

    async fn connect(&self, port: u16) -> Result<Channel, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .identity(Identity::from_pem(&self.client.0, &self.client.1));
        let endpoint = Endpoint::new(format!("https://127.0.0.1:{port}"))?.tls_config(tls)?;
        endpoint.connect().await
    }

    /// The answer to `GET path` for a client without a certificate, or the reason why there is none.
    fn get_without_certificate(&self, port: u16, path: &str) -> std::io::Result<String> {
        use std::io::{Read as _, Write as _};
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = BlockingStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut stream = rustls::StreamOwned::new(connection, socket);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn start(flags: &[String]) -> Server {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Server::start(&Program::kubebrain().unwrap(), &flags).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_shut_out_a_client_with_a_certificate() {
    let _deadline = deadline();
    let pki = Pki::new();
    let port = free_ports().unwrap().client;
    let _server = start(&pki.flags(port));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut held = Vec::new();
    for _ in 0..SILENT_CONNECTIONS / 100 {
        // a kernel that takes no more of them ends the attack
        let opened = join_all((0..100).map(|_| timeout(Duration::from_secs(2), http2::connect(address))));
        held.extend(opened.await.into_iter().flatten().flatten());
    }
    let served = timeout(ANSWER_TIMEOUT, async {
        let mut client = KvClient::new(pki.connect(port).await.unwrap());
        client.put(put("a", b"b".to_vec())).await.unwrap();
    });
    served.await.expect("a client with a certificate gets in");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn https_metrics_port_asks_for_certificates() {
    let _deadline = deadline();
    let pki = Pki::new();
    let ports = free_ports().unwrap();
    let (port, metrics) = (ports.client, ports.peer);
    let mut flags = pki.flags(port);
    flags.push(format!("--listen-metrics-urls=https://127.0.0.1:{metrics}"));
    let _server = start(&flags);
    let answer = tokio::task::block_in_place(|| pki.get_without_certificate(metrics, "/metrics"));
    let shown = answer.map(|answer| answer.lines().next().unwrap_or_default().to_owned());
    assert!(!shown.as_ref().is_ok_and(|line| line.contains(" 200 ")), "{shown:?}");
}
