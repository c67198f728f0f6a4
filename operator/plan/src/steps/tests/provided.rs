//! Certificates of the user: an authority of the user's own, and Secrets that the user fills.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::*;
use crate::certificates::{Authority, CaBundle, CertificatePair, CertificateRequest};
use crate::names::CA_ADVANCE;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

fn begin() -> Timestamp {
    crate::testing::BEGIN.parse().unwrap()
}

fn put(fake: &mut FakeCluster, name: &str, data: &[(&str, &str)]) {
    let data = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
    let secret = Secret {
        data: Some(data.collect()),
        ..Secret::default()
    };
    fake.seen.given_secrets.insert(name.to_owned(), Some(Arc::new(secret)));
}

fn put_authority(fake: &mut FakeCluster, authority: &Authority) {
    let pair = authority.pair();
    put(fake, "mine", &[("ca.crt", &pair.certificate), ("ca.key", &pair.key)]);
}

fn own(authority: &Authority) -> FakeCluster {
    let mut fake = FakeCluster::new(json!({"tls": {"caSecretRef": {"name": "mine"}}}));
    put_authority(&mut fake, authority);
    fake.settle();
    fake
}

fn bundle(fake: &mut FakeCluster) -> CaBundle {
    let text = fake.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    CaBundle::parse(text.as_str().unwrap()).unwrap()
}

fn trusted(authorities: &[&Authority]) -> CaBundle {
    let mut all = CaBundle::default();
    for authority in authorities {
        all.extend(&CaBundle::parse(&authority.pair().certificate).unwrap());
    }
    all
}

/// `reason: message` of the problem with certificates.
fn problem(fake: &FakeCluster) -> String {
    let problem = fake.plan().certificates.problem;
    problem.map_or("none".to_owned(), |problem| {
        format!("{}: {}", problem.reason, problem.message)
    })
}

#[test]
fn own_authority_signs_and_its_key_is_stored_nowhere_else() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let mut fake = own(&mine);
    assert_eq!(fake.steps(), Vec::<String>::new());
    assert_eq!(bundle(&mut fake), trusted(&[&mine]));
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
    for (name, object) in written(&fake) {
        let key = object["data"]["ca.key"].as_str().unwrap_or_default();
        assert!(key.is_empty(), "{name}");
    }
}

/// The server's certificate.
fn server_certificate(fake: &mut FakeCluster) -> Value {
    fake.object(ObjectKind::Secret, "dev-server-tls").data["data"]["tls.crt"].clone()
}

/// Returns a cluster whose user replaced the authority `one` by `two`, and its earlier server certificate.
fn published() -> (Authority, Authority, FakeCluster, Value) {
    let [one, two] = ["one", "two"].map(|name| Authority::create(name, 1, begin()).unwrap());
    let mut fake = own(&one);
    let before = server_certificate(&mut fake);
    put_authority(&mut fake, &two);
    fake.settle();
    (one, two, fake, before)
}

#[test]
fn another_key_of_the_own_authority_is_published_beside_the_former_one() {
    let (one, two, mut fake, before) = published();
    assert_eq!(bundle(&mut fake), trusted(&[&one, &two]));
    assert_eq!(
        server_certificate(&mut fake),
        before,
        "signed by a key that clients do not trust yet"
    );
    assert_eq!(fake.condition("CertificatesReady"), "True/RotatingCertificates");
    for phase in ["Issuing", "Retiring"] {
        let annotations = fake.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(CA_ADVANCE.to_owned(), format!("{phase}@2"));
        fake.settle();
    }
    assert_ne!(server_certificate(&mut fake), before);
    assert_eq!(bundle(&mut fake), trusted(&[&two]));
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
}

/// The former key is gone: the coming one renews certificates of the former one before they expire, even if the replacement does not
/// advance.
#[test]
fn certificates_do_not_end_while_another_key_is_published() {
    let (one, two, mut fake, before) = published();
    let day = 24 * 3600;
    fake.wait(70 * day);
    fake.settle();
    assert_eq!(server_certificate(&mut fake), before, "it serves for another 20 days");
    assert_eq!(fake.condition("CertificatesReady"), "False/Renewing");
    fake.wait(13 * day);
    fake.settle();
    assert_ne!(server_certificate(&mut fake), before, "seven days before its end");
    assert_eq!(bundle(&mut fake), trusted(&[&one, &two]));
}

