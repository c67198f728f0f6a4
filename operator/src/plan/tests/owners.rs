//! Whose an object is, and what follows for it.

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
    let all: Vec<Key> = World::settled(json!({})).seen.objects.keys().cloned().collect();
    assert_eq!(all.len(), 11);
    for key in all {
        let mut world = World::new(json!({}));
        let mut donor = World::settled(json!({}));
        let mut object = donor.seen.objects.remove(&key).unwrap();
        object.metadata.owner_references = None;
        object.data = json!({"data": {"precious": "eA=="}});
        world.seen.objects.insert(key.clone(), object);
        let plan = world.plan();
        assert_eq!(plan.foreign, std::slice::from_ref(&key));
        let touched = plan.steps.iter().any(|step| match step {
            Step::WriteAuthority { .. } | Step::DiscardAuthority { .. } => key.name == "dev-ca",
            Step::Issue { leaf, .. } => key.name == world.desired().names.leaf(*leaf),
            Step::Apply { object, .. } => object.key == key,
            Step::Delete { key: deleted, .. } => *deleted == key,
            _ => false,
        });
        assert!(!touched, "{key} is not ours but was touched");
        let runs = plan
            .steps
            .iter()
            .any(|step| matches!(step, Step::Apply { object, .. } if object.key.kind == Kind::StatefulSet));
        assert!(!runs, "pods would be made although {key} is not ours");
    }
}

#[test]
fn unwanted_objects_of_others_are_not_deleted() {
    let mut world = World::settled(json!({}));
    world.object(Kind::Service, "dev-leader").metadata.owner_references = None;
    world.edit(json!({"services": {"leader": {"enabled": false}}}));
    assert_eq!(world.steps(), Vec::<String>::new());
    assert!(
        world.plan().foreign.is_empty(),
        "nothing is wanted there, so nobody is in the way"
    );
}

#[test]
fn objects_of_a_deleted_cluster_of_the_same_name_are_waited_for() {
    let mut world = World::settled(json!({}));
    world.cluster.metadata.uid = Some("another-uid".to_owned());
    let plan = world.plan();
    assert_eq!(plan.former.len(), 11);
    assert!(plan.foreign.is_empty() && plan.is_blocked());
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn pods_and_claims_that_only_carry_the_labels_are_neither_touched_nor_counted() {
    let check = |foreign: fn(&mut k8s_openapi::api::core::v1::Pod)| {
        let mut world = World::settled(json!({"storage": {"embedded": {"size": "10Gi"}}}));
        let mut pod = world.seen.pods[0].clone();
        pod.metadata.name = Some("dev-1".to_owned());
        pod.metadata.uid = Some("foreign".to_owned());
        pod.labels_mut()
            .insert("controller-revision-hash".to_owned(), "other".to_owned());
        foreign(&mut pod);
        world.seen.pods.push(pod);
        world.seen.probes.insert("dev-1".to_owned(), Err("silent".to_owned()));
        for name in ["other", "data-dev-x", "data-dev-01", "data-dev2-0"] {
            let mut claim = world.seen.claims[0].clone();
            claim.metadata.name = Some(name.to_owned());
            world.seen.claims.push(claim);
        }
        let mut unlabelled = world.seen.claims[0].clone();
        unlabelled.metadata.name = Some("data-dev-1".to_owned());
        unlabelled.labels_mut().clear();
        world.seen.claims.push(unlabelled);
        world.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
        assert_eq!(world.steps(), ["resize the volume claim data-dev-0"]);
        let plan = world.plan();
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
    let mut world = World::settled(json!({}));
    world.object(Kind::StatefulSet, "dev").metadata.owner_references = None;
    assert!(world.own().pods.is_empty());
}
