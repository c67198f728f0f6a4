use std::fs;
use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use tempfile::TempDir;

use tokio_util::sync::CancellationToken;

use super::*;
use testkit::certificates::{Ca, Leaf};

mod forms;
mod loading;
mod sessions;

const POLICY: TlsPolicy = TlsPolicy {
    min: TlsVersion::Tls12,
    max: TlsVersion::Tls13,
    cipher_suites: Vec::new(),
};

/// A directory with `tls.crt`, `tls.key` and `ca.crt`.
struct Dir(TempDir);

impl Dir {
    fn new(leaf: &Leaf, ca: &str) -> Dir {
        let dir = Dir(TempDir::new().unwrap());
        dir.write(leaf, ca);
        dir
    }

    fn write(&self, leaf: &Leaf, ca: &str) {
        for (name, text) in [("tls.crt", &*leaf.cert), ("tls.key", &leaf.key), ("ca.crt", ca)] {
            // The rename is atomic: no reader sees a partial file.
            let new = self.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(new, self.path().join(name)).unwrap();
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn server_only(&self) -> TlsOptions {
        TlsOptions {
            pair: Some((self.path().join("tls.crt"), self.path().join("tls.key"))),
            ..TlsOptions::default()
        }
    }

    fn mutual(&self) -> TlsOptions {
        TlsOptions {
            trusted_ca: Some(self.path().join("ca.crt")),
            ..self.server_only()
        }
    }
}

/// Performs a handshake in memory. Returns the protocol version, or which side refused and why.
fn shake(server: &ServerTls, ca: &str, client: Option<&Leaf>) -> Result<rustls::ProtocolVersion, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            let chain = CertificateDer::pem_slice_iter(leaf.cert.as_bytes())
                .map(Result::unwrap)
                .collect();
            let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let shaken = handshake(server.config(), &Arc::new(config), "brain.example");
    shaken.map(|server| server.protocol_version().unwrap())
}

/// Performs a handshake in memory, up to the tickets of the server. Returns the connection of the server.
fn handshake(server: Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> Result<ServerConnection, String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut unread = wire.as_slice();
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server
                .process_new_packets()
                .map_err(|error| format!("server: {error}"))?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut unread = wire.as_slice();
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client
                .process_new_packets()
                .map_err(|error| format!("client: {error}"))?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(server)
}

fn refused(options: &TlsOptions) -> String {
    let error = ServerTls::load(options, &POLICY).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn clients_need_a_certificate_of_the_trusted_ca() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let dir = Dir::new(&ca.server(), &ca.pem);
    let mutual = ServerTls::load(&dir.mutual(), &POLICY).unwrap();
    let one_way = ServerTls::load(&dir.server_only(), &POLICY).unwrap();
    let (good, wrong, server) = (ca.client("c"), other.client("c"), ca.server());
    let check = |server: &ServerTls, roots: &Ca, client, refusal: Option<&str>| {
        let outcome = shake(server, &roots.pem, client);
        match refusal {
            None => assert_eq!(outcome, Ok(rustls::ProtocolVersion::TLSv1_3)),
            Some(refusal) => assert!(
                outcome.as_ref().is_err_and(|error| error.contains(refusal)),
                "{outcome:?}"
            ),
        }
    };
    check(&mutual, &ca, Some(&good), None);
    check(&mutual, &ca, None, Some("server: peer sent no certificates"));
    check(&mutual, &ca, Some(&wrong), Some("server: invalid peer certificate"));
    check(&mutual, &other, Some(&good), Some("client: invalid peer certificate"));
    check(&mutual, &ca, Some(&server), Some("server: invalid peer certificate"));
    check(&one_way, &ca, None, None);
}

#[test]
fn certificates_and_cas_are_replaced_without_a_restart() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let dir = Dir::new(&old.server(), &old.pem);
    let tls = ServerTls::load(&dir.mutual(), &POLICY).unwrap();
    assert_eq!(tls.reload(), Ok(false));
    assert!(shake(&tls, &old.pem, Some(&new.client("c"))).is_err());

    let bundle = format!("{}{}", old.pem, new.pem);
    dir.write(&old.server(), &bundle);
    assert_eq!(tls.reload(), Ok(true));
    assert!(shake(&tls, &old.pem, Some(&old.client("c"))).is_ok());
    assert!(shake(&tls, &old.pem, Some(&new.client("c"))).is_ok());

    dir.write(&new.server(), &bundle);
    assert_eq!(tls.reload(), Ok(true));
    assert!(shake(&tls, &new.pem, Some(&old.client("c"))).is_ok());
    assert!(shake(&tls, &old.pem, Some(&old.client("c"))).is_err());

    dir.write(&new.server(), &new.pem);
    assert_eq!(tls.reload(), Ok(true));
    assert!(shake(&tls, &new.pem, Some(&new.client("c"))).is_ok());
    assert!(shake(&tls, &new.pem, Some(&old.client("c"))).is_err());
}

