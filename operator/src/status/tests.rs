use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::facts::{Obstacle, Trust, Volumes};
use super::*;
use crate::objects::{Key, Kind};
use crate::probe::Answer;
use crate::world::{World, answer, cluster};

mod judgement;

const OK: [&str; 7] = [
    "True/AsExpected",
    "True/LeaderElected",
    "False/Reconciled",
    "False/AsExpected",
    "True/Issued",
    "True/Bound",
    "absent",
];

#[test]
fn the_first_status_knows_nothing_and_says_so() {
    let status = first(&cluster(json!({})), crate::world::BEGIN.parse().unwrap());
    let conditions = status.conditions.unwrap();
    assert_eq!(conditions.len(), 6);
    assert!(
        conditions
            .iter()
            .all(|condition| condition.status == "Unknown" && !condition.reason.is_empty())
    );
    assert_eq!(
        (status.observed_generation, status.operator_version.is_some()),
        (Some(1), true)
    );
}

#[test]
fn a_refused_spec_stalls_and_keeps_what_was_known_of_the_members() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"flags": {"data-dir": "x"}}));
    let refusal = crate::spec::read(&world.cluster, &crate::world::settings(), None).unwrap_err();
    world.cluster.status = Some(refused(&world.cluster, &refusal, world.seen.now));
    for (type_, expected) in [
        ("Ready", "False/InvalidSpec"),
        ("Stalled", "True/InvalidSpec"),
        ("Degraded", "True/InvalidSpec"),
        ("Progressing", "False/InvalidSpec"),
        ("Available", "True/LeaderElected"),
        ("StorageReady", "True/Bound"),
    ] {
        assert_eq!(world.condition(type_), expected, "{type_}");
    }
    let status = world.cluster.status.clone().unwrap();
    assert_eq!((status.observed_generation, status.leader.is_some()), (Some(2), true));
    // The next good spec takes it away again.
    world.cluster.spec.flags.clear();
    world.edit(json!({}));
    world.pass();
    assert_eq!(
        (world.condition("Stalled"), world.condition("Ready")),
        ("absent".to_owned(), "True/AsExpected".to_owned())
    );
}

fn condition(type_: &str, status: &str, since: &str) -> Condition {
    serde_json::from_value(json!({
        "type": type_, "status": status, "reason": "Old", "message": "old", "lastTransitionTime": since, "observedGeneration": 1,
    }))
    .unwrap()
}

#[test]
fn transition_times_move_only_when_the_status_flips() {
    let old = "2026-11-20T00:00:00Z";
    let previous = [
        condition("Ready", "True", old),
        condition("Degraded", "False", old),
        condition("Stalled", "True", old),
    ];
    let judgements = [
        Judgement::new("Ready", Verdict::True, "New", "new"),
        Judgement::new("Degraded", Verdict::True, "New", "new"),
    ];
    let now: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
    let merged = merge(&previous, &judgements, Some(2), now);
    let shown: Vec<Value> = merged
        .iter()
        .map(|condition| serde_json::to_value(condition).unwrap())
        .collect();
    assert_eq!(shown.len(), 2, "what is not judged any more is gone");
    assert_eq!(
        (&shown[0]["lastTransitionTime"], &shown[0]["reason"]),
        (&json!(old), &json!("New"))
    );
    assert_eq!(shown[1]["lastTransitionTime"], "2026-11-21T00:00:00Z");
    assert_eq!(shown[0]["observedGeneration"], 2);
}

#[test]
fn failures_show_and_leave_the_rest_alone() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    let before = world.cluster.status.clone().unwrap();
    world.cluster.status = Some(failing(&world.cluster, "no answer", world.seen.now));
    let after = world.cluster.status.clone().unwrap();
    assert_eq!(world.condition("Degraded"), "True/ReconcileError");
    assert_eq!(world.condition("Ready"), "True/AsExpected");
    assert_eq!(
        after.observed_generation, before.observed_generation,
        "the new spec was not looked at"
    );
    assert_eq!(after.conditions.unwrap().len(), before.conditions.unwrap().len());
}

