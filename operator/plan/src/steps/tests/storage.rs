//! The TiKV cluster that holds the data.

use kube::core::DynamicObject;

use super::*;
use crate::spec;
use crate::testing::settings;

/// A cluster of the TiDB operator with this id.
fn tidb(id: &str) -> DynamicObject {
    let status = json!({"pd": "http://pd:2379", "id": id});
    serde_json::from_value(json!({
        "apiVersion": "core.pingcap.com/v1alpha1", "kind": "Cluster", "metadata": {"name": "t"}, "status": status,
    }))
    .unwrap()
}

fn on_tikv(tikv: Value) -> Value {
    json!({"replicas": 2, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}})
}

/// All members report this TiKV cluster.
fn report(fake: &mut FakeCluster, id: &str) {
    for answer in fake.seen.probes.values_mut().flatten() {
        answer.storage.cluster_id = Some(id.to_owned());
    }
}

fn flags(plan: &Plan) -> Option<Vec<String>> {
    plan.steps.iter().find_map(|step| match step {
        PlanStep::Apply { object, .. } if object.key.kind == ObjectKind::StatefulSet => {
            let args = &object.body["spec"]["template"]["spec"]["containers"][0]["args"];
            serde_json::from_value(args.clone()).ok()
        }
        _ => None,
    })
}

#[test]
fn id_that_becomes_known_later_is_a_flag_of_pods_to_come_and_restarts_nobody() {
    let mut fake = FakeCluster::settled(on_tikv(json!({"pdEndpoints": ["pd:2379"]})));
    report(&mut fake, "7");
    assert_eq!(fake.pass(), Vec::<String>::new());
    let pinned = fake.cluster.status.clone().unwrap().storage.unwrap().cluster_id;
    assert_eq!(pinned.as_deref(), Some("7"));
    let flags = flags(&fake.plan()).unwrap();
    assert!(flags.contains(&"--tikv-cluster-id=7".to_owned()), "{flags:?}");
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn id_that_is_known_at_first_is_a_flag() {
    let mut fake = FakeCluster::settled(on_tikv(json!({"pdEndpoints": ["pd:2379"], "clusterID": "7"})));
    fake.seen
        .objects
        .remove(&ObjectKey::new(ObjectKind::StatefulSet, "dev"));
    assert!(flags(&fake.plan()).unwrap().contains(&"--tikv-cluster-id=7".to_owned()));

    let mut fake = FakeCluster::settled(on_tikv(json!({"pdEndpoints": ["pd:2379"]})));
    fake.seen
        .objects
        .remove(&ObjectKey::new(ObjectKind::StatefulSet, "dev"));
    let reference = json!({"clusterRef": {"name": "t"}});
    fake.cluster.spec.storage.tikv = Some(serde_json::from_value(reference).unwrap());
    let desired = spec::desired(
        &fake.cluster,
        &settings(),
        Some(&tidb("7")),
        None,
        Ok(()),
        fake.seen.now,
    );
    let plan = plan(&fake.cluster, &desired, &fake.seen).unwrap();
    assert!(flags(&plan).unwrap().contains(&"--tikv-cluster-id=7".to_owned()));
}

#[test]
fn another_tikv_cluster_than_the_pinned_one_stops_the_rollout() {
    let mut fake = members(2, [false; 2]);
    report(&mut fake, "7");
    fake.pass();
    report(&mut fake, "8");
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("StorageReady"), "False/ClusterIDChanged");
    assert_eq!(fake.condition("Stalled"), "True/ClusterIDChanged");
    let pinned = fake.cluster.status.clone().unwrap().storage.unwrap().cluster_id;
    assert_eq!(pinned.as_deref(), Some("7"), "what is pinned stays");
    report(&mut fake, "7");
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.condition("StorageReady"), "True/Reachable");
}

#[test]
fn reference_that_leads_to_another_tikv_cluster_is_named() {
    let mut fake = members(2, [false; 2]);
    report(&mut fake, "7");
    fake.pass();
    let mut cluster = fake.cluster.clone();
    let tikv = json!({"clusterRef": {"name": "t"}});
    cluster.spec.storage.tikv = Some(serde_json::from_value(tikv).unwrap());
    let changed = |id: &str| {
        let desired = spec::desired(
            &cluster,
            &settings(),
            Some(&tidb(id)),
            None,
            Ok(()),
            "2026-11-21T00:00:00Z".parse().unwrap(),
        );
        plan(&cluster, &desired, &fake.own())
            .unwrap()
            .blocker
            .map(|refusal| refusal.message)
    };
    assert_eq!(changed("7"), None);
    let why = changed("8").unwrap();
    assert!(why.contains("clusterRef refers to the TiKV cluster 8"), "{why}");
}

/// A Secret with this value.
fn secret(key: &str, value: &str) -> Option<std::sync::Arc<k8s_openapi::api::core::v1::Secret>> {
    let data = [(key.to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec()))];
    Some(std::sync::Arc::new(k8s_openapi::api::core::v1::Secret {
        data: Some(data.into()),
        ..Default::default()
    }))
}

#[test]
fn pods_are_neither_made_nor_replaced_without_the_secrets_that_they_mount() {
    let tls = json!({"caSecretRef": {"name": "tikv-ca", "key": "ca.pem"}, "clientSecretRef": {"name": "tikv-client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "tls": tls});
    let storage = json!({"type": "TiKV", "embedded": null, "tikv": tikv});
    let spec = json!({"storage": storage, "jwtSecretRef": {"name": "jwt"}});
    let mut fake = FakeCluster::settled(spec);
    let certificate = fake.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    let good = || secret("ca.pem", certificate.as_str().unwrap());
    fake.seen.given_secrets.insert("tikv-ca".to_owned(), good());
    fake.seen.given_secrets.insert("jwt".to_owned(), secret("jwt.pub", "x"));
    fake.edit(json!({"version": "0.2.0"}));
    for (name, bad, why) in [
        ("tikv-ca", None, "Secret tikv-ca does not exist"),
        // The same holds for one with a value that is too large to be kept.
        (
            "tikv-ca",
            secret("other", "x"),
            "Secret tikv-ca has no ca.pem, or it is larger than 128 KiB",
        ),
        ("jwt", None, "Secret jwt does not exist: jwtSecretRef names it"),
    ] {
        let before = fake.seen.given_secrets.insert(name.to_owned(), bad).unwrap();
        assert_eq!(fake.pass(), Vec::<String>::new(), "{why}");
        assert_eq!(fake.condition("Stalled"), "True/SecretMissing", "{why}");
        let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        assert!(ready.message.starts_with(why), "{}", ready.message);
        fake.seen.given_secrets.insert(name.to_owned(), before);
    }
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
}

#[test]
fn secret_with_the_keys_of_tokens_is_watched() {
    let named = |spec: Value| crate::spec::secrets::named(&crate::testing::cluster(spec).spec);
    assert!(named(json!({"jwtSecretRef": {"name": "jwt"}})).keys().eq(["jwt"]));
}
