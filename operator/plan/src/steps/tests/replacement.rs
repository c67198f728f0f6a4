//! The next pod to be replaced, and reasons to wait.

use super::*;
use crate::names::RESTART_HASH;

/// A settled cluster whose template changed; `change` comes before the pass that may replace the pod.
fn rolling(change: impl FnOnce(&mut FakeCluster)) -> (Vec<String>, Option<String>) {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    assert_eq!(
        fake.pass(),
        ["apply StatefulSet dev"],
        "never together with a replacement"
    );
    change(&mut fake);
    (fake.steps(), fake.plan().rollout.waiting)
}

#[test]
fn an_outdated_pod_is_replaced_only_when_nothing_is_in_the_way() {
    let replaced = (vec!["delete pod dev-0".to_owned()], None);
    assert_eq!(rolling(|_| {}), replaced);
    let unready = rolling(|fake| fake.set_ready("dev-0", false));
    assert_eq!(unready.0.last().unwrap(), "delete pod dev-0");
    let waits = |change: fn(&mut FakeCluster)| {
        let (steps, waiting) = rolling(change);
        assert_eq!(steps, Vec::<String>::new());
        waiting.unwrap_or_default()
    };
    let now = |fake: &FakeCluster| Some(Time(fake.seen.now));
    assert_eq!(
        waits(|fake| fake.object(ObjectKind::StatefulSet, "dev").data["status"]["observedGeneration"] = json!(1)),
        ""
    );
    assert_eq!(
        waits(|fake| fake.edit(json!({"updateStrategy": {"type": "OnDelete"}}))),
        "updateStrategy.type is OnDelete: waiting for dev-0 to be deleted"
    );
    let (steps, _) = rolling(|fake| fake.pod("dev-0").metadata.deletion_timestamp = now(&FakeCluster::new(json!({}))));
    assert_eq!(steps, Vec::<String>::new());
}

/// Returns the step for three members, as other storages will have them.
fn next(leader: usize, ready: [bool; 3], outdated: [bool; 3], leaving: [bool; 3]) -> (Vec<String>, Option<String>) {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(3600);
    let mut template = fake.seen.pods[0].clone();
    template.labels_mut().remove(ROLE);
    fake.seen.pods.clear();
    for (ordinal, outdated) in outdated.into_iter().enumerate() {
        let mut pod = template.clone();
        pod.metadata.name = Some(format!("dev-{ordinal}"));
        if outdated {
            pod.annotations_mut()
                .insert(RESTART_HASH.to_owned(), "former".to_owned());
        }
        fake.seen.pods.push(pod);
    }
    for (ordinal, ready) in ready.into_iter().enumerate() {
        let (name, member) = (format!("dev-{ordinal}"), u64::try_from(ordinal).unwrap() + 1);
        fake.seen
            .probes
            .insert(name.clone(), Ok(answer(member, u64::try_from(leader).unwrap() + 1)));
        if !ready {
            fake.set_ready(&name, false);
        }
    }
    let now = Time(fake.seen.now);
    for (pod, leaving) in fake.seen.pods.iter_mut().zip(leaving) {
        pod.metadata.deletion_timestamp = leaving.then(|| now.clone());
    }
    let mut desired = fake.desired();
    desired.replicas = 3;
    let mut plan = Plan {
        lead: leadership::lead(&fake.seen, &std::collections::BTreeSet::new()),
        ..Plan::default()
    };
    rollout::plan(&mut plan, &fake.cluster, &desired, &fake.seen);
    let steps = plan
        .steps
        .iter()
        .map(|step| crate::steps::describe(step, &desired))
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
    check(2, all, [false, false, true], "transfer leadership from dev-2 to dev-0");
    // A member that does not serve costs nothing, whatever its position.
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
    let (steps, _) = rolling(|fake| fake.edit(json!({"restartedAt": "2026-11-21T00:00:02Z"})));
    assert_eq!(steps, ["apply StatefulSet dev"]);
}