#[test]
fn a_cluster_is_created_serves_rolls_and_is_suspended() {
    let mut world = World::new(json!({}));
    let mut seen = Vec::new();
    let mut look = |world: &mut World| {
        world.pass();
        seen.push(format!(
            "{} {}",
            world.condition("Ready"),
            world.condition("Progressing")
        ));
    };
    look(&mut world);
    look(&mut world);
    world.kubelet();
    look(&mut world);
    world.edit(json!({"version": "0.2.0"}));
    look(&mut world);
    assert_eq!(
        world.cluster.status.as_ref().unwrap().version.as_deref(),
        Some("0.1.0"),
        "not rolled out yet"
    );
    look(&mut world);
    world.kubelet();
    look(&mut world);
    assert_eq!(world.cluster.status.as_ref().unwrap().version.as_deref(), Some("0.2.0"));
    world.edit(json!({"replicas": 0}));
    look(&mut world);
    look(&mut world);
    world.edit(json!({"replicas": 1}));
    look(&mut world);
    look(&mut world);
    world.kubelet();
    look(&mut world);
    let expected = [
        "False/Creating True/Creating",
        "False/Creating True/Creating",
        "True/AsExpected False/Reconciled",
        "False/RollingUpdate True/RollingUpdate",
        "False/RollingUpdate True/RollingUpdate",
        "True/AsExpected False/Reconciled",
        "False/Suspended True/Scaling",
        "False/Suspended False/Reconciled",
        "False/Scaling True/Scaling",
        "False/Scaling True/Scaling",
        "True/AsExpected False/Reconciled",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_change_that_takes_too_long_is_told_until_the_spec_changes() {
    let mut world = World::settled(json!({"updateStrategy": {"progressDeadlineSeconds": 100}}));
    world.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    world.pass();
    world.pass();
    assert_eq!(world.condition("Progressing"), "True/RollingUpdate");
    world.wait(100);
    world.pass();
    assert_eq!(world.condition("Progressing"), "True/RollingUpdate");
    world.wait(1);
    world.pass();
    world.wait(500);
    world.pass();
    assert_eq!(world.condition("Progressing"), "False/DeadlineExceeded");
    assert_eq!(world.condition("Stalled"), "True/DeadlineExceeded");
    world.edit(json!({"restartedAt": "2026-11-21T00:00:02Z"}));
    world.pass();
    assert_eq!(world.condition("Progressing"), "True/RollingUpdate");
    assert_eq!(world.condition("Stalled"), "absent");
    world.settle();
    assert_eq!(world.condition("Ready"), "True/AsExpected");
}

#[test]
fn a_killed_member_is_no_change_in_flight() {
    let mut world = World::settled(json!({}));
    world.set_ready("dev-0", false);
    world.pass();
    assert_eq!(world.condition("Progressing"), "False/Reconciled");
    assert_eq!(world.condition("Available"), "False/NoLeader");
    assert_eq!(world.condition("Degraded"), "False/AsExpected");
    assert!(world.cluster.status.as_ref().unwrap().leader.is_none());
    world.wait(31);
    world.pass();
    assert_eq!(world.condition("Degraded"), "True/MembersUnhealthy");
    world.kubelet();
    world.pass();
    assert_eq!(world.condition("Degraded"), "False/AsExpected");
    assert_eq!(world.condition("Ready"), "True/AsExpected");
}

#[test]
fn the_leader_keeps_its_time_until_it_or_its_epoch_changes() {
    let mut world = World::settled(json!({}));
    let since = |world: &World| {
        world
            .cluster
            .status
            .as_ref()
            .unwrap()
            .leader
            .as_ref()
            .unwrap()
            .since
            .clone()
            .unwrap()
    };
    let begin = since(&world);
    world.wait(60);
    world.pass();
    assert_eq!(since(&world), begin);
    world.seen.probes.insert(
        "dev-0".to_owned(),
        Ok(Answer {
            epoch: 3,
            ..answer(1, 1)
        }),
    );
    world.pass();
    assert_eq!(since(&world).0, world.seen.now);
    assert_eq!(
        world.cluster.status.as_ref().unwrap().leader.as_ref().unwrap().epoch,
        Some(3)
    );
}

#[test]
fn the_status_names_members_certificates_and_addresses() {
    let world = World::settled(json!({}));
    let status = world.cluster.status.clone().unwrap();
    let member = &status.members.as_ref().unwrap()[0];
    assert_eq!(
        (member.name.as_str(), member.role, member.ready),
        ("dev-0", MemberRole::Leader, true)
    );
    assert_eq!(
        (member.member_id.as_deref(), member.version.as_deref()),
        (Some("1"), Some("0.1.0"))
    );
    let endpoints = status.connection.unwrap().endpoints.unwrap();
    assert_eq!(endpoints.client.as_deref(), Some("https://dev-client.brains.svc:2379"));
    assert_eq!(endpoints.leader.as_deref(), Some("https://dev-leader.brains.svc:2379"));
    assert_eq!(
        endpoints.members.unwrap(),
        ["https://dev-0.dev-headless.brains.svc:2379"]
    );
    assert_eq!(status.image.as_deref(), Some("kubebrain.io/kubebrain:0.1.0"));
    assert_eq!(
        status.selector.as_deref(),
        Some("app.kubernetes.io/component=brain,kubebrain.io/cluster=dev")
    );
    assert_eq!(
        (status.replicas, status.ready_replicas, status.updated_replicas),
        (Some(1), Some(1), Some(1))
    );
    assert_eq!(status.current_revision, status.update_revision);
    let certificates: Vec<String> = status
        .certificates
        .unwrap()
        .into_iter()
        .map(|each| each.secret_name)
        .collect();
    assert_eq!(
        certificates,
        [
            "dev-server-tls",
            "dev-peer-tls",
            "dev-apiserver-client-tls",
            "dev-operator-client-tls"
        ]
    );
}

#[test]
fn obstacles_name_what_is_in_the_way() {
    let mut world = World::settled(json!({}));
    world.object(Kind::Service, "dev-client").metadata.owner_references = None;
    world.pass();
    assert_eq!(world.condition("Stalled"), "True/OwnershipConflict");
    let status = world.cluster.status.as_ref().unwrap();
    let stalled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Stalled")
        .unwrap();
    assert!(stalled.message.contains("Service dev-client"), "{}", stalled.message);
    assert_eq!(
        world.condition("Available"),
        "True/LeaderElected",
        "the members still serve"
    );

    let mut world = World::settled(json!({}));
    world
        .seen
        .objects
        .get_mut(&Key::new(Kind::Secret, "dev-ca"))
        .unwrap()
        .data = json!({});
    world.pass();
    assert_eq!(world.condition("Stalled"), "True/AuthorityInvalid");
    assert_eq!(world.condition("CertificatesReady"), "False/AuthorityInvalid");
}

#[test]
fn a_member_says_itself_what_it_runs_and_what_it_does() {
    let mut world = World::settled(json!({}));
    let said = Answer {
        version: "0.9.9".to_owned(),
        ..answer(1, 0)
    };
    world.seen.probes.insert("dev-0".to_owned(), Ok(said));
    world.pass();
    let member = world.cluster.status.unwrap().members.unwrap().remove(0);
    assert_eq!(
        (member.version.as_deref(), member.role),
        (Some("0.9.9"), MemberRole::Unknown)
    );
}

#[test]
fn conditions_of_others_are_no_difference() {
    let world = World::settled(json!({}));
    let status = world.cluster.status.unwrap();
    let mut published = status.clone();
    let since = "2026-11-20T00:00:00Z";
    published
        .conditions
        .as_mut()
        .unwrap()
        .push(condition("Backed", "True", since));
    assert!(is_published(Some(&published), &status));
    published
        .conditions
        .as_mut()
        .unwrap()
        .push(condition("Stalled", "True", since));
    assert!(!is_published(Some(&published), &status) && !is_published(None, &status));
}

#[test]
fn storage_on_tikv_is_what_the_members_and_the_secrets_say() {
    let tls = json!({"caSecretRef": {"name": "tikv-ca", "key": "ca.pem"}, "clientSecretRef": {"name": "tikv-client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "tls": tls});
    let mut world = World::settled(json!({"replicas": 2, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}));
    let says = |world: &mut World, expected: &str| {
        world.pass();
        assert_eq!(world.condition("StorageReady"), expected);
    };
    says(&mut world, "True/Reachable");
    for answer in world.seen.probes.values_mut().flatten() {
        answer.storage.reachable = false;
    }
    says(&mut world, "False/Unreachable");
    for answer in world.seen.probes.values_mut() {
        *answer = Err("it answered 503: PD does not answer".to_owned());
    }
    says(&mut world, "False/Unreachable");
    for answer in world.seen.probes.values_mut() {
        *answer = Err("no connection".to_owned());
    }
    says(&mut world, "Unknown/Creating");
    // A brain that ended says why in its last lines.
    let message =
        r#"{"level":"fatal","msg":"the key prefix belongs to the cluster with the token \\"other\\": choose another"}"#;
    let ended = json!({"exitCode": 1, "message": message});
    let container = json!({"name": "brain", "image": "x", "imageID": "", "ready": false, "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}});
    let mut pod = serde_json::to_value(world.pod("dev-0")).unwrap();
    pod["status"]["containerStatuses"] = json!([container]);
    *world.pod("dev-0") = serde_json::from_value(pod).unwrap();
    says(&mut world, "False/PrefixTaken");
    let conditions = world.cluster.status.clone().unwrap().conditions.unwrap();
    let told = conditions
        .into_iter()
        .find(|condition| condition.type_ == "StorageReady")
        .unwrap();
    assert_eq!(
        told.message,
        "the key prefix belongs to the cluster with the token 'other': choose another"
    );
    world.seen.given_secrets.insert("tikv-ca".to_owned(), None);
    says(&mut world, "False/SecretMissing");
    let secret = |key: &str| -> Option<std::sync::Arc<k8s_openapi::api::core::v1::Secret>> {
        Some(std::sync::Arc::new(
            serde_json::from_value(json!({"data": {key: "eA=="}})).unwrap(),
        ))
    };
    world.seen.given_secrets.insert("tikv-ca".to_owned(), secret("ca.crt"));
    says(&mut world, "False/SecretMissing");
    world.seen.given_secrets.insert("tikv-ca".to_owned(), secret("ca.pem"));
    world
        .seen
        .given_secrets
        .insert("tikv-client".to_owned(), secret("tls.crt"));
    says(&mut world, "False/SecretMissing");
}