#[test]
fn certificate_that_does_not_load_leaves_the_old_in_use() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let tls = ServerTls::load(&dir.mutual(), &POLICY).unwrap();
    let still_serves = || shake(&tls, &ca.pem, Some(&ca.client("c"))).is_ok();
    for (file, text) in [
        ("tls.crt", ca.server().cert),
        ("tls.key", "garbage".to_owned()),
        ("ca.crt", String::new()),
    ] {
        let path = dir.path().join(file);
        let before = fs::read(&path).unwrap();
        fs::write(&path, text).unwrap();
        assert!(tls.reload().is_err(), "{file}");
        assert!(still_serves());
        fs::remove_file(&path).unwrap();
        assert!(tls.reload().is_err(), "{file}");
        assert!(still_serves());
        fs::write(&path, before).unwrap();
        assert_eq!(tls.reload(), Ok(false), "{file}");
    }
    dir.write(&ca.leaf("expired", true, -10, -5), &ca.pem);
    assert!(tls.reload().is_err_and(|error| error.to_string().contains("expired")));
    assert!(still_serves());
}

#[tokio::test(start_paused = true)]
async fn the_follower_takes_what_changed() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let tls = Arc::new(ServerTls::load(&dir.mutual(), &POLICY).unwrap());
    let metrics = telemetry::metrics::Metrics::new(false).tls;
    let stop = CancellationToken::new();
    let follower = Arc::clone(&tls).follow(RELOAD_INTERVAL, metrics.clone(), stop.clone());
    // Another follower, of files that always load, must not hide the failure.
    let calm = Dir::new(&ca.server(), &ca.pem);
    let calm = Arc::new(ServerTls::load(&calm.mutual(), &POLICY).unwrap());
    let calm = calm.follow(RELOAD_INTERVAL, metrics.clone(), stop.clone());
    let before = tls.config();
    // The follower reports only through its metrics: they are read as often as it reads the files, on a paused clock.
    // The follower may read at any time: each file is replaced as a whole.
    let replace = |file: &str, text: &str| {
        let fresh = dir.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, dir.path().join(file)).unwrap();
    };
    let watcher = async {
        replace("tls.key", "garbage");
        while metrics.reloads.with_label_values(&["failure"]).get() == 0 {
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
        assert!(Arc::ptr_eq(&before, &tls.config()));
        // The same failure again is no other one.
        for _ in 0..3 {
            assert_eq!(metrics.reloads_failing.get(), 1);
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
        // In between, the files give the failure that the follower already knows.
        let renewed = ca.server();
        replace("tls.crt", &renewed.cert);
        replace("tls.key", &renewed.key);
        while metrics.reloads.with_label_values(&["success"]).get() == 0 {
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
        assert!(!Arc::ptr_eq(&before, &tls.config()));
        assert_eq!(metrics.reloads_failing.get(), 0);
        stop.cancel();
    };
    let (outcome, calm, ()) = tokio::join!(follower, calm, watcher);
    outcome.unwrap();
    calm.unwrap();
    assert_eq!(metrics.reloads.with_label_values(&["failure"]).get(), 1);
    assert_eq!(metrics.expiry.get(), tls.not_after());
}

#[test]
fn names_can_be_asked_of_clients() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let allows = |options: &TlsOptions, client: &Leaf| {
        let tls = ServerTls::load(options, &POLICY).unwrap();
        shake(&tls, &ca.pem, Some(client)).is_ok()
    };
    let hosts = TlsOptions {
        allowed_hostnames: vec!["x.example".into(), "a.example".into()],
        ..dir.mutual()
    };
    assert!(allows(&hosts, &ca.client("a.example")));
    assert!(!allows(&hosts, &ca.client("b.example")));
    let names = TlsOptions {
        allowed_common_names: vec!["a.example".into()],
        ..dir.mutual()
    };
    assert!(allows(&names, &ca.client("a.example")));
    assert!(!allows(&names, &ca.client("b.example")));
}

#[test]
fn revoked_clients_are_refused() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let (good, revoked) = (ca.client("good"), ca.client("revoked"));
    let list = ca.revoke(&revoked);
    for (name, bytes) in [
        ("crl.pem", list.pem().unwrap().into_bytes()),
        ("crl.der", list.der().to_vec()),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let tls = ServerTls::load(
            &TlsOptions {
                crl: Some(path),
                ..dir.mutual()
            },
            &POLICY,
        )
        .unwrap();
        assert!(shake(&tls, &ca.pem, Some(&good)).is_ok(), "{name}");
        assert!(shake(&tls, &ca.pem, Some(&revoked)).is_err(), "{name}");
    }
    let path = dir.path().join("crl.bad");
    fs::write(&path, "not a list").unwrap();
    assert!(
        refused(&TlsOptions {
            crl: Some(path),
            ..dir.mutual()
        })
        .contains("crl.bad")
    );
}