/// Runs passes until no steps are left; the kubelet starts created pods, and time passes.
fn rolled_out(fake: &mut FakeCluster) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..40 {
        let steps = fake.pass();
        fake.controllers();
        fake.kubelet_keeping_the_leader();
        fake.wait(15);
        let labels = |step: &String| step.starts_with("label");
        done.extend(steps.iter().filter(|step| !labels(step)).cloned());
        if steps.is_empty() && fake.cluster.status.as_ref().unwrap().rollout.is_none() {
            return done;
        }
    }
    panic!("it does not end: {done:?}");
}

#[test]
fn a_roll_out_replaces_followers_then_hands_over_then_replaces_the_former_leader() {
    let mut fake = members(3, [true; 3]);
    assert_eq!(
        rolled_out(&mut fake),
        [
            "delete pod dev-2",
            "delete pod dev-1",
            "transfer leadership from dev-0 to dev-1",
            "delete pod dev-0"
        ]
    );
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn a_leader_that_does_not_hand_over_in_time_is_replaced_none_the_less() {
    let mut fake = members(3, [true, false, false]);
    assert_eq!(fake.steps(), ["transfer leadership from dev-0 to dev-1"]);
    // It is asked, but does not answer.
    let refuse = |fake: &mut FakeCluster| {
        let (desired, plan) = (fake.desired(), fake.plan());
        let applied = crate::applied::AppliedSteps {
            asked: true,
            ..Default::default()
        };
        let pass = crate::status::StatusInput {
            desired: &desired,
            observed: &fake.seen.clone(),
            plan: &plan,
            applied: &applied,
        };
        fake.cluster.status = Some(crate::status::of(&fake.cluster, &pass));
    };
    refuse(&mut fake);
    let status = fake.cluster.status.clone().unwrap().rollout.unwrap();
    let under_way = status.hand_over.unwrap();
    assert_eq!(
        (status.step.as_deref(), under_way.to.as_str()),
        (Some("HandOver"), "dev-1")
    );
    fake.wait(29);
    refuse(&mut fake);
    let again = fake.cluster.status.clone().unwrap().rollout.unwrap().hand_over.unwrap();
    assert_eq!(again.since, under_way.since, "it is asked again, and the time goes on");
    fake.wait(1);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
    // Another member leads now: the old leader is a follower like any other.
    fake.lead("dev-2");
    assert!(
        fake.steps().contains(&"delete pod dev-0".to_owned()),
        "{:?}",
        fake.steps()
    );
}

#[test]
fn nothing_is_disrupted_while_somebody_else_disrupts_or_it_is_not_known_who_leads() {
    let mut fake = members(3, [true; 3]);
    let mut value = serde_json::to_value(fake.pod("dev-1")).unwrap();
    value["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": crate::testing::BEGIN}));
    *fake.pod("dev-1") = serde_json::from_value(value).unwrap();
    assert_eq!(fake.steps(), Vec::<String>::new());
    assert_eq!(fake.plan().rollout.waiting.as_deref(), Some("dev-1 is being evicted"));

    let mut fake = members(3, [true; 3]);
    for answer in fake.seen.probes.values_mut() {
        *answer = Err("silent".to_owned());
    }
    assert_eq!(fake.steps(), Vec::<String>::new());
    assert_eq!(fake.plan().rollout.waiting.as_deref(), Some("the leader is unknown"));
}

