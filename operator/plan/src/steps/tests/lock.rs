//! A Lease as leader lock: when it is created, and how long it is kept.

use super::*;

/// Three members on TiKV, the first one leading, by this lock.
fn locked_by(backend: &str) -> FakeCluster {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    FakeCluster::settled(json!({
        "replicas": 3,
        "storage": {"type": "TiKV", "embedded": null, "tikv": tikv},
        "leaderElection": {"backend": backend},
    }))
}

const LOCK: [&str; 3] = ["Role dev-leader", "RoleBinding dev-leader", "Lease dev-leader"];

fn lock(fake: &FakeCluster) -> Vec<String> {
    let all = written(fake).into_keys();
    all.filter(|key| LOCK.contains(&key.as_str())).collect()
}

/// Runs passes until every member has the newest template, and returns their steps.
fn roll(fake: &mut FakeCluster) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..40 {
        let steps = fake.pass();
        fake.kubelet_keeping_the_leader();
        fake.wait(60);
        if steps.is_empty() && fake.plan().rollout.outdated.is_empty() && fake.steps().is_empty() {
            return done;
        }
        done.extend(steps);
    }
    panic!("still steps: {done:?}");
}

#[test]
fn lease_and_the_right_to_it_come_before_the_members_that_need_them() {
    let mut fake = locked_by("Storage");
    assert_eq!(lock(&fake), Vec::<String>::new());
    fake.edit(json!({"leaderElection": {"backend": "Lease"}}));
    let made = [
        "apply Role dev-leader",
        "apply RoleBinding dev-leader",
        "apply Lease dev-leader",
        "apply StatefulSet dev",
    ];
    assert_eq!(fake.steps(), made);
    let done = roll(&mut fake);
    let replaced = done.iter().filter(|step| step.starts_with("delete pod")).count();
    assert_eq!(replaced, 3, "{done:?}");
}

#[test]
fn lease_is_deleted_when_the_last_member_that_competes_for_it_is_gone() {
    let mut fake = locked_by("Lease");
    assert_eq!(lock(&fake).len(), 3);
    fake.edit(json!({"leaderElection": {"backend": "Storage"}}));
    let done = roll(&mut fake);
    let last = done.iter().rposition(|step| step.starts_with("delete pod")).unwrap();
    let mut deleted: Vec<&String> = done.iter().filter(|step| step.ends_with(" dev-leader")).collect();
    assert_eq!(
        deleted,
        done[last + 1..]
            .iter()
            .filter(|step| step.starts_with("delete"))
            .collect::<Vec<_>>()
    );
    deleted.sort();
    let expected = [
        "delete Lease dev-leader",
        "delete Role dev-leader",
        "delete RoleBinding dev-leader",
    ];
    assert_eq!(deleted, expected, "{done:?}");
    assert_eq!(lock(&fake), Vec::<String>::new());
}

#[test]
fn lease_stays_while_a_member_that_competes_for_it_shuts_down() {
    let mut fake = locked_by("Lease");
    let mut leaving = fake.pod("dev-2").clone();
    fake.edit(json!({"leaderElection": {"backend": "Storage"}}));
    leaving.metadata.name = Some("dev-3".to_owned());
    leaving.metadata.deletion_timestamp = Some(Time(fake.seen.now));
    fake.pass();
    for pod in ["dev-0", "dev-1", "dev-2"] {
        fake.seen.pods.retain(|each| each.name_any() != pod);
    }
    fake.controllers();
    fake.kubelet();
    fake.seen.pods.push(leaving);
    let deletes = |fake: &FakeCluster| fake.steps().iter().any(|step| step == "delete Lease dev-leader");
    assert!(!deletes(&fake), "{:?}", fake.steps());
    fake.seen.pods.pop();
    assert!(deletes(&fake), "{:?}", fake.steps());
}

#[test]
fn lease_fields_of_members_are_no_drift() {
    let mut fake = locked_by("Lease");
    let spec =
        json!({"holderIdentity": "dev-0_1", "leaseDurationSeconds": 15, "renewTime": "2026-11-21T00:00:00.000000Z"});
    fake.object(ObjectKind::Lease, "dev-leader").data["spec"] = spec;
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.object(ObjectKind::Lease, "dev-leader").labels_mut().clear();
    assert_eq!(fake.steps(), ["apply Lease dev-leader"]);
    let plan = fake.plan();
    let Some(PlanStep::Apply { object, .. }) = plan.steps.first() else {
        panic!("{:?}", fake.steps());
    };
    assert!(object.body.get("spec").is_none(), "{}", object.body);
}