/// Returns options with a revocation list in a file.
fn with_list(dir: &Dir, list: &rcgen::CertificateRevocationList) -> TlsOptions {
    let path = dir.path().join("list.pem");
    fs::write(&path, list.pem().unwrap()).unwrap();
    TlsOptions {
        crl: Some(path),
        ..dir.mutual()
    }
}

/// Returns a certificate followed by the certificate of its issuer.
fn chained(mut leaf: Leaf, ca: &Ca) -> Leaf {
    leaf.cert.push_str(&ca.pem);
    leaf
}

#[test]
fn clients_below_a_revoked_intermediate_are_refused() {
    let root = Ca::new("root");
    let (good, revoked) = (root.intermediate("good"), root.intermediate("revoked"));
    let dir = Dir::new(&root.server(), &root.pem);
    let tls = ServerTls::load(&with_list(&dir, &root.revoke_ca(&revoked)), &POLICY).unwrap();
    for (ca, allowed) in [(&good, true), (&revoked, false)] {
        let client = chained(ca.client("c"), ca);
        let outcome = shake(&tls, &root.pem, Some(&client));
        assert_eq!(outcome.is_ok(), allowed, "{outcome:?}");
    }
}

#[test]
fn serial_numbers_are_revoked_below_an_intermediate_as_by_etcd() {
    let root = Ca::new("root");
    let intermediate = root.intermediate("intermediate");
    let (good, revoked) = (intermediate.client("good"), intermediate.client("revoked"));
    let dir = Dir::new(&root.server(), &root.pem);
    let tls = ServerTls::load(&with_list(&dir, &root.revoke(&revoked)), &POLICY).unwrap();
    for (client, allowed) in [(good, true), (revoked, false)] {
        let client = chained(client, &intermediate);
        let outcome = shake(&tls, &root.pem, Some(&client));
        assert_eq!(outcome.is_ok(), allowed, "{outcome:?}");
    }
}

#[test]
fn revocation_lists_count_whoever_signed_them_as_by_etcd() {
    let (ca, other, namesake) = (Ca::new("ca"), Ca::new("other"), Ca::new("ca"));
    let dir = Dir::new(&ca.server(), &ca.pem);
    let leaf = ca.client("c");
    for (list, odd) in [
        (ca.revoke(&leaf), None),
        (other.revoke(&leaf), Some("CN=other, is not among the CAs")),
        (namesake.revoke(&leaf), Some("is not signed by its issuer, CN=ca")),
    ] {
        let options = with_list(&dir, &list);
        let material = TlsFiles::read(&options).unwrap().parse(&options).unwrap();
        let found: Vec<_> = material.odd.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), usize::from(odd.is_some()), "{found:?}");
        assert!(
            found.iter().all(|found| found.contains(odd.unwrap_or_default())),
            "{found:?}"
        );
        let tls = ServerTls::load(&options, &POLICY).unwrap();
        assert!(shake(&tls, &ca.pem, Some(&leaf)).is_err());
        assert!(shake(&tls, &ca.pem, Some(&ca.client("d"))).is_ok());
    }
}

#[tokio::test]
async fn members_that_sign_their_certificates_dial_each_other() {
    let temp = TempDir::new().unwrap();
    let of = |name: &str| TlsOptions {
        pair: Some((
            temp.path().join(format!("{name}/cert.pem")),
            temp.path().join(format!("{name}/key.pem")),
        )),
        self_signed: Some(SelfSigned {
            hosts: vec!["127.0.0.1".to_owned()],
            years: 1,
        }),
        ..TlsOptions::default()
    };
    let server = ServerTls::load(&of("server"), &POLICY).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        tokio_rustls::TlsAcceptor::from(server.config()).accept(stream).await
    };
    let (options, policy) = (of("client"), POLICY);
    let (accepted, dialled) = tokio::join!(accept, dial(("127.0.0.1", port), "127.0.0.1", &options, &policy));
    assert!(accepted.is_ok() && dialled.is_ok(), "{accepted:?} {dialled:?}");
    // It shows no certificate, so it needs none.
    assert!(!temp.path().join("client").exists());
}

#[tokio::test]
async fn dialling_refuses_a_revoked_server() {
    let root = Ca::new("root");
    let intermediate = root.intermediate("intermediate");
    let dir = Dir::new(&chained(intermediate.server(), &intermediate), &root.pem);
    let server = ServerTls::load(&dir.server_only(), &POLICY).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(server.config());
    for (list, allowed) in [
        (root.revoke_ca(&root.intermediate("other")), true),
        (root.revoke_ca(&intermediate), false),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (options, policy) = (with_list(&dir, &list), POLICY);
        let (accepted, dialled) = tokio::join!(
            async { acceptor.accept(listener.accept().await.unwrap().0).await },
            dial(("127.0.0.1", port), "brain.example", &options, &policy)
        );
        assert_eq!(dialled.is_ok(), allowed, "{dialled:?}");
        assert_eq!(accepted.is_ok(), allowed);
    }
}
