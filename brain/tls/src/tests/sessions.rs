//! Sessions and handshakes of clients with certificates.

use rustls::HandshakeKind;

use super::*;
use crate::dial::client;
use crate::verifier::observed;

fn policy(version: TlsVersion) -> TlsPolicy {
    TlsPolicy {
        min: version,
        max: version,
        cipher_suites: Vec::new(),
    }
}

/// A resumed session would have the certificate of its first handshake, however long ago that expired.
#[test]
fn sessions_of_clients_with_certificates_are_not_resumed() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let leaf = ca.client("c");
    let pair = (dir.path().join("client.crt"), dir.path().join("client.key"));
    fs::write(&pair.0, leaf.cert).unwrap();
    fs::write(&pair.1, leaf.key).unwrap();
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        for (options, again) in [
            (dir.mutual(), HandshakeKind::Full),
            (dir.server_only(), HandshakeKind::Resumed),
        ] {
            let server = ServerTls::load(&options, &POLICY).unwrap();
            let options = TlsOptions {
                dial_pair: Some(pair.clone()),
                ..dir.mutual()
            };
            let client = Arc::new(client(&options, &policy(version)).unwrap());
            for kind in [HandshakeKind::Full, again] {
                let shaken = handshake(server.config(), &client, "brain.example").unwrap();
                assert_eq!(shaken.handshake_kind(), Some(kind), "{version:?}");
            }
        }
    }
}

#[tokio::test]
async fn handshake_says_when_the_first_certificate_of_the_chain_expires() {
    let root = Ca::new("root");
    let intermediate = root.intermediate("intermediate");
    let dir = Dir::new(&root.server(), &root.pem);
    let server = ServerTls::load(&dir.mutual(), &POLICY).unwrap();
    let day = 24 * 60 * 60;
    // Those of CAs are valid for 30 days.
    for (days, expected) in [(10, 10), (40, 30)] {
        let client = chained(intermediate.leaf("c", false, 0, days), &intermediate);
        let (shaken, found) = observed(async { shake(&server, &root.pem, Some(&client)) }).await;
        assert!(shaken.is_ok() && found.refusal.is_none(), "{shaken:?}");
        let left = found.ends.unwrap() - now();
        assert!((expected * day - 3_600..=expected * day).contains(&left), "{left}");
    }
    let one_way = ServerTls::load(&dir.server_only(), &POLICY).unwrap();
    let (shaken, found) = observed(async { shake(&one_way, &root.pem, None) }).await;
    assert!(shaken.is_ok() && found.ends.is_none());
}
