//! The status of leadership, of versions and of growing volumes.

use super::*;

/// Three members on TiKV that serve; the first one leads.
fn three() -> FakeCluster {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    FakeCluster::settled(json!({"replicas": 3, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}}))
}

fn silence(fake: &mut FakeCluster, names: &[&str]) {
    for name in names {
        fake.seen.probes.insert((*name).to_owned(), Err("silent".to_owned()));
    }
    fake.pass();
}

fn status(fake: &FakeCluster) -> KubeBrainClusterStatus {
    fake.cluster.status.clone().unwrap()
}

#[test]
fn silent_leader_that_followers_name_leads() {
    let mut fake = three();
    silence(&mut fake, &["dev-0"]);
    assert_eq!(fake.condition("Available"), "True/LeaderElected");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    let leader = status(&fake).leader.unwrap();
    assert_eq!((leader.member.as_str(), leader.epoch), ("dev-0", Some(2)));
    assert_eq!(status(&fake).members.unwrap()[0].role, MemberRole::Leader);
}

#[test]
fn silence_of_ready_members_is_no_lack_of_a_leader() {
    let mut fake = three();
    silence(&mut fake, &["dev-0", "dev-1", "dev-2"]);
    assert_eq!(fake.condition("Available"), "Unknown/LeaderUnknown");
    assert_eq!(fake.condition("Ready"), "False/LeaderUnknown");
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
    assert!(status(&fake).leader.is_none());
    // Clients cannot reach members that are not ready.
    for name in ["dev-0", "dev-1", "dev-2"] {
        fake.set_ready(name, false);
    }
    fake.pass();
    assert_eq!(fake.condition("Available"), "False/NoLeader");
}

#[test]
fn brain_that_is_not_ready_is_told_with_what_it_lacks() {
    let mut fake = three();
    let usual = fake.seen.probes["dev-1"].clone().unwrap();
    fake.set_ready("dev-1", false);
    let says = |fake: &mut FakeCluster, change: fn(&mut crate::member::MemberAnswer)| {
        let mut answer = usual.clone();
        (answer.role, answer.ready, answer.storage.reachable) = (BrainRole::None, false, true);
        change(&mut answer);
        fake.seen.probes.insert("dev-1".to_owned(), Ok(answer));
        fake.pass();
        status(fake).members.unwrap()[1].message.clone().unwrap_or_default()
    };
    let member = says(&mut fake, |_| ());
    assert!(member.starts_with("it does not follow dev-0: "), "{member}");
    fake.wait(60);
    fake.pass();
    let degraded = status(&fake).conditions.unwrap();
    let degraded = degraded.into_iter().find(|it| it.type_ == "Degraded").unwrap();
    assert_eq!(degraded.message, format!("dev-1: not ready yet: {member}"));
    let member = says(&mut fake, |answer| answer.storage.reachable = false);
    assert_eq!(member, "it does not reach its storage");
    let member = says(&mut fake, |answer| answer.role = BrainRole::Follower);
    assert_eq!(member, "");
}

#[test]
fn deposed_leader_is_a_follower() {
    let mut fake = three();
    fake.lead("dev-2");
    let Some(Ok(old)) = fake.seen.probes.get_mut("dev-0") else {
        panic!("it answers")
    };
    (old.role, old.epoch, old.leader) = (BrainRole::Leader, 1, None);
    fake.pass();
    let roles: Vec<MemberRole> = status(&fake)
        .members
        .unwrap()
        .into_iter()
        .map(|member| member.role)
        .collect();
    assert_eq!(roles, [MemberRole::Follower, MemberRole::Follower, MemberRole::Leader]);
}

#[test]
fn version_is_what_every_member_reports() {
    let mut fake = three();
    let report = |fake: &mut FakeCluster, name: &str, version: &str| {
        let Some(Ok(answer)) = fake.seen.probes.get_mut(name) else {
            panic!("it answers")
        };
        answer.version = version.to_owned();
        fake.pass();
        status(fake).version.unwrap()
    };
    assert_eq!(report(&mut fake, "dev-0", "0.1.1"), "0.1.0");
    assert_eq!(report(&mut fake, "dev-1", "0.1.1"), "0.1.0");
    assert_eq!(report(&mut fake, "dev-2", "0.1.1"), "0.1.1");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    silence(&mut fake, &["dev-1"]);
    assert_eq!(status(&fake).version.as_deref(), Some("0.1.1"));
}

#[test]
fn slow_growth_of_a_volume_is_no_change_in_flight() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.edit(json!({"storage": {"embedded": {"size": "20Gi"}}}));
    fake.pass();
    fake.wait(100_000);
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/ResizingStorage");
    assert_eq!(fake.condition("Stalled"), "absent");
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(status(&fake).rollout, None);
    // A roll-out begins, ends and is recorded in between.
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
    let claim = fake.seen.claims.clone();
    fake.kubelet();
    fake.seen.claims = claim;
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/ResizingStorage");
    assert_eq!(status(&fake).version.as_deref(), Some("0.2.0"));
}

#[test]
fn kind_of_a_change_outlasts_a_pause_and_its_deadline() {
    let kind = |fake: &FakeCluster| status(fake).rollout.and_then(|rollout| rollout.type_);
    let deadline = json!({"progressDeadlineSeconds": 100});
    let mut fake = FakeCluster::settled(json!({"updateStrategy": deadline}));
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    fake.pass();
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
    fake.edit(json!({"paused": true}));
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "False/Paused");
    assert_eq!(kind(&fake), Some(RolloutType::RollingUpdate));
    fake.edit(json!({"paused": false}));
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    fake.settle();
    assert_eq!(status(&fake).rollout, None);

    let mut fake = three();
    fake.edit(json!({"updateStrategy": deadline, "replicas": 4}));
    fake.pass();
    fake.pass();
    fake.wait(101);
    for _ in 0..2 {
        fake.pass();
        assert_eq!(fake.condition("Progressing"), "False/DeadlineExceeded");
        assert_eq!(kind(&fake), Some(RolloutType::Scaling));
    }
    assert_eq!(fake.condition("Ready"), "False/Scaling");
}

#[test]
fn pod_that_somebody_deletes_late_is_progress() {
    let strategy = json!({"type": "OnDelete", "progressDeadlineSeconds": 100});
    let mut fake = FakeCluster::settled(json!({"updateStrategy": strategy}));
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    for _ in 0..3 {
        fake.pass();
        fake.controllers();
    }
    fake.wait(1000);
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "absent");
    fake.seen.pods.clear();
    fake.controllers();
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    assert_eq!(fake.condition("Stalled"), "absent");
    fake.wait(101);
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "False/DeadlineExceeded");
}

#[test]
fn conditions_of_the_former_status_decide_nothing() {
    let mut fake = three();
    fake.edit(json!({"replicas": 4}));
    fake.pass();
    let mut other = three();
    other.edit(json!({"replicas": 4}));
    other.pass();
    for condition in other.cluster.status.as_mut().unwrap().conditions.iter_mut().flatten() {
        condition.reason = "Other".to_owned();
        condition.message.clear();
    }
    fake.pass();
    other.pass();
    assert_eq!(status(&fake).conditions, status(&other).conditions);
}
