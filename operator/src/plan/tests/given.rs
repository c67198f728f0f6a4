//! Certificates of somebody else: the user's own authority, and Secrets that the user fills.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::*;
use crate::certificates::{Authority, Bundle, Pair, Request};
use crate::names::CA_ADVANCE;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

fn begin() -> Timestamp {
    crate::world::BEGIN.parse().unwrap()
}

fn put(world: &mut World, name: &str, data: &[(&str, &str)]) {
    let data = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
    let secret = Secret {
        data: Some(data.collect()),
        ..Secret::default()
    };
    world.seen.given_secrets.insert(name.to_owned(), Some(Arc::new(secret)));
}

fn put_authority(world: &mut World, authority: &Authority) {
    let pair = authority.pair();
    put(world, "mine", &[("ca.crt", &pair.certificate), ("ca.key", &pair.key)]);
}

fn own(authority: &Authority) -> World {
    let mut world = World::new(json!({"tls": {"caSecretRef": {"name": "mine"}}}));
    put_authority(&mut world, authority);
    world.settle();
    world
}

fn bundle(world: &mut World) -> Bundle {
    let text = world.object(Kind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    Bundle::parse(text.as_str().unwrap()).unwrap()
}

fn trusted(authorities: &[&Authority]) -> Bundle {
    let mut all = Bundle::default();
    for authority in authorities {
        all.extend(&Bundle::parse(&authority.pair().certificate).unwrap());
    }
    all
}

/// `reason: message` of the problem with certificates.
fn problem(world: &World) -> String {
    let problem = world.plan().certificates.problem;
    problem.map_or("none".to_owned(), |problem| {
        format!("{}: {}", problem.reason, problem.message)
    })
}

#[test]
fn own_authority_signs_and_its_key_is_stored_nowhere_else() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let mut world = own(&mine);
    assert_eq!(world.steps(), Vec::<String>::new());
    assert_eq!(bundle(&mut world), trusted(&[&mine]));
    assert_eq!(world.condition("CertificatesReady"), "True/Issued");
    for (name, object) in written(&world) {
        assert!(object["data"]["ca.key"].is_null(), "{name}");
    }
}

#[test]
fn another_key_of_the_own_authority_is_published_beside_the_former_one() {
    let (one, two) = (
        Authority::create("one", 1, begin()).unwrap(),
        Authority::create("two", 1, begin()).unwrap(),
    );
    let mut world = own(&one);
    let leaf = |world: &mut World| world.object(Kind::Secret, "dev-server-tls").data["data"]["tls.crt"].clone();
    let before = leaf(&mut world);
    put_authority(&mut world, &two);
    world.settle();
    assert_eq!(bundle(&mut world), trusted(&[&one, &two]));
    assert_eq!(
        leaf(&mut world),
        before,
        "signed by a key that clients do not trust yet"
    );
    assert_eq!(world.condition("CertificatesReady"), "True/RotatingCertificates");
    for phase in ["Issuing", "Retiring"] {
        let annotations = world.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(CA_ADVANCE.to_owned(), phase.to_owned());
        world.settle();
    }
    assert_ne!(leaf(&mut world), before);
    assert_eq!(bundle(&mut world), trusted(&[&two]));
    assert_eq!(world.condition("CertificatesReady"), "True/Issued");
}

#[test]
fn own_authority_renewed_with_its_key_is_published_at_once() {
    let one = Authority::create("one", 1, begin()).unwrap();
    let mut world = own(&one);
    let later = one.renew(begin() + SignedDuration::from_hours(24)).unwrap();
    world.wait(2 * 24 * 3600);
    put_authority(&mut world, &later);
    world.settle();
    assert_eq!(bundle(&mut world), trusted(&[&later]));
    assert_eq!(
        world.cluster.status.as_ref().unwrap().ca.as_ref().unwrap().phase,
        "Stable"
    );
}

#[test]
fn what_is_wrong_with_the_own_authority_is_named_and_heals() {
    let mine = Authority::create("mine", 1, begin()).unwrap();
    let other = Authority::create("other", 1, begin()).unwrap();
    let mut world = own(&mine);
    let check = |world: &mut World, expected: &str| {
        assert!(problem(world).starts_with(expected), "{}", problem(world));
        assert_eq!(world.steps(), Vec::<String>::new());
        world.pass();
        assert!(
            world.condition("Stalled").starts_with("True/Authority"),
            "{}",
            world.condition("Stalled")
        );
    };
    world.seen.given_secrets.insert("mine".to_owned(), None);
    check(
        &mut world,
        "AuthorityMissing: Secret mine of tls.caSecretRef does not exist",
    );
    put(&mut world, "mine", &[("ca.crt", &mine.pair().certificate)]);
    check(
        &mut world,
        "AuthorityMissing: Secret mine of tls.caSecretRef has no text in ca.crt and ca.key",
    );
    let mixed = [
        ("ca.crt", mine.pair().certificate.as_str()),
        ("ca.key", other.pair().key.as_str()),
    ];
    put(&mut world, "mine", &mixed);
    check(
        &mut world,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the key does not belong",
    );
    let leaf = leaf(&mine, Leaf::Server, 90);
    put(
        &mut world,
        "mine",
        &[("ca.crt", &leaf.certificate), ("ca.key", &leaf.key)],
    );
    check(
        &mut world,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the certificate is no authority",
    );
    let old = Authority::create("mine", 1, begin() - SignedDuration::from_hours(24 * 366 * 11)).unwrap();
    put_authority(&mut world, &old);
    check(
        &mut world,
        "AuthorityInvalid: Secret mine of tls.caSecretRef: the certificate in ca.crt has ended",
    );
    put_authority(&mut world, &mine);
    world.settle();
    assert_eq!(problem(&world), "none");
    assert_eq!(world.condition("Stalled"), "absent");
}

