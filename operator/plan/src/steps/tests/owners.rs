//! The owner of an object, and its consequences.

use super::*;

fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "kubebrain.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

#[test]
fn an_object_is_ours_by_its_controller_reference_alone() {
    use ownership::{Ownership, of};
    let check = |owner: Option<OwnerReference>, expected: Ownership| {
        let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            owner_references: owner.map(|owner| vec![owner]),
            ..Default::default()
        };
        assert_eq!(of(&metadata, "dev", "u"), expected);
    };
    check(Some(owner("KubeBrainCluster", "dev", "u")), Ownership::Ours);
    check(Some(owner("KubeBrainCluster", "dev", "other")), Ownership::Former);
    check(Some(owner("KubeBrainCluster", "other", "u")), Ownership::Foreign);
    check(Some(owner("Deployment", "dev", "u")), Ownership::Foreign);
    check(
        Some(OwnerReference {
            controller: None,
            ..owner("KubeBrainCluster", "dev", "u")
        }),
        Ownership::Foreign,
    );
    check(
        Some(OwnerReference {
            api_version: "apps/v1".to_owned(),
            ..owner("KubeBrainCluster", "dev", "u")
        }),
        Ownership::Foreign,
    );
    check(None, Ownership::Foreign);
}

#[test]
fn objects_of_others_are_left_alone_and_named_and_no_pod_is_made_over_them() {
    let all: Vec<ObjectKey> = FakeCluster::settled(json!({})).seen.objects.keys().cloned().collect();
    assert_eq!(all.len(), 11);
    for key in all {
        let mut fake = FakeCluster::new(json!({}));
        let mut donor = FakeCluster::settled(json!({}));
        let mut object = donor.seen.objects.remove(&key).unwrap();
        object.metadata.owner_references = None;
        object.labels_mut().remove(crate::names::MANAGED_BY);
        object.data = json!({"data": {"precious": "eA=="}});
        fake.seen.objects.insert(key.clone(), object);
        let plan = fake.plan();
        assert_eq!(plan.foreign, std::slice::from_ref(&key));
        let touched = plan.steps.iter().any(|step| match step {
            PlanStep::WriteAuthority { .. } | PlanStep::DiscardAuthority { .. } => key.name == "dev-ca",
            PlanStep::Issue { leaf, .. } => key.name == fake.desired().names.leaf(*leaf),
            PlanStep::Apply { object, .. } => object.key == key,
            PlanStep::Delete { key: deleted, .. } => *deleted == key,
            _ => false,
        });
        assert!(!touched, "{key} is not ours but was touched");
        let runs = plan
            .steps
            .iter()
            .any(|step| matches!(step, PlanStep::Apply { object, .. } if object.key.kind == ObjectKind::StatefulSet));
        assert!(!runs, "pods would be made although {key} is not ours");
    }
}

#[test]
fn unwanted_objects_of_others_are_not_deleted() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.object(ObjectKind::Service, "dev-leader").metadata.owner_references = None;
    fake.edit(json!({"services": {"leader": {"enabled": false}}}));
    assert_eq!(fake.steps(), Vec::<String>::new());
    assert!(
        fake.plan().foreign.is_empty(),
        "nothing is wanted there, so nobody is in the way"
    );
}

#[test]
fn objects_of_a_deleted_cluster_of_the_same_name_are_waited_for() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.cluster.metadata.uid = Some("another-uid".to_owned());
    let plan = fake.plan();
    assert_eq!(plan.former.len(), 11);
    assert!(plan.foreign.is_empty() && plan.is_blocked());
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn pods_and_claims_that_only_carry_the_labels_are_neither_touched_nor_counted() {
    let check = |foreign: fn(&mut k8s_openapi::api::core::v1::Pod)| {
        let mut fake = FakeCluster::settled(json!({"storage": {"embedded": {"size": "10Gi"}}}));
        let mut pod = fake.seen.pods[0].clone();
        pod.metadata.name = Some("dev-1".to_owned());
        pod.metadata.uid = Some("foreign".to_owned());
        pod.labels_mut()
            .insert("controller-revision-hash".to_owned(), "other".to_owned());
        foreign(&mut pod);
        fake.seen.pods.push(pod);
        fake.seen.probes.insert("dev-1".to_owned(), Err("silent".to_owned()));
        for name in ["other", "data-dev-x", "data-dev-01", "data-dev2-0"] {
            let mut claim = fake.seen.claims[0].clone();
            claim.metadata.name = Some(name.to_owned());
            fake.seen.claims.push(claim);
        }
        let mut unlabelled = fake.seen.claims[0].clone();
        unlabelled.metadata.name = Some("data-dev-1".to_owned());
        unlabelled.labels_mut().clear();
        fake.seen.claims.push(unlabelled);
        fake.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
        assert_eq!(fake.steps(), ["resize the volume claim data-dev-0"]);
        let plan = fake.plan();
        assert_eq!((plan.claims.count, plan.rollout.pods, plan.rollout.updated), (1, 1, 1));
        assert_eq!(plan.rollout.outdated, Vec::<String>::new());
    };
    check(|pod| pod.metadata.owner_references = None);
    check(|pod| pod.metadata.owner_references.as_mut().unwrap()[0].uid = "other".to_owned());
    check(|pod| pod.metadata.owner_references.as_mut().unwrap()[0].kind = "ReplicaSet".to_owned());
    check(|pod| pod.metadata.owner_references.as_mut().unwrap()[0].controller = None);
}

