use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::names::ROLE;
use crate::probe::Answer;
use crate::world::{World, answer, written};

const LEAVES: [&str; 4] = [
    "issue the certificate dev-server-tls",
    "issue the certificate dev-peer-tls",
    "issue the certificate dev-apiserver-client-tls",
    "issue the certificate dev-operator-client-tls",
];

/// A settled cluster, edited: what is done in the next pass.
#[track_caller]
fn edited(spec: Value, steps: &[&str]) {
    let mut world = World::settled(json!({}));
    world.edit(spec.clone());
    assert_eq!(world.steps(), steps, "after {spec}");
}

/// A settled cluster, changed by something else.
#[track_caller]
fn changed(change: impl FnOnce(&mut World), steps: &[&str]) {
    let mut world = World::settled(json!({}));
    change(&mut world);
    assert_eq!(world.steps(), steps);
}

#[test]
fn a_new_cluster_gets_certificates_before_what_mounts_them() {
    let world = World::new(json!({}));
    let mut expected = vec!["create the certificate authority dev-ca", "publish dev-ca-bundle"];
    expected.extend(LEAVES);
    expected.extend([
        "apply ServiceAccount dev",
        "apply Service dev-headless",
        "apply Service dev-client",
        "apply Service dev-leader",
        "apply StatefulSet dev",
    ]);
    assert_eq!(world.steps(), expected);
}

#[test]
fn a_settled_cluster_needs_nothing() {
    let mut world = World::settled(json!({}));
    assert_eq!(world.steps(), Vec::<String>::new());
    let (objects, status) = (written(&world), world.cluster.status.clone());
    world.wait(3600);
    assert_eq!(world.pass(), Vec::<String>::new());
    assert_eq!(written(&world), objects);
    assert_eq!(world.cluster.status, status, "the status of an idle cluster changed");
}

#[test]
fn a_changed_spec_changes_what_depends_on_it() {
    edited(json!({"restartedAt": "1"}), &["apply StatefulSet dev"]);
    edited(json!({"version": "0.2.0"}), &["apply StatefulSet dev"]);
    edited(
        json!({"config": {"auto-compaction-retention": "5m"}}),
        &["apply StatefulSet dev"],
    );
    edited(json!({"replicas": 0}), &["apply StatefulSet dev"]);
    edited(
        json!({"podOverrides": {"spec": {"hostNetwork": true}}}),
        &["apply StatefulSet dev"],
    );
    edited(
        json!({"services": {"client": {"type": "NodePort"}}}),
        &["apply Service dev-client"],
    );
    edited(
        json!({"services": {"leader": {"enabled": false}}}),
        &["delete Service dev-leader"],
    );
    edited(
        json!({"pod": {"serviceAccountName": "x"}}),
        &["delete ServiceAccount dev", "apply StatefulSet dev"],
    );
    edited(json!({"podDisruptionBudget": {"enabled": true}}), &[]);
    edited(json!({"tls": {"extraSans": ["a.example"]}}), &LEAVES[..1]);
    edited(json!({"tls": {"validity": "1000h"}}), &LEAVES);
    edited(json!({"tls": {"mode": "Disabled"}}), &["apply StatefulSet dev"]);
    edited(
        json!({"storage": {"embedded": {"size": "20Gi"}}}),
        &["resize the volume claim data-dev-0"],
    );
    edited(json!({"storage": {"embedded": {"size": "10240Mi"}}}), &[]);
}

#[test]
fn inherited_metadata_reaches_every_object() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}));
    world.settle();
    for (name, object) in written(&world) {
        assert_eq!(object["metadata"]["labels"]["team"], "a", "{name}");
        assert_eq!(object["metadata"]["annotations"]["note"], "b", "{name}");
    }
}