fn leaf(authority: &Authority, leaf: Leaf, days: u32) -> Pair {
    let names = World::new(json!({})).desired().names;
    let request = Request::new(leaf, &names, &[], days * DAY, DAY);
    authority.issue(leaf, &request, begin()).unwrap()
}

fn put_leaf(world: &mut World, name: &str, pair: &Pair) {
    put(world, name, &[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
}

/// A cluster whose certificates are all given, by `authority`.
fn given(authority: &Authority) -> World {
    let name = |name: &str| json!({"name": name});
    let mut world = World::new(json!({"tls": {"mode": "Secret", "secrets": {
        "caBundle": {"name": "trust", "key": "bundle.pem"},
        "server": name("server"), "peer": name("peer"), "operatorClient": name("operator"),
    }}}));
    put(&mut world, "trust", &[("bundle.pem", &authority.pair().certificate)]);
    for (name, purpose) in [
        ("server", Leaf::Server),
        ("peer", Leaf::Peer),
        ("operator", Leaf::OperatorClient),
    ] {
        put_leaf(&mut world, name, &leaf(authority, purpose, 90));
    }
    world
}

#[test]
fn given_certificates_are_used_as_they_are() {
    let mut world = given(&Authority::create("a", 1, begin()).unwrap());
    world.settle();
    assert_eq!(world.condition("CertificatesReady"), "True/Issued");
    let owned: Vec<_> = world
        .seen
        .objects
        .keys()
        .filter(|key| key.kind == Kind::Secret)
        .collect();
    assert!(owned.is_empty(), "{owned:?}");
    let status = world.cluster.status.unwrap();
    assert!(status.ca.is_none());
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
    let mut world = given(&authority);
    world.settle();
    let sound = world.seen.given_secrets.clone();
    let mut check = |change: &dyn Fn(&mut World), expected: &str| {
        change(&mut world);
        assert!(problem(&world).starts_with(expected), "{}", problem(&world));
        world.edit(json!({"restartedAt": expected}));
        assert_eq!(
            world.steps(),
            Vec::<String>::new(),
            "pods were changed with bad certificates"
        );
        world.pass();
        let reason = expected.split_once(':').unwrap().0;
        assert_eq!(world.condition("CertificatesReady"), format!("False/{reason}"));
        world.seen.given_secrets.clone_from(&sound);
        assert_eq!(problem(&world), "none");
    };
    let lose =
        |name: &'static str| move |world: &mut World| drop(world.seen.given_secrets.insert(name.to_owned(), None));
    check(&lose("trust"), "SecretMissing: Secret trust ");
    check(&lose("server"), "SecretMissing: Secret server ");
    check(&lose("peer"), "SecretMissing: Secret peer ");
    check(&lose("operator"), "SecretMissing: Secret operator ");
    check(
        &|world| put(world, "trust", &[("ca.crt", "x")]),
        "SecretMissing: Secret trust of tls.secrets has no text in bundle.pem",
    );
    check(
        &|world| put(world, "trust", &[("bundle.pem", "x")]),
        "SecretInvalid: Secret trust, key bundle.pem: ",
    );
    let server = leaf(&authority, Leaf::Server, 90);
    check(
        &|world| put(world, "server", &[("tls.crt", &server.certificate)]),
        "SecretMissing: Secret server of tls.secrets has no text in tls.key",
    );
    check(
        &|world| put(world, "server", &[("tls.crt", "x"), ("tls.key", &server.key)]),
        "SecretInvalid: Secret server, key tls.crt: ",
    );
    check(
        &|world| put(world, "server", &[("tls.crt", &server.certificate), ("tls.key", "x")]),
        "SecretInvalid: Secret server, key tls.key: it is no private key",
    );
    check(
        &|world| {
            put(
                world,
                "server",
                &[("tls.crt", &server.certificate), ("tls.key", &other.pair().key)],
            )
        },
        "SecretInvalid: Secret server, key tls.key: it does not belong",
    );
    check(
        &|world| put_leaf(world, "server", &leaf(&other, Leaf::Server, 90)),
        "NotTrusted: Secret server, key tls.crt: no certificate of tls.secrets.caBundle signed it",
    );
    check(
        &|world| put_leaf(world, "server", &leaf(&authority, Leaf::Peer, 90)),
        "NamesNotCovered: Secret server, key tls.crt: it is not valid for dev-client.brains.svc",
    );
    check(
        &|world| put_leaf(world, "peer", &leaf(&authority, Leaf::Server, 90)),
        "SecretInvalid: Secret peer, key tls.crt: its common name is \"dev-client\", and \"kubebrain-peer\"",
    );
    check(
        &|world| put_leaf(world, "operator", &leaf(&authority, Leaf::ApiserverClient, 90)),
        "SecretInvalid: Secret operator, key tls.crt: its common name",
    );
    check(
        &|world| {
            let old = Authority::create("a", 1, begin() - SignedDuration::from_hours(24 * 100)).unwrap();
            let names = world.desired().names;
            let request = Request::new(Leaf::Server, &names, &[], 90 * DAY, DAY);
            let ended = old.issue(Leaf::Server, &request, begin() - SignedDuration::from_hours(24 * 100));
            put(world, "trust", &[("bundle.pem", &old.pair().certificate)]);
            put_leaf(world, "server", &ended.unwrap());
        },
        "Expired: Secret server, key tls.crt: ",
    );
}