#[test]
fn end_of_the_own_authority_is_reported_and_certificates_do_not_outlast_it() {
    let day = SignedDuration::from_hours(24);
    let end = begin() + 20 * day;
    let mine = Authority::create("mine", 1, end - 3650 * day).unwrap();
    let mut fake = own(&mine);
    let ends = |fake: &FakeCluster| {
        let stored = fake.cluster.status.clone().unwrap().certificates.unwrap();
        let end = stored[0].not_after.as_ref().unwrap().0;
        (end, stored[0].renewal_time.is_some())
    };
    assert_eq!(ends(&fake), (end, false));
    for _ in 0..19 {
        fake.wait(24 * 3600);
        assert_eq!(fake.pass(), Vec::<String>::new());
    }
    assert_eq!(fake.condition("CertificatesReady"), "True/AuthorityExpires");
    let later = mine.renew(fake.seen.now).unwrap();
    put_authority(&mut fake, &later);
    fake.settle();
    assert_eq!(ends(&fake), (fake.seen.now + 90 * day, true));
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
}

#[test]
fn own_authority_replaces_the_operators_also_where_an_older_operator_left_that_ones_key() {
    let mut fake = FakeCluster::settled(json!({}));
    let key = fake.object(ObjectKind::Secret, "dev-ca").data["data"]["ca.key"].clone();
    let mine = Authority::create("mine", 1, begin()).unwrap();
    put_authority(&mut fake, &mine);
    fake.edit(json!({"tls": {"caSecretRef": {"name": "mine"}}}));
    for phase in ["Issuing", "Retiring"] {
        fake.settle();
        let annotations = fake.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(CA_ADVANCE.to_owned(), format!("{phase}@2"));
    }
    fake.pass();
    let data = &mut fake.object(ObjectKind::Secret, "dev-ca").data["data"];
    assert_eq!(data["ca.key"], "", "the user's own key is stored nowhere");
    data["ca.key"] = key;
    fake.settle();
    assert_eq!(problem(&fake), "none");
    assert_eq!(fake.object(ObjectKind::Secret, "dev-ca").data["data"]["ca.key"], "");
    assert_eq!(bundle(&mut fake), trusted(&[&mine]));
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
}

#[test]
fn own_authority_renewed_with_its_key_is_published_at_once() {
    let one = Authority::create("one", 1, begin()).unwrap();
    let mut fake = own(&one);
    let later = one.renew(begin() + SignedDuration::from_hours(24)).unwrap();
    fake.wait(2 * 24 * 3600);
    put_authority(&mut fake, &later);
    fake.settle();
    assert_eq!(bundle(&mut fake), trusted(&[&later]));
    assert_eq!(
        fake.cluster.status.as_ref().unwrap().ca.as_ref().unwrap().phase,
        "Stable"
    );
}

#[test]
fn what_is_wrong_with_the_own_authority_is_named_and_heals() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let other = Authority::create("other", 1, begin()).unwrap();
    let mut fake = own(&mine);
    let check = |fake: &mut FakeCluster, expected: &str| {
        assert!(problem(fake).starts_with(expected), "{}", problem(fake));
        assert_eq!(fake.steps(), Vec::<String>::new());
        fake.pass();
        assert!(
            fake.condition("Stalled").starts_with("True/Authority"),
            "{}",
            fake.condition("Stalled")
        );
    };
    fake.seen.given_secrets.insert("mine".to_owned(), None);
    check(
        &mut fake,
        "AuthorityMissing: Secret mine of tls.caSecretRef does not exist",
    );
    put(&mut fake, "mine", &[("ca.crt", &mine.pair().certificate)]);
    check(
        &mut fake,
        "AuthorityMissing: Secret mine of tls.caSecretRef has no text in ca.crt and ca.key",
    );
    let mixed = [
        ("ca.crt", mine.pair().certificate.as_str()),
        ("ca.key", other.pair().key.as_str()),
    ];
    put(&mut fake, "mine", &mixed);
    check(
        &mut fake,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the key does not belong",
    );
    let leaf = leaf(&mine, Leaf::Server, 90);
    put(
        &mut fake,
        "mine",
        &[("ca.crt", &leaf.certificate), ("ca.key", &leaf.key)],
    );
    check(
        &mut fake,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the certificate is not that of an authority",
    );
    let old = Authority::create("mine", 1, begin() - SignedDuration::from_hours(24 * 366 * 11)).unwrap();
    put_authority(&mut fake, &old);
    check(
        &mut fake,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the certificate in ca.crt expired at",
    );
    put_authority(&mut fake, &mine);
    fake.settle();
    assert_eq!(problem(&fake), "none");
    assert_eq!(fake.condition("Stalled"), "absent");
}