#[test]
fn what_others_changed_is_put_right_and_what_they_added_is_left() {
    let service =
        |world: &mut World, change: fn(&mut Value)| change(&mut world.object(Kind::Service, "dev-client").data);
    changed(
        |w| service(w, |data| data["spec"]["ports"][0]["port"] = json!(1)),
        &["apply Service dev-client"],
    );
    changed(
        |w| service(w, |data| data["spec"]["clusterIP"] = json!("10.0.0.1")),
        &[],
    );
    changed(
        |w| w.object(Kind::StatefulSet, "dev").data["spec"]["replicas"] = json!(3),
        &["apply StatefulSet dev"],
    );
    changed(
        |w| w.object(Kind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"] = json!("x"),
        &["apply ConfigMap dev-ca-bundle"],
    );
    changed(
        |w| w.object(Kind::Secret, "dev-server-tls").data["data"]["ca.crt"] = json!("eA=="),
        &["apply Secret dev-server-tls"],
    );
    changed(
        |w| w.object(Kind::Service, "dev-client").labels_mut().clear(),
        &["apply Service dev-client"],
    );
    changed(
        |w| w.object(Kind::Service, "dev-client").annotations_mut().clear(),
        &["apply Service dev-client"],
    );
    changed(
        |w| drop(w.seen.objects.remove(&Key::new(Kind::Service, "dev-client"))),
        &["apply Service dev-client"],
    );
    // On its way out: it has to be gone before it can be made anew.
    changed(
        |w| {
            let service = w.object(Kind::Service, "dev-client");
            service.data["spec"]["ports"][0]["port"] = json!(1);
            service.metadata.deletion_timestamp = Some(Time(crate::world::BEGIN.parse().unwrap()));
        },
        &[],
    );
}

#[test]
fn damaged_certificates_are_issued_anew() {
    let break_key = |world: &mut World, key: &str| {
        world.object(Kind::Secret, "dev-server-tls").data["data"][key] = json!("eA==");
    };
    changed(|w| break_key(w, "tls.crt"), &LEAVES[..1]);
    changed(|w| break_key(w, "tls.key"), &LEAVES[..1]);
    changed(
        |w| drop(w.seen.objects.remove(&Key::new(Kind::Secret, "dev-peer-tls"))),
        &LEAVES[1..2],
    );
    // Certificate and key of different pairs.
    changed(
        |w| {
            let other = w.object(Kind::Secret, "dev-peer-tls").data["data"]["tls.key"].clone();
            w.object(Kind::Secret, "dev-server-tls").data["data"]["tls.key"] = other;
        },
        &LEAVES[..1],
    );
}

#[test]
fn an_authority_that_cannot_sign_is_never_replaced_by_guess() {
    let mut world = World::settled(json!({}));
    world.object(Kind::Secret, "dev-ca").data["data"]["ca.key"] = json!("eA==");
    world.edit(json!({"restartedAt": "1", "tls": {"extraSans": ["a.example"]}}));
    let plan = world.plan();
    assert!(
        plan.certificates.unusable.as_ref().unwrap().contains("Secret dev-ca"),
        "{:?}",
        plan.certificates.unusable
    );
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn a_deleted_authority_is_made_anew_and_signs_everything_again() {
    let remove = |world: &mut World| drop(world.seen.objects.remove(&Key::new(Kind::Secret, "dev-ca")));
    let mut expected = vec!["create the certificate authority dev-ca", "publish dev-ca-bundle"];
    expected.extend(LEAVES);
    changed(remove, &expected);
    let mut world = World::settled(json!({}));
    remove(&mut world);
    world.settle();
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn certificates_are_renewed_in_time_and_survive_the_renewal_of_their_authority() {
    let mut world = World::settled(json!({"tls": {"validity": "8760h", "renewBefore": "24h"}}));
    let begin: Timestamp = crate::world::BEGIN.parse().unwrap();
    let hour = SignedDuration::from_hours;
    world.at(begin + hour(8760 - 24) - SignedDuration::from_secs(1));
    assert_eq!(world.steps(), Vec::<String>::new());
    world.at(begin + hour(8760 - 24));
    assert_eq!(world.steps(), LEAVES);
    world.settle();

    let bundle = |world: &mut World| world.object(Kind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    let renewal = begin + hour(24 * 365 * 8);
    world.at(renewal - hour(30));
    world.settle();
    let old = bundle(&mut world);
    world.at(renewal);
    assert_eq!(
        world.steps(),
        ["renew the certificate authority dev-ca", "publish dev-ca-bundle"]
    );
    world.pass();
    assert_ne!(bundle(&mut world), old);
    // The new certificate of the authority reaches the Secrets; what it signed stays.
    let refreshed =
        ["server", "peer", "apiserver-client", "operator-client"].map(|leaf| format!("apply Secret dev-{leaf}-tls"));
    assert_eq!(world.steps(), refreshed);
    world.settle();
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn no_renewal_setting_makes_the_operator_issue_without_end() {
    let mut world = World::settled(json!({"tls": {"validity": "10m", "renewBefore": "9m59s"}}));
    assert_eq!(world.steps(), Vec::<String>::new());
    world.wait(59);
    assert_eq!(world.steps(), Vec::<String>::new());
    world.wait(1);
    assert_eq!(world.steps(), LEAVES);
}

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
            Step::CreateAuthority | Step::RenewAuthority { .. } => key.name == "dev-ca",
            Step::PublishBundle { .. } => key.name == "dev-ca-bundle",
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
fn what_a_stateful_set_cannot_change_is_kept_and_named() {
    let mut world = World::settled(json!({"storage": {"embedded": {"storageClassName": "fast"}}}));
    let claims = world.object(Kind::StatefulSet, "dev").data["spec"]["volumeClaimTemplates"].clone();
    // The API server would refuse this edit; here the operator has to cope.
    world.edit(json!({"storage": {"embedded": {"storageClassName": "slow"}}, "restartedAt": "1"}));
    let plan = world.plan();
    assert_eq!(plan.fixed, ["volumeClaimTemplates"]);
    let set = plan.steps.iter().find_map(|step| match step {
        Step::Apply { object, .. } => Some(&object.body["spec"]),
        _ => None,
    });
    let set = set.unwrap();
    assert_eq!(set["volumeClaimTemplates"], claims);
    assert_eq!(
        set["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"],
        "1"
    );
}

#[test]
fn volumes_grow_in_their_claims_and_never_shrink() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
    assert_eq!(world.plan().claims.growing, ["data-dev-0"]);
    world.pass();
    assert_eq!(world.steps(), Vec::<String>::new());
    assert_eq!(
        world.plan().claims.growing,
        ["data-dev-0"],
        "asked for, but not there yet"
    );
    world.kubelet();
    assert_eq!(world.plan().claims.growing, Vec::<String>::new());
    world.edit(json!({"storage": {"embedded": {"size": "5Gi"}}}));
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn a_pod_monitor_is_made_only_where_the_kind_exists() {
    let mut world = World::settled(json!({"monitoring": {"podMonitor": {"enabled": true}}}));
    assert_eq!(world.steps(), Vec::<String>::new());
    world.seen.pod_monitors = true;
    assert_eq!(world.steps(), ["apply PodMonitor dev"]);
    world.settle();
    world.edit(json!({"monitoring": {"podMonitor": {"enabled": false}}}));
    assert_eq!(world.steps(), ["delete PodMonitor dev"]);
}

#[test]
fn the_role_label_follows_what_the_brains_say() {
    let check = |answer: Option<Result<Answer, String>>, label: Option<&str>, expected: Option<Option<&str>>| {
        let mut world = World::settled(json!({}));
        world.seen.probes.clear();
        world
            .seen
            .probes
            .extend(answer.map(|answer| ("dev-0".to_owned(), answer)));
        let labels = world.pod("dev-0").labels_mut();
        labels.remove(ROLE);
        labels.extend(label.map(|label| (ROLE.to_owned(), label.to_owned())));
        let step = world.plan().steps.into_iter().find_map(|step| match step {
            Step::Label { role, .. } => Some(role),
            _ => None,
        });
        assert_eq!(step, expected, "{label:?}");
    };
    check(Some(Ok(answer(1, 1))), None, Some(Some("leader")));
    check(Some(Ok(answer(1, 1))), Some("leader"), None);
    check(Some(Ok(answer(1, 2))), Some("leader"), Some(Some("follower")));
    check(Some(Ok(answer(1, 0))), Some("leader"), Some(None));
    check(Some(Err("silent".to_owned())), Some("leader"), Some(None));
    check(None, Some("leader"), Some(None));
    check(None, None, None);
}

/// A settled cluster whose template changed; `change` comes before the pass that may replace the pod.
fn rolling(change: impl FnOnce(&mut World)) -> (Vec<String>, Option<String>) {
    let mut world = World::settled(json!({}));
    world.wait(60);
    world.edit(json!({"restartedAt": "1"}));
    assert_eq!(
        world.pass(),
        ["apply StatefulSet dev"],
        "never together with a replacement"
    );
    change(&mut world);
    (world.steps(), world.plan().rollout.waiting)
}

#[test]
fn an_outdated_pod_is_replaced_only_when_nothing_is_in_the_way() {
    let replaced = (vec!["delete pod dev-0".to_owned()], None);
    assert_eq!(rolling(|_| {}), replaced);
    let unready = rolling(|world| world.set_ready("dev-0", false));
    assert_eq!(unready.0.last().unwrap(), "delete pod dev-0");
    let waits = |change: fn(&mut World)| {
        let (steps, waiting) = rolling(change);
        assert_eq!(steps, Vec::<String>::new());
        waiting.unwrap_or_default()
    };
    let now = |world: &World| Some(Time(world.seen.now));
    assert_eq!(
        waits(|world| world.object(Kind::StatefulSet, "dev").data["status"]["observedGeneration"] = json!(1)),
        ""
    );
    assert_eq!(
        waits(|world| world.edit(json!({"update": {"type": "OnDelete"}}))),
        "update.type is OnDelete: waiting for dev-0 to be deleted"
    );
    let (steps, _) = rolling(|world| world.pod("dev-0").metadata.deletion_timestamp = now(&World::new(json!({}))));
    assert_eq!(steps, Vec::<String>::new());
}

#[test]
fn a_pause_holds_back_every_step_and_shows_what_is_held_back() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"paused": true, "restartedAt": "1", "tls": {"extraSans": ["a.example"]}}));
    let before = written(&world);
    assert_eq!(world.pass(), Vec::<String>::new());
    assert_eq!(written(&world), before);
    assert_eq!(world.condition("Ready"), "False/Paused");
    world.edit(json!({"paused": false}));
    assert_eq!(world.pass(), [LEAVES[0], "apply StatefulSet dev"]);
}

/// Three members, as other storages will have them: who is replaced next.
fn next(leader: usize, ready: [bool; 3], outdated: [bool; 3], leaving: [bool; 3]) -> (Vec<String>, Option<String>) {
    let mut world = World::settled(json!({}));
    world.wait(3600);
    let mut template = world.seen.pods[0].clone();
    template.labels_mut().remove(ROLE);
    let current = rollout::revision(&template).unwrap().to_owned();
    world.seen.pods.clear();
    for (ordinal, outdated) in outdated.into_iter().enumerate() {
        let mut pod = template.clone();
        pod.metadata.name = Some(format!("dev-{ordinal}"));
        let revision = if outdated {
            "dev-old".to_owned()
        } else {
            current.clone()
        };
        pod.labels_mut().insert("controller-revision-hash".to_owned(), revision);
        world.seen.pods.push(pod);
    }
    for (ordinal, ready) in ready.into_iter().enumerate() {
        let (name, member) = (format!("dev-{ordinal}"), u64::try_from(ordinal).unwrap() + 1);
        world
            .seen
            .probes
            .insert(name.clone(), Ok(answer(member, u64::try_from(leader).unwrap() + 1)));
        if !ready {
            world.set_ready(&name, false);
        }
    }
    let now = Time(world.seen.now);
    for (pod, leaving) in world.seen.pods.iter_mut().zip(leaving) {
        pod.metadata.deletion_timestamp = leaving.then(|| now.clone());
    }
    let mut desired = world.desired();
    desired.replicas = 3;
    let mut plan = Plan::default();
    rollout::plan(&mut plan, &world.cluster, &desired, &world.seen);
    let steps = plan
        .steps
        .iter()
        .map(|step| crate::apply::describe(step, &desired))
        .collect();
    (steps, plan.rollout.waiting)
}

#[test]
fn members_are_replaced_one_by_one_the_leader_last() {
    let (all, none) = ([true; 3], [false; 3]);
    let check = |leader, ready, outdated, expected: &str| {
        let (steps, waiting) = next(leader, ready, outdated, none);
        assert_eq!(
            steps.first().cloned().or(waiting).unwrap_or_default(),
            expected,
            "{leader} {ready:?} {outdated:?}"
        );
    };
    check(0, all, none, "");
    check(0, all, all, "delete pod dev-2");
    check(2, all, all, "delete pod dev-1");
    check(2, all, [true, false, true], "delete pod dev-0");
    check(2, all, [false, false, true], "delete pod dev-2");
    // One that serves nobody costs nothing, wherever it is.
    check(2, [false, true, true], all, "delete pod dev-0");
    check(
        0,
        [true, true, false],
        [true, true, false],
        "dev-2 is not ready for 10 s yet",
    );
}

#[test]
fn nobody_is_replaced_while_a_member_is_on_its_way_out() {
    for ready in [true, false] {
        let (steps, waiting) = next(0, [true, ready, true], [false, true, true], [false, false, true]);
        assert_eq!((steps, waiting.as_deref()), (vec![], Some("a pod is being deleted")));
    }
}

#[test]
fn nobody_is_replaced_before_the_newest_template_is_written() {
    let (steps, _) = rolling(|world| world.edit(json!({"restartedAt": "2"})));
    assert_eq!(steps, ["apply StatefulSet dev"]);
}
