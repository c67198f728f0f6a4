use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;
use crate::names::Names;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn now() -> Timestamp {
    "2026-11-21T00:00:00Z".parse().unwrap()
}

fn names() -> Names {
    Names {
        cluster: "dev".to_owned(),
        namespace: "brains".to_owned(),
        domain: "cluster.local".to_owned(),
    }
}

fn request(leaf: Leaf, extra: &[&str]) -> CertificateRequest {
    let extra: Vec<String> = extra.iter().map(|san| (*san).to_owned()).collect();
    CertificateRequest::new(leaf, &names(), &extra, 90 * DAY, 30 * DAY)
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn roots(bundle: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    Arc::new(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unix(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second()).unwrap()))
}

/// Verification of a server by a client that trusts `authority` and dialled `host`.
pub fn server(authority: &str, certificate: &str, host: &str, at: Timestamp) -> Result<(), String> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider())
        .build()
        .unwrap();
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let verified = verifier.verify_server_cert(&der(certificate), &[], &host, &[], unix(at));
    verified.map(|_| ()).map_err(|error| error.to_string())
}

/// Verification of a client by a server that trusts `authority`.
pub fn client(authority: &str, certificate: &str, at: Timestamp) -> Result<(), String> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider())
        .build()
        .unwrap();
    let verified = verifier.verify_client_cert(&der(certificate), &[], unix(at));
    verified.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn the_server_certificate_is_good_for_every_name_of_the_cluster_and_no_other() {
    let authority = Authority::create("dev", 1, now()).unwrap();
    let pair = authority
        .issue(
            Leaf::Server,
            &request(Leaf::Server, &["etcd.example.org", "10.0.0.9", "FD00::1"]),
            now(),
        )
        .unwrap();
    let trusted = &authority.pair().certificate;
    for host in [
        "dev-client",
        "dev-client.brains",
        "dev-client.brains.svc",
        "dev-client.brains.svc.cluster.local",
        "dev-leader.brains.svc",
        "dev-0.dev-headless.brains.svc",
        "dev-63.dev-headless.brains.svc.cluster.local",
        "dev-headless.brains.svc",
        "dev-headless.brains.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        "::1",
        "etcd.example.org",
        "10.0.0.9",
        "fd00::1",
    ] {
        assert_eq!(server(trusted, &pair.certificate, host, now()), Ok(()), "{host}");
    }
    for host in [
        "dev-client.other.svc",
        "example.org",
        "10.0.0.8",
        "a.dev-0.dev-headless.brains.svc",
    ] {
        let refusal = server(trusted, &pair.certificate, host, now()).unwrap_err();
        assert!(refusal.contains("not valid for name"), "{host}: {refusal}");
    }
}

#[test]
fn certificates_serve_their_purpose_and_no_other() {
    let authority = Authority::create("dev", 1, now()).unwrap();
    let trusted = &authority.pair().certificate;
    for leaf in Leaf::ALL {
        let pair = authority.issue(leaf, &request(leaf, &[]), now()).unwrap();
        assert_eq!(
            client(trusted, &pair.certificate, now()),
            Ok(()),
            "{leaf:?} as a client"
        );
        let serves = server(trusted, &pair.certificate, "dev-0.dev-headless.brains.svc", now()).is_ok();
        assert_eq!(
            serves,
            matches!(leaf, Leaf::Server | Leaf::Peer),
            "{leaf:?} as a server"
        );
        let mut too_late = now() + SignedDuration::from_hours(24 * 90 + 1);
        assert!(
            client(trusted, &pair.certificate, too_late)
                .unwrap_err()
                .contains("expired"),
            "{leaf:?}"
        );
        too_late = now() - SignedDuration::from_mins(6);
        assert!(
            client(trusted, &pair.certificate, too_late)
                .unwrap_err()
                .contains("not valid yet"),
            "{leaf:?}"
        );
    }
}