#[test]
fn an_unready_member_that_runs_may_lead_and_is_left_alone_until_that_is_known() {
    let mut fake = members(3, [true; 3]);
    for answer in fake.seen.probes.values_mut() {
        *answer = Err("silent".to_owned());
    }
    fake.set_ready("dev-1", false);
    assert_eq!(fake.steps(), Vec::<String>::new());
    // No member serves: a replacement costs nothing, and may fix the problem.
    fake.set_ready("dev-0", false);
    fake.set_ready("dev-2", false);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn unready_member_that_runs_waits_for_the_one_that_has_the_newest_template() {
    let mut fake = members(3, [true, true, false]);
    for name in ["dev-1", "dev-2"] {
        let answer = fake.seen.probes[name].clone();
        fake.set_ready(name, false);
        fake.seen.probes.insert(name.to_owned(), answer);
    }
    assert_eq!(fake.steps(), Vec::<String>::new());
    let waiting = fake.plan().rollout.waiting;
    assert_eq!(waiting.as_deref(), Some("dev-2 is not ready for 10 s yet"));
    // It does not exist yet.
    let newest = fake.seen.pods.pop().unwrap();
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.seen.pods.push(newest);

    // No member serves: the newest template may help.
    fake.set_ready("dev-0", false);
    assert_eq!(fake.steps(), ["delete pod dev-1"]);
    // It does not help.
    waits_for(&mut fake, "dev-2", "CrashLoopBackOff");
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.kubelet_keeping_the_leader();
    waits_for(&mut fake, "dev-2", "CrashLoopBackOff");
    waits_for(&mut fake, "dev-1", "CrashLoopBackOff");
    assert_eq!(fake.steps(), Vec::<String>::new(), "it may run again in a moment");
    waits_for(&mut fake, "dev-1", "ImagePullBackOff");
    assert_eq!(fake.steps(), ["delete pod dev-1"], "that costs nothing");
}

/// The container of a pod does not run.
fn waits_for(fake: &mut FakeCluster, name: &str, reason: &str) {
    fake.set_ready(name, false);
    let pod = fake.pod(name);
    let mut value = serde_json::to_value(&*pod).unwrap();
    value["status"]["containerStatuses"] = json!([{
        "name": "brain", "image": "", "imageID": "", "ready": false, "restartCount": 9,
        "state": {"waiting": {"reason": reason}},
    }]);
    *pod = serde_json::from_value(value).unwrap();
}

#[test]
fn nobody_is_replaced_while_no_member_reaches_its_storage() {
    let mut fake = members(3, [true; 3]);
    for answer in fake.seen.probes.values_mut().flatten() {
        answer.storage.reachable = false;
    }
    assert_eq!(fake.steps(), Vec::<String>::new());
    let waiting = fake.plan().rollout.waiting;
    assert_eq!(waiting.as_deref(), Some("no member reaches its storage"));
}

#[test]
fn a_leader_that_scaling_removes_hands_over_first() {
    let mut fake = members(3, [false; 3]);
    fake.lead("dev-2");
    fake.pass();
    fake.edit(json!({"replicas": 1}));
    let steps = fake.steps();
    assert!(
        steps.contains(&"transfer leadership from dev-2 to dev-0".to_owned()),
        "{steps:?}"
    );
    assert!(!steps.contains(&"apply StatefulSet dev".to_owned()), "{steps:?}");
    fake.pass();
    assert!(
        fake.steps().contains(&"apply StatefulSet dev".to_owned()),
        "{:?}",
        fake.steps()
    );
    // Scaling to zero: no member is left to hand over to.
    fake.edit(json!({"replicas": 0}));
    assert!(!fake.steps().iter().any(|step| step.starts_with("transfer leadership")));
}

#[test]
fn a_wish_for_another_leader_is_dealt_with_once() {
    let mut fake = members(3, [false; 3]);
    fake.cluster
        .annotations_mut()
        .insert(crds::wishes::TRANSFER_LEADER.to_owned(), "dev-2@1".to_owned());
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-2"]);
    assert_eq!(fake.plan().lead.pod(), Some("dev-2"));
    fake.lead("dev-1");
    fake.pass();
    assert_eq!(fake.steps(), Vec::<String>::new(), "once");
    fake.cluster
        .annotations_mut()
        .insert(crds::wishes::TRANSFER_LEADER.to_owned(), "any@2".to_owned());
    assert_eq!(fake.steps(), ["transfer leadership from dev-1 to dev-0"]);
}

#[test]
fn a_change_of_metadata_restarts_nobody() {
    let mut fake = members(3, [false; 3]);
    fake.edit(json!({"inheritedMetadata": {"labels": {"team": "a"}}}));
    let done = rolled_out(&mut fake);
    assert!(
        done.iter()
            .all(|step| step.starts_with("apply") || step.starts_with("issue")),
        "{done:?}"
    );
    fake.edit(json!({"logLevel": "Debug"}));
    let done = rolled_out(&mut fake);
    assert_eq!(
        done.iter().filter(|step| step.starts_with("delete pod")).count(),
        3,
        "{done:?}"
    );
}
