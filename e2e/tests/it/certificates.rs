//! Certificates of clients, and the server's own, as other people make them: beside etcd.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use programs::progress::Progress;
use programs::server::{Program, Server, free_ports};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::harness::deadline;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a certificate lasts that a test outlives.
const SHORT_VALIDITY: Duration = Duration::from_secs(8);
/// How long after its end a certificate may still work. Certificates end at whole seconds, and connections are looked at each second.
const EXPIRY_GRACE_PERIOD: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A certificate and its key in PEM.
#[derive(Clone)]
struct Certified {
    certificate: String,
    key: String,
}

/// An authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new(is_ca: IsCa) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = is_ca;
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    fn usual() -> Self {
        Self::new(IsCa::Ca(BasicConstraints::Unconstrained))
    }

    /// Issues a certificate that a test changes before.
    fn issue(&self, usage: ExtendedKeyUsagePurpose, change: impl FnOnce(&mut CertificateParams)) -> Certified {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Certified {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A client's certificate that is trusted as it is.
fn self_signed() -> Certified {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    Certified {
        certificate: params.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

fn write(dir: &Path, name: &str, content: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    path
}

/// A server that asks clients for certificates of `trusted`.
fn start(program: &Program, dir: &Path, own: &Certified, trusted: &str) -> (Server, u16) {
    let port = free_ports().unwrap().client;
    let certificate = write(dir, "server.crt", &own.certificate);
    let key = write(dir, "server.key", &own.key);
    let trusted = write(dir, "trusted.crt", trusted);
    let flags = [
        format!("--listen-client-urls=https://127.0.0.1:{port}"),
        format!("--advertise-client-urls=https://127.0.0.1:{port}"),
        format!("--cert-file={}", certificate.display()),
        format!("--key-file={}", key.display()),
        format!("--trusted-ca-file={}", trusted.display()),
        "--client-cert-auth=true".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    (Server::start(program, &flags).unwrap(), port)
}

/// A client of TLS that resumes sessions wherever a server lets it. It takes any server's certificate.
struct Client {
    config: Arc<rustls::ClientConfig>,
}

impl Client {
    fn new(own: Option<&Certified>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer));
        let config = match own {
            Some(own) => {
                let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        Self {
            config: Arc::new(config),
        }
    }

    fn dial(&self, port: u16) -> std::io::Result<rustls::StreamOwned<rustls::ClientConnection, TcpStream>> {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(rustls::StreamOwned::new(connection, socket))
    }

    /// True if a request is answered on a new connection.
    fn is_served(&self, port: u16) -> bool {
        let asked = || {
            let mut stream = self.dial(port)?;
            stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = Vec::new();
            // a server need not say good-bye
            let ended = stream.read_to_end(&mut answer);
            if answer.is_empty() {
                ended.map(|_| answer)
            } else {
                Ok(answer)
            }
        };
        let answer: std::io::Result<Vec<u8>> = asked();
        answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
    }
}

/// Takes any server's certificate.
#[derive(Debug)]
struct AnyServer;

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn servers() -> [Program; 2] {
    [
        Program::etcd(&Progress::stderr()).unwrap(),
        Program::kubebrain().unwrap(),
    ]
}

#[test]
fn clients_are_judged_as_by_etcd() {
    let _deadline = deadline();
    let authority = Authority::usual();
    let bare = Authority::new(IsCa::NoCa);
    let stranger = Authority::usual();
    let alone = self_signed();
    let client = |authority: &Authority| authority.issue(ExtendedKeyUsagePurpose::ClientAuth, |_| ());
    let ended = authority.issue(ExtendedKeyUsagePurpose::ClientAuth, |params| {
        params.not_after = OffsetDateTime::now_utc() - Duration::from_secs(60);
    });
    let clients = [
        ("of the authority", Some(client(&authority)), true),
        ("of an authority without basicConstraints", Some(client(&bare)), false),
        ("trusted as it is", Some(alone.clone()), true),
        ("of a stranger", Some(client(&stranger)), false),
        ("ended", Some(ended), false),
        (
            "for servers",
            Some(authority.issue(ExtendedKeyUsagePurpose::ServerAuth, |_| ())),
            false,
        ),
        (
            "for anything",
            Some(authority.issue(ExtendedKeyUsagePurpose::Any, |_| ())),
            true,
        ),
        ("none", None, false),
    ];
    let trusted = [&authority.certificate[..], &bare.certificate, &alone.certificate].concat();
    for program in servers() {
        let dir = TempDir::new().unwrap();
        let own = authority.issue(ExtendedKeyUsagePurpose::ServerAuth, |_| ());
        let (server, port) = start(&program, dir.path(), &own, &trusted);
        for (which, certified, served) in &clients {
            let found = Client::new(certified.as_ref()).is_served(port);
            assert_eq!(
                found, *served,
                "{}: a client's certificate that is {which}",
                program.name
            );
        }
        server
            .expected_logs("rejected connection on client endpoint")
            .stop()
            .unwrap();
    }
}

#[test]
fn server_starts_with_a_certificate_that_has_ended_or_not_begun() {
    let _deadline = deadline();
    let authority = Authority::usual();
    let client = Client::new(Some(&authority.issue(ExtendedKeyUsagePurpose::ClientAuth, |_| ())));
    let now = OffsetDateTime::now_utc();
    let (day, year) = (Duration::from_secs(86_400), Duration::from_secs(365 * 86_400));
    for (from, until) in [(now - year, now - day), (now + day, now + year)] {
        let own = authority.issue(ExtendedKeyUsagePurpose::ServerAuth, |params| {
            (params.not_before, params.not_after) = (from, until);
        });
        for program in servers() {
            let dir = TempDir::new().unwrap();
            let (server, port) = start(&program, dir.path(), &own, &authority.certificate);
            assert!(client.is_served(port), "{}: {from} to {until}", program.name);
            server.expected_logs("certificate").stop().unwrap();
        }
    }
}

/// Neither a session that is resumed nor a connection outlives the certificate that opened it.
#[test]
fn ended_certificate_opens_nothing_and_holds_nothing() {
    let _deadline = deadline();
    let authority = Authority::usual();
    let ends = OffsetDateTime::now_utc() + SHORT_VALIDITY;
    let own = authority.issue(ExtendedKeyUsagePurpose::ServerAuth, |_| ());
    let certified = authority.issue(ExtendedKeyUsagePurpose::ClientAuth, |params| params.not_after = ends);
    let dir = TempDir::new().unwrap();
    let (server, port) = start(&Program::kubebrain().unwrap(), dir.path(), &own, &authority.certificate);
    let client = Client::new(Some(&certified));
    let mut held = client.dial(port).unwrap();
    held.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert_ne!(held.read(&mut [0; 4096]).unwrap(), 0, "it is answered");
    let last = Instant::now() + SHORT_VALIDITY + EXPIRY_GRACE_PERIOD;
    assert!(client.is_served(port), "before its end");
    while client.is_served(port) {
        assert!(
            Instant::now() < last,
            "it is served {EXPIRY_GRACE_PERIOD:?} after its end"
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    assert!(
        OffsetDateTime::now_utc() + POLL_INTERVAL >= ends - Duration::from_secs(1),
        "it is refused too early"
    );
    // The rest of what was answered, then the end. Else the read times out.
    let mut rest = Vec::new();
    let closed = held.read_to_end(&mut rest);
    let timed_out = closed
        .as_ref()
        .is_err_and(|error| [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind()));
    assert!(!timed_out, "a connection outlives its certificate");
    server
        .expected_logs("rejected connection on client endpoint")
        .stop()
        .unwrap();
}

#[test]
fn each_reason_for_a_refusal_is_logged() {
    let _deadline = deadline();
    let (authority, stranger) = (Authority::usual(), Authority::usual());
    let ended = authority.issue(ExtendedKeyUsagePurpose::ClientAuth, |params| {
        params.not_after = OffsetDateTime::now_utc() - Duration::from_secs(60);
    });
    let foreign = stranger.issue(ExtendedKeyUsagePurpose::ClientAuth, |_| ());
    let own = authority.issue(ExtendedKeyUsagePurpose::ServerAuth, |_| ());
    let dir = TempDir::new().unwrap();
    let (server, port) = start(&Program::kubebrain().unwrap(), dir.path(), &own, &authority.certificate);
    for certified in [None, Some(&ended), Some(&foreign), None, Some(&ended)] {
        assert!(!Client::new(certified).is_served(port));
    }
    let refused = |said: &str| {
        let lines = said.lines();
        lines
            .filter(|line| line.contains("rejected connection on client endpoint"))
            .count()
    };
    // A client is refused before the line about it has been read.
    let last = Instant::now() + EXPIRY_GRACE_PERIOD;
    while refused(&server.last_lines()) < 3 && Instant::now() < last {
        std::thread::sleep(POLL_INTERVAL);
    }
    let said = server.last_lines();
    assert_eq!(refused(&said), 3, "{said}");
    server
        .expected_logs("rejected connection on client endpoint")
        .stop()
        .unwrap();
}