#[test]
fn certificate_of_another_authority_is_not_trusted() {
    let (one, other) = (
        Authority::create("dev", 1, now()).unwrap(),
        Authority::create("dev", 1, now()).unwrap(),
    );
    let pair = one
        .issue(Leaf::OperatorClient, &request(Leaf::OperatorClient, &[]), now())
        .unwrap();
    assert!(client(&other.pair().certificate, &pair.certificate, now()).is_err());
}

#[test]
fn a_renewed_authority_vouches_for_what_the_old_one_signed_and_the_other_way_round() {
    let old = Authority::create("dev", 1, now()).unwrap();
    let renewal = old.renewal();
    assert_eq!(renewal, now() + SignedDuration::from_hours(24 * 365 * 8));
    let new = old.renew(renewal).unwrap();
    assert!(new.inspected().not_after > old.inspected().not_after);
    assert_ne!(new.pair().certificate, old.pair().certificate);
    let before = old.issue(Leaf::Server, &request(Leaf::Server, &[]), renewal).unwrap();
    let after = new.issue(Leaf::Server, &request(Leaf::Server, &[]), renewal).unwrap();
    for trusted in [&old, &new] {
        for pair in [&before, &after] {
            assert_eq!(
                server(&trusted.pair().certificate, &pair.certificate, "dev-client", renewal),
                Ok(())
            );
        }
    }
    let request = request(Leaf::Server, &[]);
    assert_eq!(request.objection(Leaf::Server, &before, &new, renewal), None);
}

#[test]
fn a_stored_authority_signs_after_a_restart() {
    let stored = Authority::create("dev", 1, now()).unwrap().pair().clone();
    let loaded = Authority::load(stored.clone()).unwrap();
    assert_eq!(loaded.inspected().common_name, "dev-ca-v1");
    let pair = loaded.issue(Leaf::Server, &request(Leaf::Server, &[]), now()).unwrap();
    assert_eq!(
        server(&stored.certificate, &pair.certificate, "dev-client", now()),
        Ok(())
    );
}

#[test]
fn an_authority_that_cannot_sign_is_refused() {
    let good = Authority::create("dev", 1, now()).unwrap();
    let other = Authority::create("dev", 1, now()).unwrap();
    let leaf = good.issue(Leaf::Server, &request(Leaf::Server, &[]), now()).unwrap();
    let load = |certificate: &str, key: &str| {
        Authority::load(CertificatePair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        })
        .unwrap_err()
        .to_string()
    };
    assert_eq!(load("", &good.pair().key), "the certificate does not decode");
    assert_eq!(load(&good.pair().certificate, ""), "the key cannot be used");
    assert_eq!(
        load(&good.pair().certificate, &other.pair().key),
        "the key does not belong to the certificate"
    );
    assert_eq!(
        load(&leaf.certificate, &leaf.key),
        "the certificate is not that of an authority"
    );
}

/// Returns the reason to reissue a certificate that was issued now for the server and `a.example`; empty if there is none.
fn objection(request: &CertificateRequest, leaf: Leaf, at: Timestamp) -> String {
    let authority = Authority::create("dev", 1, now()).unwrap();
    let pair = authority.issue(Leaf::Server, &server_request(), now()).unwrap();
    request.objection(leaf, &pair, &authority, at).unwrap_or_default()
}

fn server_request() -> CertificateRequest {
    request(Leaf::Server, &["a.example"])
}

#[test]
fn a_certificate_is_issued_anew_when_its_time_has_come() {
    let day = |days: i64| now() + SignedDuration::from_hours(24 * days);
    let check = |at, expected: &str| assert_eq!(objection(&server_request(), Leaf::Server, at), expected, "{at}");
    check(now(), "");
    check(day(60) - SignedDuration::from_secs(1), "");
    check(day(60), "it is due for renewal");
    check(day(91), "it is due for renewal");
    check(day(-1), "it is not valid yet");
}