fn leaf(authority: &Authority, leaf: Leaf, days: u32) -> CertificatePair {
    let names = FakeCluster::new(json!({})).desired().names;
    let request = CertificateRequest::new(leaf, &names, &[], days * DAY, DAY);
    authority.issue(leaf, &request, begin()).unwrap()
}

fn put_leaf(fake: &mut FakeCluster, name: &str, pair: &CertificatePair) {
    put(fake, name, &[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
}

/// A cluster whose certificates are all given, by `authority`.
fn given(authority: &Authority) -> FakeCluster {
    let name = |name: &str| json!({"name": name});
    let mut fake = FakeCluster::new(json!({"tls": {"mode": "Secret", "secrets": {
        "caBundle": {"name": "trust", "key": "bundle.pem"},
        "server": name("server"), "peer": name("peer"), "operatorClient": name("operator"),
    }}}));
    put(&mut fake, "trust", &[("bundle.pem", &authority.pair().certificate)]);
    for (name, purpose) in [
        ("server", Leaf::Server),
        ("peer", Leaf::Peer),
        ("operator", Leaf::OperatorClient),
    ] {
        put_leaf(&mut fake, name, &leaf(authority, purpose, 90));
    }
    fake
}

#[test]
fn given_certificates_are_used_as_they_are() {
    let mut fake = given(&Authority::create("a", 1, begin()).unwrap());
    fake.settle();
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
    let owned: Vec<_> = fake
        .seen
        .objects
        .keys()
        .filter(|key| key.kind == ObjectKind::Secret)
        .collect();
    assert!(owned.is_empty(), "{owned:?}");
    let status = fake.cluster.status.unwrap();
    assert!(status.ca.is_none());
    let connection = serde_json::to_value(status.connection.unwrap()).unwrap();
    assert_eq!(
        connection["caBundleRef"],
        json!({"kind": "Secret", "name": "trust", "key": "bundle.pem"})
    );
    assert_eq!(connection["clientSecretRef"], json!(null), "nobody issued one");
    let names: Vec<String> = status
        .certificates
        .unwrap()
        .into_iter()
        .map(|certificate| certificate.secret_name)
        .collect();
    assert_eq!(names, ["server", "peer", "operator"]);
}

#[test]
fn what_is_wrong_with_a_given_secret_is_named_and_heals() {
    let (authority, other) = (
        Authority::create("a", 1, begin()).unwrap(),
        Authority::create("b", 1, begin()).unwrap(),
    );
    let mut fake = given(&authority);
    fake.settle();
    let sound = fake.seen.given_secrets.clone();
    let mut check = |change: &dyn Fn(&mut FakeCluster), expected: &str| {
        change(&mut fake);
        assert!(problem(&fake).starts_with(expected), "{}", problem(&fake));
        fake.edit(json!({"restartedAt": expected}));
        assert_eq!(
            fake.steps(),
            Vec::<String>::new(),
            "pods were changed with bad certificates"
        );
        fake.pass();
        let reason = expected.split_once(':').unwrap().0;
        assert_eq!(fake.condition("CertificatesReady"), format!("False/{reason}"));
        fake.seen.given_secrets.clone_from(&sound);
        assert_eq!(problem(&fake), "none");
    };
    let lose =
        |name: &'static str| move |fake: &mut FakeCluster| drop(fake.seen.given_secrets.insert(name.to_owned(), None));
    check(&lose("trust"), "SecretMissing: Secret trust ");
    check(&lose("server"), "SecretMissing: Secret server ");
    check(&lose("peer"), "SecretMissing: Secret peer ");
    check(&lose("operator"), "SecretMissing: Secret operator ");
    check(
        &|fake| put(fake, "trust", &[("ca.crt", "x")]),
        "SecretMissing: Secret trust of tls.secrets has no text in bundle.pem",
    );
    check(
        &|fake| put(fake, "trust", &[("bundle.pem", "x")]),
        "SecretInvalid: Secret trust, key bundle.pem: ",
    );
    let server = leaf(&authority, Leaf::Server, 90);
    check(
        &|fake| put(fake, "server", &[("tls.crt", &server.certificate)]),
        "SecretMissing: Secret server of tls.secrets has no text in tls.key",
    );
    check(
        &|fake| put(fake, "server", &[("tls.crt", "x"), ("tls.key", &server.key)]),
        "SecretInvalid: Secret server, key tls.crt: ",
    );
    check(
        &|fake| put(fake, "server", &[("tls.crt", &server.certificate), ("tls.key", "x")]),
        "SecretInvalid: Secret server, key tls.key: it is not a private key",
    );
    check(
        &|fake| {
            put(
                fake,
                "server",
                &[("tls.crt", &server.certificate), ("tls.key", &other.pair().key)],
            )
        },
        "SecretInvalid: Secret server, key tls.key: it does not belong",
    );
    check(
        &|fake| put_leaf(fake, "server", &leaf(&other, Leaf::Server, 90)),
        "NotTrusted: Secret server, key tls.crt: no certificate of tls.secrets.caBundle signed it",
    );
    check(
        &|fake| put_leaf(fake, "server", &leaf(&authority, Leaf::Peer, 90)),
        "NamesNotCovered: Secret server, key tls.crt: it is not valid for dev-client.brains.svc",
    );
    check(
        &|fake| put_leaf(fake, "peer", &leaf(&authority, Leaf::Server, 90)),
        "SecretInvalid: Secret peer, key tls.crt: its common name is \"dev-client\", and \"kubebrain-peer\"",
    );
    check(
        &|fake| put_leaf(fake, "operator", &leaf(&authority, Leaf::ApiserverClient, 90)),
        "SecretInvalid: Secret operator, key tls.crt: its common name",
    );
    check(
        &|fake| {
            let old = Authority::create("a", 1, begin() - SignedDuration::from_hours(24 * 100)).unwrap();
            let names = fake.desired().names;
            let request = CertificateRequest::new(Leaf::Server, &names, &[], 90 * DAY, DAY);
            let ended = old.issue(Leaf::Server, &request, begin() - SignedDuration::from_hours(24 * 100));
            put(fake, "trust", &[("bundle.pem", &old.pair().certificate)]);
            put_leaf(fake, "server", &ended.unwrap());
        },
        "Expired: Secret server, key tls.crt: ",
    );
}

#[test]
fn authority_in_a_secret_of_cert_manager_signs() {
    let certificate = include_str!("../../../fixtures/authorities/p256.crt");
    let root = Authority::create("root", 1, begin()).unwrap();
    let chain = format!("{certificate}{}", root.pair().certificate);
    let key = include_str!("../../../fixtures/authorities/p256.key");
    let mut fake = FakeCluster::new(json!({"tls": {"caSecretRef": {"name": "mine"}}}));
    fake.at(Timestamp::now());
    let data = [
        ("ca.crt", root.pair().certificate.as_str()),
        ("tls.crt", &chain),
        ("tls.key", key),
    ];
    put(&mut fake, "mine", &data);
    fake.settle();
    assert_eq!(problem(&fake), "none");
    assert_eq!(bundle(&mut fake), CaBundle::parse(certificate).unwrap());
    assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
}

#[test]
fn authority_for_tikv_is_certificates_and_nothing_else() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let tls = json!({"caSecretRef": {"name": "database", "key": "x"}, "clientSecretRef": {"name": "client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "tls": tls});
    let blocked = |content: &str| {
        let mut fake = FakeCluster::new(json!({"storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}));
        put(&mut fake, "database", &[("x", content)]);
        fake.pass();
        fake.pass();
        fake.pass();
        let made = written(&fake).contains_key("StatefulSet dev");
        (fake.plan().blocker.map(|blocker| blocker.reason), made)
    };
    let pair = mine.pair();
    assert_eq!(blocked(&format!("# ours\n{}", pair.certificate)), (None, true));
    for bad in ["password", "", &pair.key, &format!("{}{}", pair.certificate, pair.key)] {
        assert_eq!(blocked(bad), (Some("SecretInvalid"), false), "{bad}");
    }
}

#[test]
fn bundle_with_a_key_in_it_is_refused() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let secrets = json!({
        "caBundle": {"name": "bundle", "key": "x"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "o"},
    });
    let mut fake = FakeCluster::new(json!({"tls": {"mode": "Secret", "secrets": secrets}}));
    let both = format!("{}{}", mine.pair().certificate, mine.pair().key);
    put(&mut fake, "bundle", &[("x", &both)]);
    assert!(problem(&fake).starts_with("SecretInvalid: Secret bundle, key x: it holds more than certificates"));
}
