use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::member::{BrainRole, MemberAnswer};
use crate::names::ROLE;
use crate::testing::{FakeCluster, answer, written};

mod additions;
mod budget;
mod certificates;
mod claims;
mod downgrade;
mod epochs;
mod external;
mod leader;
mod lock;
mod model;
mod owners;
mod provided;
mod replacement;
mod resize;
mod rotation;
mod storage;
mod store;
mod trial;
mod windows;

/// Returns a cluster of N members on TiKV that serve, the first one leading; those marked in `outdated` have a former template.
fn members<const N: usize>(replicas: usize, outdated: [bool; N]) -> FakeCluster {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    let spec = json!({"replicas": replicas, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}});
    let mut fake = FakeCluster::settled(spec);
    fake.wait(3600);
    for (pod, outdated) in fake.seen.pods.iter_mut().zip(outdated) {
        if outdated {
            pod.annotations_mut()
                .insert(crate::names::RESTART_HASH.to_owned(), "former".to_owned());
        }
    }
    fake
}

const LEAVES: [&str; 4] = [
    "issue the certificate dev-server-tls",
    "issue the certificate dev-peer-tls",
    "issue the certificate dev-apiserver-client-tls",
    "issue the certificate dev-operator-client-tls",
];

/// Edits a settled cluster, and checks the steps of the next pass.
#[track_caller]
fn edited(spec: Value, steps: &[&str]) {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(spec.clone());
    assert_eq!(fake.steps(), steps, "after {spec}");
}

/// Changes something else in a settled cluster, and checks the steps of the next pass.
#[track_caller]
fn changed(change: impl FnOnce(&mut FakeCluster), steps: &[&str]) {
    let mut fake = FakeCluster::settled(json!({}));
    change(&mut fake);
    assert_eq!(fake.steps(), steps);
}

#[test]
fn a_new_cluster_gets_certificates_before_what_mounts_them() {
    let mut fake = FakeCluster::new(json!({}));
    let first = [
        "create the certificate authority dev-ca",
        "apply ServiceAccount dev",
        "apply Service dev-headless",
        "apply Service dev-client",
        "apply Service dev-leader",
    ];
    assert_eq!(fake.pass(), first);
    let mut expected = vec!["apply ConfigMap dev-ca-bundle"];
    expected.extend(LEAVES);
    expected.push("apply StatefulSet dev");
    assert_eq!(fake.pass(), expected);
}

#[test]
fn a_settled_cluster_needs_nothing() {
    let mut fake = FakeCluster::settled(json!({}));
    assert_eq!(fake.steps(), Vec::<String>::new());
    let (objects, status) = (written(&fake), fake.cluster.status.clone());
    fake.wait(3600);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(written(&fake), objects);
    assert_eq!(fake.cluster.status, status, "the status of an idle cluster changed");
}

#[test]
fn a_changed_spec_changes_what_depends_on_it() {
    edited(
        json!({"restartedAt": "2026-11-21T00:00:01Z"}),
        &["apply StatefulSet dev"],
    );
    edited(json!({"version": "0.2.0"}), &["apply StatefulSet dev"]);
    edited(
        json!({"autoCompaction": {"retention": "5m"}}),
        &["apply StatefulSet dev"],
    );
    edited(json!({"replicas": 0}), &["apply StatefulSet dev"]);
    edited(
        json!({"podTemplate": {"spec": {"hostNetwork": true}}}),
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
    edited(json!({"tls": {"serverAltNames": ["a.example"]}}), &LEAVES[..1]);
    edited(json!({"tls": {"validity": "1000h"}}), &LEAVES);
    edited(
        json!({"tls": {"mode": "Disabled"}}),
        &["apply Service dev-headless", "apply StatefulSet dev"],
    );
    edited(
        json!({"storage": {"embedded": {"size": "20Gi"}}}),
        &["resize the volume claim data-dev-0"],
    );
    edited(json!({"storage": {"embedded": {"size": "10240Mi"}}}), &[]);
}

#[test]
fn other_attributes_class_reaches_claims_that_exist() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"storage": {"embedded": {"volumeAttributesClassName": "gold"}}}));
    assert_eq!(fake.pass(), ["resize the volume claim data-dev-0"]);
    let spec = serde_json::to_value(&fake.seen.claims[0].spec).unwrap();
    assert_eq!(spec["volumeAttributesClassName"], "gold");
    assert_eq!(spec["resources"]["requests"]["storage"], "10Gi");
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn inherited_metadata_reaches_every_object() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"inheritedMetadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}));
    fake.settle();
    for (name, object) in written(&fake) {
        assert_eq!(object["metadata"]["labels"]["team"], "a", "{name}");
        // Annotations of an account can give it a role in a cloud.
        let note = if name == "ServiceAccount dev" {
            Value::Null
        } else {
            json!("b")
        };
        assert_eq!(object["metadata"]["annotations"]["note"], note, "{name}");
    }
}

