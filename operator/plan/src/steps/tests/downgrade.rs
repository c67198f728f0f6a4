//! Versions older than the running one.

use super::*;
use crate::names::ALLOW_DOWNGRADE;

/// Three members that run this version.
fn running(version: &str) -> FakeCluster {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    let storage = json!({"type": "TiKV", "embedded": null, "tikv": tikv});
    let mut fake = FakeCluster::settled(json!({"replicas": 3, "version": version, "storage": storage}));
    fake.wait(3600);
    fake
}

fn message(fake: &FakeCluster, type_: &str) -> String {
    let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
    let found = conditions.into_iter().find(|condition| condition.type_ == type_);
    found.unwrap().message
}

#[test]
fn older_minor_or_major_version_is_refused() {
    for (runs, wanted, refused) in [
        ("1.2.0", "1.1.9", true),
        ("1.2.0", "0.9.0", true),
        ("1.10.0", "1.9.0", true),
        ("1.2.1", "1.2.0", false),
        ("1.2.0", "1.3.0-rc.1", false),
        ("1.2.0", "2.0.0", false),
    ] {
        let mut fake = running(runs);
        fake.edit(json!({"version": wanted}));
        let steps = fake.pass();
        assert_eq!(steps.is_empty(), refused, "{runs} to {wanted}: {steps:?}");
        let stalled = fake.condition("Stalled");
        assert_eq!(
            stalled == "True/DowngradeRefused",
            refused,
            "{runs} to {wanted}: {stalled}"
        );
    }
}

#[test]
fn refused_downgrade_names_the_format_and_what_to_do() {
    let mut fake = running("1.2.0");
    fake.edit(json!({"version": "1.1.0"}));
    fake.pass();
    let why = message(&fake, "Stalled");
    for part in [
        "writes format 1",
        "set spec.version to 1.2.0",
        "kubebrain.io/allow-downgrade=1.1.0",
    ] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(
        fake.condition("Available"),
        "True/LeaderElected",
        "the members still serve"
    );
    fake.edit(json!({"version": "1.2.0"}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Stalled"), "absent");
}

#[test]
fn rollback_of_an_unfinished_upgrade_is_no_downgrade() {
    let mut fake = running("1.1.0");
    fake.edit(json!({"version": "1.2.0"}));
    fake.pass();
    fake.pass();
    fake.edit(json!({"version": "1.1.0"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
}

#[test]
fn allowed_downgrade_ends_at_the_member_that_refuses_the_format() {
    let mut fake = running("1.2.0");
    fake.edit(json!({"version": "1.1.0"}));
    let annotations = fake.cluster.annotations_mut();
    annotations.insert(ALLOW_DOWNGRADE.to_owned(), "1.0.0".to_owned());
    assert_eq!(fake.pass(), Vec::<String>::new(), "another version is allowed");
    let annotations = fake.cluster.annotations_mut();
    annotations.insert(ALLOW_DOWNGRADE.to_owned(), "1.1.0".to_owned());
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    let replaced = fake.pass();
    assert_eq!(replaced, ["delete pod dev-2"]);
    let said = "{\"msg\":\"starting\"}\nkubebrain: the data is of format 3, this version reads formats up to 2: start a newer version\n";
    let container = json!({
        "name": "brain", "image": "x", "imageID": "", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "message": said}},
    });
    let mut pod = serde_json::to_value(fake.pod("dev-2")).unwrap();
    pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.3", "containerStatuses": [container]});
    *fake.pod("dev-2") = serde_json::from_value(pod).unwrap();
    for _ in 0..3 {
        fake.wait(60);
        assert_eq!(fake.pass(), Vec::<String>::new(), "no other member is touched");
    }
    let why = message(&fake, "Progressing");
    let refusal = "dev-2: CrashLoopBackOff: exit code 1: the data is of format 3, this version reads formats up to 2";
    assert!(why.contains(refusal), "{why}");
}