#[test]
fn nothing_is_ours_below_a_stateful_set_of_somebody_else() {
    let mut fake = FakeCluster::settled(json!({}));
    let set = fake.object(ObjectKind::StatefulSet, "dev");
    set.metadata.owner_references = None;
    set.labels_mut().clear();
    assert!(fake.own().pods.is_empty());
}

/// Returns a cluster that was deleted with `--cascade=orphan` and recreated.
fn remade(spec: Value) -> FakeCluster {
    let mut fake = FakeCluster::settled(spec);
    for object in fake.seen.objects.values_mut() {
        object.metadata.owner_references = None;
    }
    fake.cluster.metadata.uid = Some("remade".to_owned());
    fake.cluster.status = None;
    fake
}

fn uids(fake: &FakeCluster) -> Vec<Option<String>> {
    fake.seen.pods.iter().map(kube::ResourceExt::uid).collect()
}

#[test]
fn orphans_of_a_remade_cluster_are_adopted() {
    let mut fake = remade(json!({"tls": {"mode": "Disabled"}}));
    let (pods, before) = (uids(&fake), written(&fake));
    assert!(fake.plan().foreign.is_empty());
    fake.settle();
    assert_eq!(uids(&fake), pods, "no member is replaced");
    for (name, object) in written(&fake) {
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "remade", "{name}");
        assert_eq!(object["metadata"]["uid"], before[&name]["metadata"]["uid"], "{name}");
    }
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn orphaned_authority_is_adopted_where_its_key_is_named() {
    let mut fake = remade(json!({}));
    let key = ObjectKey::new(ObjectKind::Secret, "dev-ca");
    assert_eq!(fake.plan().foreign, std::slice::from_ref(&key));
    let authority = |fake: &mut FakeCluster| fake.object(ObjectKind::Secret, "dev-ca").data["data"].clone();
    let (pods, data) = (uids(&fake), authority(&mut fake));
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/OwnershipConflict");
    assert_eq!(authority(&mut fake), data);
    let status = fake.cluster.status.clone().unwrap();
    let stalled = status
        .conditions
        .unwrap()
        .into_iter()
        .find(|condition| condition.type_ == "Stalled")
        .unwrap();
    let (_, named) = stalled
        .message
        .split_once("kubebrain.io/adopt-ca to ")
        .expect(&stalled.message);
    let adopt = |fake: &mut FakeCluster, named: &str| {
        let annotations = fake.cluster.annotations_mut();
        annotations.insert("kubebrain.io/adopt-ca".to_owned(), named.to_owned());
    };
    adopt(&mut fake, "0123");
    assert_eq!(fake.plan().foreign, [key]);
    adopt(&mut fake, named);
    fake.settle();
    assert_eq!((uids(&fake), authority(&mut fake)), (pods, data));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(
        fake.cluster.status.clone().unwrap().ca.unwrap().fingerprint.as_deref(),
        Some(named)
    );
}

#[test]
fn object_with_another_controller_is_no_orphan() {
    let mut fake = remade(json!({"tls": {"mode": "Disabled"}}));
    let key = ObjectKey::new(ObjectKind::Service, "dev-client");
    fake.object(ObjectKind::Service, "dev-client").metadata.owner_references =
        Some(vec![owner("Deployment", "dev", "u")]);
    assert_eq!(fake.plan().foreign, [key]);
}