#[test]
fn what_others_changed_is_put_right_and_what_they_added_is_left() {
    let service = |fake: &mut FakeCluster, change: fn(&mut Value)| {
        change(&mut fake.object(ObjectKind::Service, "dev-client").data)
    };
    changed(
        |w| service(w, |data| data["spec"]["ports"][0]["port"] = json!(1)),
        &["apply Service dev-client"],
    );
    changed(
        |w| service(w, |data| data["spec"]["clusterIP"] = json!("10.0.0.1")),
        &[],
    );
    changed(
        |w| w.object(ObjectKind::StatefulSet, "dev").data["spec"]["replicas"] = json!(3),
        &["apply StatefulSet dev"],
    );
    changed(
        |w| w.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"] = json!("x"),
        &["apply ConfigMap dev-ca-bundle"],
    );
    changed(
        |w| w.object(ObjectKind::Secret, "dev-server-tls").data["data"]["ca.crt"] = json!("eA=="),
        &["apply Secret dev-server-tls"],
    );
    changed(
        |w| w.object(ObjectKind::Service, "dev-client").labels_mut().clear(),
        &["apply Service dev-client"],
    );
    changed(
        |w| w.object(ObjectKind::Service, "dev-client").annotations_mut().clear(),
        &["apply Service dev-client"],
    );
    changed(
        |w| {
            drop(
                w.seen
                    .objects
                    .remove(&ObjectKey::new(ObjectKind::Service, "dev-client")),
            )
        },
        &["apply Service dev-client"],
    );
    // The object is being deleted; it must be gone before it can be created again.
    changed(
        |w| {
            let service = w.object(ObjectKind::Service, "dev-client");
            service.data["spec"]["ports"][0]["port"] = json!(1);
            service.metadata.deletion_timestamp = Some(Time(crate::testing::BEGIN.parse().unwrap()));
        },
        &[],
    );
}

#[test]
fn what_a_stateful_set_cannot_change_is_kept_and_named() {
    let mut fake = FakeCluster::settled(json!({"storage": {"embedded": {"storageClassName": "fast"}}}));
    let claims = fake.object(ObjectKind::StatefulSet, "dev").data["spec"]["volumeClaimTemplates"].clone();
    // The API server would refuse this edit; the operator must cope with it anyway.
    fake.edit(json!({"storage": {"embedded": {"storageClassName": "slow"}}, "restartedAt": "2026-11-21T00:00:01Z"}));
    let plan = fake.plan();
    assert_eq!(plan.fixed, ["volumeClaimTemplates"]);
    let set = plan.steps.iter().find_map(|step| match step {
        PlanStep::Apply { object, .. } => Some(&object.body["spec"]),
        _ => None,
    });
    let set = set.unwrap();
    assert_eq!(set["volumeClaimTemplates"], claims);
    assert_eq!(
        set["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"],
        "2026-11-21T00:00:01Z"
    );
}

#[test]
fn volumes_grow_in_their_claims_and_never_shrink() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
    assert_eq!(fake.plan().claims.growing, ["data-dev-0"]);
    fake.pass();
    assert_eq!(fake.steps(), Vec::<String>::new());
    assert_eq!(
        fake.plan().claims.growing,
        ["data-dev-0"],
        "asked for, but not there yet"
    );
    fake.kubelet();
    assert_eq!(fake.plan().claims.growing, Vec::<String>::new());
    fake.edit(json!({"storage": {"embedded": {"size": "5Gi"}}}));
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn growth_that_did_not_happen_is_taken_back_down_to_what_the_volume_has() {
    let size = |fake: &FakeCluster| {
        let claim = serde_json::to_value(&fake.seen.claims[0]).unwrap();
        claim["spec"]["resources"]["requests"]["storage"].clone()
    };
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"storage": {"embedded": {"size": "30Gi"}}}));
    fake.pass();
    fake.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
    assert_eq!(fake.pass(), ["resize the volume claim data-dev-0"]);
    assert_eq!(size(&fake), "20Gi");
    // The API server refuses a request that is not above the capacity.
    fake.edit(json!({"storage": {"embedded": {"size": "10Gi"}}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("StorageReady"), "True/Bound");
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
}

#[test]
fn volume_that_cannot_grow_is_named_and_holds_no_pod_back() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/ResizingStorage");
    let mut claim = serde_json::to_value(&fake.seen.claims[0]).unwrap();
    claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInfeasible"});
    claim["status"]["conditions"] = json!([
        {"type": "ControllerResizeError", "status": "True", "message": "no room"},
    ]);
    fake.seen.claims[0] = serde_json::from_value(claim).unwrap();
    fake.pass();
    assert_eq!(fake.condition("StorageReady"), "False/ResizeFailed");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
}

