use crds::cluster::status::RolloutType;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::facts::{Blocker, CertificateState, VolumeState};
use super::*;
use crate::member::{BrainRefusal, MemberAnswer};
use crate::objects::{ObjectKey, ObjectKind};
use crate::testing::{FakeCluster, answer, cluster};

mod seen;
mod updates;

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
    let status = first(&cluster(json!({})), crate::testing::BEGIN.parse().unwrap());
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
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"flags": {"data-dir": "x"}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    for (type_, expected) in [
        ("Ready", "False/InvalidSpec"),
        ("Stalled", "True/InvalidSpec"),
        ("Degraded", "True/InvalidSpec"),
        ("Progressing", "False/InvalidSpec"),
        ("Available", "True/LeaderElected"),
        ("StorageReady", "True/Bound"),
    ] {
        assert_eq!(fake.condition(type_), expected, "{type_}");
    }
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!((status.observed_generation, status.leader.is_some()), (Some(2), true));
    // The next valid spec removes it again.
    fake.cluster.spec.flags.clear();
    fake.edit(json!({}));
    fake.pass();
    assert_eq!(
        (fake.condition("Stalled"), fake.condition("Ready")),
        ("absent".to_owned(), "True/AsExpected".to_owned())
    );
}

#[test]
fn new_cluster_whose_spec_is_refused_has_nothing_and_pins_nothing() {
    let tikv = json!({"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"], "keyPrefix": "wrong"}});
    let mut fake = FakeCluster::new(json!({"storage": tikv, "flags": {"data-dir": "x"}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    for type_ in ["Available", "CertificatesReady", "StorageReady"] {
        assert_eq!(fake.condition(type_), "Unknown/InvalidSpec", "{type_}");
    }
    assert_eq!(fake.condition("Stalled"), "True/InvalidSpec");
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!((status.storage, status.image, status.connection), (None, None, None));
    fake.cluster.spec.flags.clear();
    fake.edit(json!({"storage": {"tikv": {"keyPrefix": "right"}}}));
    fake.settle();
    let storage = fake.cluster.status.clone().unwrap().storage.unwrap();
    assert_eq!(storage.key_prefix.as_deref(), Some("right"));
}

#[test]
fn another_key_prefix_leaves_the_pinned_one_in_the_status() {
    let tikv = json!({"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}});
    let mut fake = FakeCluster::settled(json!({"storage": tikv, "replicas": 3}));
    fake.edit(json!({"replicas": 5, "storage": {"tikv": {"keyPrefix": "other"}}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Stalled"), "True/KeyPrefixChanged");
    assert_eq!(fake.condition("StorageReady"), "True/Reachable");
    let status = fake.cluster.status.clone().unwrap();
    assert_eq!(status.storage.unwrap().key_prefix.as_deref(), Some("brains/dev"));
    assert_eq!((status.ready_replicas, status.members.unwrap().len()), (Some(3), 3));
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
    let updates = [
        ConditionUpdate::new("Ready", ConditionStatus::True, "New", "new"),
        ConditionUpdate::new("Degraded", ConditionStatus::True, "New", "new"),
    ];
    let now: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
    let merged = merge(&previous, &updates, Some(2), now);
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
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    let before = fake.cluster.status.clone().unwrap();
    fake.cluster.status = Some(failing(&fake.cluster, "no answer", fake.seen.now));
    let after = fake.cluster.status.clone().unwrap();
    assert_eq!(fake.condition("Degraded"), "True/ReconcileError");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(
        after.observed_generation, before.observed_generation,
        "the new spec was not looked at"
    );
    assert_eq!(after.conditions.unwrap().len(), before.conditions.unwrap().len());
}

#[test]
fn a_cluster_is_created_serves_rolls_and_is_suspended() {
    let mut fake = FakeCluster::new(json!({}));
    let mut seen = Vec::new();
    let mut look = |fake: &mut FakeCluster| {
        fake.pass();
        seen.push(format!("{} {}", fake.condition("Ready"), fake.condition("Progressing")));
    };
    look(&mut fake);
    look(&mut fake);
    fake.kubelet();
    look(&mut fake);
    fake.edit(json!({"version": "0.2.0"}));
    look(&mut fake);
    assert_eq!(
        fake.cluster.status.as_ref().unwrap().version.as_deref(),
        Some("0.1.0"),
        "not rolled out yet"
    );
    look(&mut fake);
    fake.kubelet();
    look(&mut fake);
    assert_eq!(fake.cluster.status.as_ref().unwrap().version.as_deref(), Some("0.2.0"));
    fake.edit(json!({"replicas": 0}));
    look(&mut fake);
    look(&mut fake);
    fake.edit(json!({"replicas": 1}));
    look(&mut fake);
    look(&mut fake);
    fake.kubelet();
    look(&mut fake);
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
    let mut fake = FakeCluster::settled(json!({"updateStrategy": {"progressDeadlineSeconds": 100}}));
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    fake.pass();
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    fake.wait(100);
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    fake.wait(1);
    fake.pass();
    fake.wait(500);
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "False/DeadlineExceeded");
    assert_eq!(fake.condition("Stalled"), "True/DeadlineExceeded");
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:02Z"}));
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    assert_eq!(fake.condition("Stalled"), "absent");
    fake.settle();
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn a_killed_member_is_no_change_in_flight() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.set_ready("dev-0", false);
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
    assert_eq!(fake.condition("Available"), "False/NoLeader");
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    assert!(fake.cluster.status.as_ref().unwrap().leader.is_none());
    fake.wait(31);
    fake.pass();
    assert_eq!(fake.condition("Degraded"), "True/MembersUnhealthy");
    fake.kubelet();
    fake.pass();
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn the_leader_keeps_its_time_until_it_or_its_epoch_changes() {
    let mut fake = FakeCluster::settled(json!({}));
    let since = |fake: &FakeCluster| {
        fake.cluster
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
    let begin = since(&fake);
    fake.wait(60);
    fake.pass();
    assert_eq!(since(&fake), begin);
    fake.seen.probes.insert(
        "dev-0".to_owned(),
        Ok(MemberAnswer {
            epoch: 3,
            ..answer(1, 1)
        }),
    );
    fake.pass();
    assert_eq!(since(&fake).0, fake.seen.now);
    assert_eq!(
        fake.cluster.status.as_ref().unwrap().leader.as_ref().unwrap().epoch,
        Some(3)
    );
}

#[test]
fn the_status_names_members_certificates_and_addresses() {
    let fake = FakeCluster::settled(json!({}));
    let status = fake.cluster.status.clone().unwrap();
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
fn blockers_name_what_is_in_the_way() {
    let mut fake = FakeCluster::settled(json!({}));
    let service = fake.object(ObjectKind::Service, "dev-client");
    service.metadata.owner_references = None;
    service.metadata.labels = None;
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/OwnershipConflict");
    let status = fake.cluster.status.as_ref().unwrap();
    let stalled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Stalled")
        .unwrap();
    assert!(stalled.message.contains("Service dev-client"), "{}", stalled.message);
    assert_eq!(
        fake.condition("Available"),
        "True/LeaderElected",
        "the members still serve"
    );

    let mut fake = FakeCluster::settled(json!({}));
    fake.seen
        .objects
        .get_mut(&ObjectKey::new(ObjectKind::Secret, "dev-ca"))
        .unwrap()
        .data = json!({});
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/AuthorityInvalid");
    assert_eq!(fake.condition("CertificatesReady"), "False/AuthorityInvalid");
}

#[test]
fn a_member_says_itself_what_it_runs_and_what_it_does() {
    let mut fake = FakeCluster::settled(json!({}));
    let said = MemberAnswer {
        version: "0.9.9".to_owned(),
        ..answer(1, 0)
    };
    fake.seen.probes.insert("dev-0".to_owned(), Ok(said));
    fake.pass();
    let member = fake.cluster.status.unwrap().members.unwrap().remove(0);
    assert_eq!(
        (member.version.as_deref(), member.role),
        (Some("0.9.9"), MemberRole::Unknown)
    );
}

#[test]
fn conditions_of_others_are_no_difference() {
    let fake = FakeCluster::settled(json!({}));
    let status = fake.cluster.status.unwrap();
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

/// One member on TiKV that competes for a Lease, which `holder` holds.
fn by_lease(holder: &str) -> FakeCluster {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    let storage = json!({"type": "TiKV", "embedded": null, "tikv": tikv});
    let mut fake = FakeCluster::settled(json!({"storage": storage, "leaderElection": {"backend": "Lease"}}));
    fake.object(ObjectKind::Lease, "dev-leader").data["spec"] = json!({"holderIdentity": holder});
    fake.pass();
    fake
}

fn message(fake: &FakeCluster, type_: &str) -> String {
    let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
    let mut found = conditions.into_iter().filter(|condition| condition.type_ == type_);
    found.next().unwrap().message
}

#[test]
fn other_holder_of_the_lease_is_a_message_and_moves_no_label() {
    for (holder, expected) in [
        ("dev-0_00000000000000aa", "dev-0 leads"),
        (
            "dev-1_00000000000000bb",
            "dev-0 leads; Lease dev-leader is held by dev-1",
        ),
        ("", "dev-0 leads; Lease dev-leader has no holder"),
    ] {
        let fake = by_lease(holder);
        assert_eq!(message(&fake, "Available"), expected);
        assert_eq!(fake.condition("Available"), "True/LeaderElected");
        assert_eq!(fake.steps(), Vec::<String>::new());
        let leader = fake.cluster.status.clone().unwrap().leader.unwrap();
        assert_eq!(leader.member, "dev-0");
    }
}

#[test]
fn refusal_of_a_lease_that_the_members_store_stalls() {
    let mut fake = by_lease("");
    let error = r#"{"code":"LeaseStoredHere","message":"the lease brains/dev-leader is stored in this store, at /registry/leases/brains/dev-leader: its API server waits"}"#;
    let ended = json!({"exitCode": 1, "message": error});
    let container = json!({"name": "brain", "image": "x", "imageID": "", "ready": false, "restartCount": 1, "state": {"terminated": ended}});
    let mut pod = serde_json::to_value(fake.pod("dev-0")).unwrap();
    pod["status"]["containerStatuses"] = json!([container]);
    *fake.pod("dev-0") = serde_json::from_value(pod).unwrap();
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "absent", "it runs again");
    let mut status = serde_json::to_value(fake.pod("dev-0")).unwrap();
    status["status"]["conditions"] = json!([]);
    *fake.pod("dev-0") = serde_json::from_value(status).unwrap();
    fake.seen.probes.clear();
    fake.pass();
    for type_ in ["Stalled", "Ready", "Degraded"] {
        assert!(fake.condition(type_).ends_with("/LeaseStoredHere"), "{type_}");
    }
    assert!(message(&fake, "Stalled").starts_with("the lease brains/dev-leader is stored in this store, at /registry"));
    // With another lock, this check does not apply.
    fake.edit(json!({"leaderElection": {"backend": "Storage"}}));
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "absent");
}

#[test]
fn storage_on_tikv_is_what_the_members_and_the_secrets_say() {
    let tls = json!({"caSecretRef": {"name": "tikv-ca", "key": "ca.pem"}, "clientSecretRef": {"name": "tikv-client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "tls": tls});
    let mut fake =
        FakeCluster::settled(json!({"replicas": 2, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}));
    let says = |fake: &mut FakeCluster, expected: &str| {
        fake.pass();
        assert_eq!(fake.condition("StorageReady"), expected);
    };
    says(&mut fake, "True/Reachable");
    for answer in fake.seen.probes.values_mut().flatten() {
        answer.storage.reachable = false;
    }
    says(&mut fake, "False/Unreachable");
    for answer in fake.seen.probes.values_mut() {
        *answer = Err("it answered 503: PD does not answer".to_owned());
    }
    says(&mut fake, "False/Unreachable");
    for answer in fake.seen.probes.values_mut() {
        *answer = Err("no connection".to_owned());
    }
    says(&mut fake, "Unknown/Creating");
    let refusal = |code: &str| BrainRefusal {
        code: code.to_owned(),
        message: format!("it says {code}"),
    };
    for (code, expected) in [
        ("StorageUnreachable", "False/Unreachable"),
        ("PrefixTaken", "False/PrefixTaken"),
        ("PrefixWiping", "False/PrefixWiping"),
        ("ClusterIDMismatch", "False/ClusterIDChanged"),
        ("FormatTooNew", "False/FormatRefused"),
        ("Corrupt", "False/Corrupt"),
        ("NoLeader", "Unknown/Creating"),
    ] {
        fake.seen.refusals.insert("dev-0".to_owned(), refusal(code));
        says(&mut fake, expected);
        let stalled = fake.condition("Stalled");
        assert_eq!(stalled != "absent", code == "ClusterIDMismatch", "{code}: {stalled}");
    }
    // A brain that ended leaves the same text; an older one left only lines of its log.
    for (message, expected, told) in [
        (
            r#"{"code":"PrefixTaken","message":"of \"other\""}"#,
            "False/PrefixTaken",
            "of \"other\"",
        ),
        (
            "{}\nkubebrain: the key prefix belongs to x\n",
            "False/Unreachable",
            "the key prefix belongs to x",
        ),
    ] {
        let ended = json!({"exitCode": 1, "message": message});
        let container = json!({
            "name": "brain", "image": "x", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
        });
        let mut pod = serde_json::to_value(fake.pod("dev-0")).unwrap();
        pod["status"]["containerStatuses"] = json!([container]);
        *fake.pod("dev-0") = serde_json::from_value(pod).unwrap();
        fake.seen
            .refusals
            .insert("dev-0".to_owned(), refusal("StorageUnreachable"));
        says(&mut fake, "False/Unreachable");
        for code in [Some("Starting"), None] {
            fake.seen.refusals.clear();
            let begun = code.map(|code| ("dev-0".to_owned(), refusal(code)));
            fake.seen.refusals.extend(begun);
            says(&mut fake, expected);
        }
        let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
        let storage = conditions.iter().find(|condition| condition.type_ == "StorageReady");
        assert_eq!(storage.unwrap().message, told);
    }
    fake.seen.given_secrets.insert("tikv-ca".to_owned(), None);
    says(&mut fake, "False/SecretMissing");
    let secret = |key: &str| -> Option<std::sync::Arc<k8s_openapi::api::core::v1::Secret>> {
        Some(std::sync::Arc::new(
            serde_json::from_value(json!({"data": {key: "eA=="}})).unwrap(),
        ))
    };
    fake.seen.given_secrets.insert("tikv-ca".to_owned(), secret("ca.crt"));
    says(&mut fake, "False/SecretMissing");
    fake.seen.given_secrets.insert("tikv-ca".to_owned(), secret("ca.pem"));
    fake.seen
        .given_secrets
        .insert("tikv-client".to_owned(), secret("tls.crt"));
    says(&mut fake, "False/SecretMissing");
}