#[test]
fn certificate_ends_with_its_authority_and_is_not_renewed_in_vain() {
    let day = |days: i64| now() + SignedDuration::from_hours(24 * days);
    let authority = Authority::create("dev", 1, day(20 - 3650)).unwrap();
    let end = authority.inspected().not_after;
    assert_eq!(end, day(20));
    let request = server_request();
    let pair = authority.issue(Leaf::Server, &request, now()).unwrap();
    let certificate = InspectedCertificate::read(&pair.certificate).unwrap();
    assert_eq!(certificate.not_after, end);
    assert_eq!(request.renewal_before(end, &certificate), None);
    for days in 0..20 {
        let objection = request.objection(Leaf::Server, &pair, &authority, day(days));
        assert_eq!(objection, None, "day {days}");
    }
    // A later end of the authority is adopted at once, and a certificate that outlasts it is replaced.
    let later = authority.renew(now()).unwrap();
    let objection =
        |pair: &CertificatePair, authority: &Authority| request.objection(Leaf::Server, pair, authority, now());
    assert_eq!(objection(&pair, &later).as_deref(), Some("its validity changed"));
    let long = later.issue(Leaf::Server, &request, now()).unwrap();
    assert_eq!(objection(&long, &later), None);
    assert_eq!(objection(&long, &authority).as_deref(), Some("its validity changed"));
}

#[test]
fn a_certificate_is_issued_anew_when_something_else_is_asked_for() {
    let check =
        |request: CertificateRequest, leaf, expected: &str| assert_eq!(objection(&request, leaf, now()), expected);
    let asked = server_request;
    check(
        request(Leaf::Server, &[]),
        Leaf::Server,
        "its alternative names changed",
    );
    check(asked(), Leaf::OperatorClient, "its usages changed");
    check(
        CertificateRequest {
            validity: 91 * DAY,
            ..asked()
        },
        Leaf::Server,
        "its validity changed",
    );
    check(
        CertificateRequest {
            common_name: "x".to_owned(),
            ..asked()
        },
        Leaf::Server,
        "its name changed",
    );
    check(
        CertificateRequest {
            organization: Some("x".to_owned()),
            ..asked()
        },
        Leaf::Server,
        "its organization changed",
    );
}

#[test]
fn a_certificate_that_does_not_fit_its_key_or_authority_is_issued_anew() {
    let (authority, other) = (
        Authority::create("dev", 1, now()).unwrap(),
        Authority::create("dev", 1, now()).unwrap(),
    );
    let pair = authority.issue(Leaf::Server, &server_request(), now()).unwrap();
    let check = |pair: &CertificatePair, authority: &Authority, expected: &str| {
        let objection = server_request().objection(Leaf::Server, pair, authority, now());
        assert_eq!(objection.unwrap_or_default(), expected);
    };
    check(&pair, &authority, "");
    check(&pair, &other, "another authority signed it");
    let torn = CertificatePair {
        certificate: pair.certificate[..200].to_owned(),
        ..pair.clone()
    };
    check(&torn, &authority, "the certificate does not decode");
    let mixed = CertificatePair {
        key: other.pair().key.clone(),
        ..pair.clone()
    };
    check(&mixed, &authority, "its key does not belong to it");
    let keyless = CertificatePair {
        key: String::new(),
        ..pair
    };
    check(&keyless, &authority, "its key cannot be used");
}

#[test]
fn every_damage_of_a_stored_certificate_is_an_error_and_no_panic() {
    let authority = Authority::create("dev", 1, now()).unwrap();
    let pem = &authority.pair().certificate;
    for cut in 0..pem.len() {
        drop(InspectedCertificate::read(&pem[..cut]));
    }
    let mut bytes = pem.clone().into_bytes();
    for place in 0..bytes.len() {
        let before = bytes[place];
        bytes[place] = if before == b'A' { b'B' } else { b'A' };
        if let Ok(text) = std::str::from_utf8(&bytes) {
            drop(InspectedCertificate::read(text));
        }
        bytes[place] = before;
    }
    assert!(InspectedCertificate::read(pem).is_ok());
}

#[test]
fn keys_are_never_printed() {
    let authority = Authority::create("dev", 1, now()).unwrap();
    assert!(!format!("{:?}", authority.pair()).contains("PRIVATE"));
}
