//! Brains in pods that the user creates.

use super::*;
use crate::certificates::{Authority, CertificateRequest, Leaf};
use crate::testing::BEGIN;

fn external(spec: Value) -> FakeCluster {
    let mut fake = FakeCluster::new(json!({
        "replicas": 2,
        "storage": {"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}},
        "workload": {"type": "External", "selector": {"matchLabels": {"app": "edge", "tier": "control-plane"}}},
        "tls": {"mode": "Disabled"},
    }));
    fake.edit(spec);
    fake
}

/// Adds pods of a StatefulSet that use the headless Service as their subdomain.
fn with_pods(mut fake: FakeCluster, names: &[&str]) -> FakeCluster {
    for name in names {
        let pod = json!({
            "metadata": {"name": name, "namespace": "brains", "uid": name, "resourceVersion": "1", "labels": {"app": "edge"}},
            "spec": {"subdomain": "dev-headless", "containers": []},
        });
        fake.seen.pods.push(serde_json::from_value(pod).unwrap());
    }
    fake
}

#[test]
fn status_speaks_of_the_pods_of_the_selector() {
    let mut fake = with_pods(external(json!({})), &["edge-a", "edge-b"]);
    let hidden = json!({"metadata": {"name": "edge-c", "namespace": "brains", "deletionTimestamp": BEGIN}});
    fake.seen.pods.push(serde_json::from_value(hidden).unwrap());
    fake.settle();
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!(status.selector.as_deref(), Some("app=edge,tier=control-plane"));
    let endpoints = status.connection.unwrap().endpoints.unwrap();
    assert_eq!(
        endpoints.members.unwrap(),
        ["edge-a", "edge-b"].map(|pod| format!("http://{pod}.dev-headless.brains.svc:2379"))
    );
    fake.seen.pods.pop();
    fake.settle();
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!(
        (status.version.as_deref(), status.updated_replicas),
        (Some("0.1.0"), Some(2))
    );

    // The running version counts, not the requested one.
    fake.edit(json!({"version": "0.2.0"}));
    fake.settle();
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!(
        (status.version.as_deref(), status.updated_replicas),
        (Some("0.1.0"), Some(0))
    );
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn embedded_storage_is_judged_by_what_the_member_says() {
    let mut fake = with_pods(
        external(json!({"replicas": 1, "storage": {"type": "Embedded", "tikv": null}})),
        &["edge-a"],
    );
    fake.pass();
    assert_eq!(fake.condition("StorageReady"), "Unknown/Creating");
    fake.settle();
    assert_eq!(fake.condition("StorageReady"), "True/Reachable");
    for answer in fake.seen.probes.values_mut().flatten() {
        answer.storage.reachable = false;
    }
    fake.pass();
    assert_eq!(fake.condition("StorageReady"), "False/Unreachable");
}

#[test]
fn leader_is_transferred_on_request() {
    let mut fake = with_pods(external(json!({})), &["edge-a", "edge-b"]);
    fake.settle();
    let annotations = fake.cluster.metadata.annotations.get_or_insert_default();
    annotations.insert(crds::wishes::TRANSFER_LEADER.to_owned(), "edge-b".to_owned());
    assert_eq!(fake.steps(), ["transfer leadership from edge-a to edge-b"]);
    fake.pass();
    fake.pass();
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!(status.leader.unwrap().member, "edge-b");
    assert_eq!(status.last_handled_transfer.as_deref(), Some("edge-b"));
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn given_certificates_need_the_names_of_the_real_pods() {
    let authority = Authority::create("a", 1, BEGIN.parse().unwrap()).unwrap();
    let name = |name: &str| json!({"name": name});
    let secrets = json!({
        "caBundle": name("trust"), "server": name("server"), "peer": name("peer"), "operatorClient": name("operator"),
    });
    let mut fake = with_pods(
        external(json!({"tls": {"mode": "Secret", "secrets": secrets}})),
        &["edge-a"],
    );
    let names = fake.desired().names;
    let day = std::time::Duration::from_secs(24 * 3600);
    let pair = |leaf, hosts: &[&str]| {
        let mut request = CertificateRequest::new(leaf, &names, &[], 90 * day, day);
        request.sans.retain(|san| !san.contains('*'));
        request
            .sans
            .extend(hosts.iter().map(|host| format!("{host}.dev-headless.brains.svc")));
        authority.issue(leaf, &request, BEGIN.parse().unwrap()).unwrap()
    };
    let put = |fake: &mut FakeCluster, name: &str, data: &[(&str, &str)]| {
        let data: Vec<_> = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), k8s_openapi::ByteString(text.as_bytes().to_vec())))
            .collect();
        let secret = k8s_openapi::api::core::v1::Secret {
            data: Some(data.into_iter().collect()),
            ..Default::default()
        };
        fake.seen
            .given_secrets
            .insert(name.to_owned(), Some(std::sync::Arc::new(secret)));
    };
    put(&mut fake, "trust", &[("ca.crt", &authority.pair().certificate)]);
    for (name, leaf) in [
        ("server", Leaf::Server),
        ("peer", Leaf::Peer),
        ("operator", Leaf::OperatorClient),
    ] {
        let pair = pair(leaf, &["edge-a"]);
        put(
            &mut fake,
            name,
            &[("tls.crt", &pair.certificate), ("tls.key", &pair.key)],
        );
    }
    let problem = |fake: &FakeCluster| fake.plan().certificates.problem.map(|problem| problem.message);
    assert_eq!(problem(&fake), None);
    let mut fake = with_pods(fake, &["edge-b"]);
    let said = problem(&fake).unwrap();
    assert!(said.contains("edge-b.dev-headless.brains.svc"), "{said}");
    let pair = pair(Leaf::Server, &["edge-a", "edge-b"]);
    put(
        &mut fake,
        "server",
        &[("tls.crt", &pair.certificate), ("tls.key", &pair.key)],
    );
    let said = problem(&fake).unwrap();
    assert!(said.starts_with("Secret peer"), "{said}");
}