#[test]
fn a_pod_monitor_is_made_only_where_the_kind_exists() {
    let mut fake = FakeCluster::settled(json!({"monitoring": {"podMonitor": {"enabled": true}}}));
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.seen.pod_monitors = true;
    assert_eq!(fake.steps(), ["apply PodMonitor dev"]);
    fake.settle();
    fake.edit(json!({"monitoring": {"podMonitor": {"enabled": false}}}));
    assert_eq!(fake.steps(), ["delete PodMonitor dev"]);
}

#[test]
fn the_role_label_follows_what_the_brains_say() {
    let check = |answer: Option<Result<MemberAnswer, String>>, label: Option<&str>, expected: Option<Option<&str>>| {
        let mut fake = FakeCluster::settled(json!({}));
        fake.seen.probes.clear();
        fake.seen
            .probes
            .extend(answer.map(|answer| ("dev-0".to_owned(), answer)));
        let labels = fake.pod("dev-0").labels_mut();
        labels.remove(ROLE);
        labels.extend(label.map(|label| (ROLE.to_owned(), label.to_owned())));
        let step = fake.plan().steps.into_iter().find_map(|step| match step {
            PlanStep::Label { role, .. } => Some(role),
            _ => None,
        });
        assert_eq!(step, expected, "{label:?}");
    };
    check(Some(Ok(answer(1, 1))), None, Some(Some("leader")));
    check(Some(Ok(answer(1, 1))), Some("leader"), None);
    check(Some(Ok(answer(1, 2))), Some("leader"), Some(Some("follower")));
    check(Some(Ok(answer(1, 0))), Some("leader"), Some(None));
    // A brain that cannot be reached may still lead.
    check(Some(Err("silent".to_owned())), Some("leader"), None);
    check(None, Some("leader"), None);
    check(None, None, None);
}

#[test]
fn of_two_that_claim_the_lead_the_newer_one_has_it() {
    let mut fake = members(3, [false; 3]);
    fake.lead("dev-2");
    let Some(Ok(old)) = fake.seen.probes.get_mut("dev-0") else {
        panic!("it answers")
    };
    (old.role, old.epoch, old.leader) = (BrainRole::Leader, 1, None);
    let lead = fake.plan().lead;
    assert_eq!(lead.pod(), Some("dev-2"));
    // The leader itself does not answer, but its followers name it.
    fake.seen.probes.insert("dev-2".to_owned(), Err("silent".to_owned()));
    assert_eq!(fake.plan().lead.pod(), Some("dev-2"));
    // Followers do not answer either: only the old claim is left, and it may be true.
    fake.seen.probes.insert("dev-1".to_owned(), Err("silent".to_owned()));
    assert_eq!(fake.plan().lead.pod(), Some("dev-0"));
    fake.seen.probes.clear();
    assert_eq!(fake.plan().lead, LeaderState::Unknown);
}

#[test]
fn a_pause_holds_back_every_step_and_shows_what_is_held_back() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"paused": true, "restartedAt": "2026-11-21T00:00:01Z", "tls": {"serverAltNames": ["a.example"]}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Ready"), "False/Paused");
    fake.edit(json!({"paused": false}));
    assert_eq!(fake.pass(), [LEAVES[0], "apply StatefulSet dev"]);
}

#[test]
fn quota_beyond_the_volume_is_said() {
    let fake = FakeCluster::settled(json!({"quota": "100Gi"}));
    let conditions = fake.cluster.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let progressing = conditions
        .iter()
        .find(|condition| condition.type_ == "Progressing")
        .unwrap();
    let expected = "quota 100Gi is larger than storage.embedded.size 10Gi";
    assert!(progressing.message.contains(expected), "{}", progressing.message);
}
