//! Who is replaced next, and what holds that back.

use super::*;
use crate::names::RESTART_HASH;

/// A settled cluster whose template changed; `change` comes before the pass that may replace the pod.
fn rolling(change: impl FnOnce(&mut World)) -> (Vec<String>, Option<String>) {
    let mut world = World::settled(json!({}));
    world.wait(60);
    world.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
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
        waits(|world| world.edit(json!({"updateStrategy": {"type": "OnDelete"}}))),
        "updateStrategy.type is OnDelete: waiting for dev-0 to be deleted"
    );
    let (steps, _) = rolling(|world| world.pod("dev-0").metadata.deletion_timestamp = now(&World::new(json!({}))));
    assert_eq!(steps, Vec::<String>::new());
}

/// Three members, as other storages will have them: who is replaced next.
fn next(leader: usize, ready: [bool; 3], outdated: [bool; 3], leaving: [bool; 3]) -> (Vec<String>, Option<String>) {
    let mut world = World::settled(json!({}));
    world.wait(3600);
    let mut template = world.seen.pods[0].clone();
    template.labels_mut().remove(ROLE);
    world.seen.pods.clear();
    for (ordinal, outdated) in outdated.into_iter().enumerate() {
        let mut pod = template.clone();
        pod.metadata.name = Some(format!("dev-{ordinal}"));
        if outdated {
            pod.annotations_mut()
                .insert(RESTART_HASH.to_owned(), "former".to_owned());
        }
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
    let mut plan = Plan {
        lead: leadership::lead(&world.seen),
        ..Plan::default()
    };
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
    check(2, all, [false, false, true], "hand over from dev-2 to dev-0");
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
    let (steps, _) = rolling(|world| world.edit(json!({"restartedAt": "2026-11-21T00:00:02Z"})));
    assert_eq!(steps, ["apply StatefulSet dev"]);
}

/// Passes until nothing is done any more; the kubelet starts what was made, and time goes by.
fn rolled_out(world: &mut World) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..40 {
        let steps = world.pass();
        world.controllers();
        world.kubelet_keeping_the_leader();
        world.wait(15);
        let labels = |step: &String| step.starts_with("label");
        done.extend(steps.iter().filter(|step| !labels(step)).cloned());
        if steps.is_empty() && world.cluster.status.as_ref().unwrap().rollout.is_none() {
            return done;
        }
    }
    panic!("it does not end: {done:?}");
}

#[test]
fn a_roll_out_replaces_followers_then_hands_over_then_replaces_the_former_leader() {
    let mut world = members(3, [true; 3]);
    assert_eq!(
        rolled_out(&mut world),
        [
            "delete pod dev-2",
            "delete pod dev-1",
            "hand over from dev-0 to dev-1",
            "delete pod dev-0"
        ]
    );
    assert_eq!(world.condition("Ready"), "True/AsExpected");
}

#[test]
fn a_leader_that_does_not_hand_over_in_time_is_replaced_none_the_less() {
    let mut world = members(3, [true, false, false]);
    assert_eq!(world.steps(), ["hand over from dev-0 to dev-1"]);
    // It is asked, and says nothing.
    let refuse = |world: &mut World| {
        let (desired, plan) = (world.desired(), world.plan());
        let applied = crate::apply::Applied::default();
        let pass = crate::status::Pass {
            desired: &desired,
            observed: &world.seen.clone(),
            plan: &plan,
            applied: &applied,
        };
        world.cluster.status = Some(crate::status::of(&world.cluster, &pass));
    };
    refuse(&mut world);
    let status = world.cluster.status.clone().unwrap().rollout.unwrap();
    let under_way = status.hand_over.unwrap();
    assert_eq!(
        (status.step.as_deref(), under_way.to.as_str()),
        (Some("HandOver"), "dev-1")
    );
    world.wait(29);
    refuse(&mut world);
    let again = world
        .cluster
        .status
        .clone()
        .unwrap()
        .rollout
        .unwrap()
        .hand_over
        .unwrap();
    assert_eq!(again.since, under_way.since, "it is asked again, and the time goes on");
    world.wait(1);
    assert_eq!(world.steps(), ["delete pod dev-0"]);
    // Somebody else leads meanwhile: the old one is a follower like any other.
    world.lead("dev-2");
    assert!(
        world.steps().contains(&"delete pod dev-0".to_owned()),
        "{:?}",
        world.steps()
    );
}

#[test]
fn nothing_is_disrupted_while_somebody_else_disrupts_or_it_is_not_known_who_leads() {
    let mut world = members(3, [true; 3]);
    let mut value = serde_json::to_value(world.pod("dev-1")).unwrap();
    value["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": crate::world::BEGIN}));
    *world.pod("dev-1") = serde_json::from_value(value).unwrap();
    assert_eq!(world.steps(), Vec::<String>::new());
    assert_eq!(world.plan().rollout.waiting.as_deref(), Some("dev-1 is being evicted"));

    let mut world = members(3, [true; 3]);
    for answer in world.seen.probes.values_mut() {
        *answer = Err("silent".to_owned());
    }
    assert_eq!(world.steps(), Vec::<String>::new());
    assert_eq!(
        world.plan().rollout.waiting.as_deref(),
        Some("it is not known who leads")
    );
}

#[test]
fn an_unready_member_that_runs_may_lead_and_is_left_alone_until_that_is_known() {
    let mut world = members(3, [true; 3]);
    for answer in world.seen.probes.values_mut() {
        *answer = Err("silent".to_owned());
    }
    world.set_ready("dev-1", false);
    assert_eq!(world.steps(), Vec::<String>::new());
    // Nobody serves: it costs nothing, and may mend what is wrong.
    world.set_ready("dev-0", false);
    world.set_ready("dev-2", false);
    assert_eq!(world.steps(), ["delete pod dev-0"]);
}

#[test]
fn nobody_is_replaced_while_no_member_reaches_its_storage() {
    let mut world = members(3, [true; 3]);
    for answer in world.seen.probes.values_mut().flatten() {
        answer.storage.reachable = false;
    }
    assert_eq!(world.steps(), Vec::<String>::new());
    let waiting = world.plan().rollout.waiting;
    assert_eq!(waiting.as_deref(), Some("no member reaches its storage"));
}

#[test]
fn a_leader_that_scaling_removes_hands_over_first() {
    let mut world = members(3, [false; 3]);
    world.lead("dev-2");
    world.pass();
    world.edit(json!({"replicas": 1}));
    let steps = world.steps();
    assert!(steps.contains(&"hand over from dev-2 to dev-0".to_owned()), "{steps:?}");
    assert!(!steps.contains(&"apply StatefulSet dev".to_owned()), "{steps:?}");
    world.pass();
    assert!(
        world.steps().contains(&"apply StatefulSet dev".to_owned()),
        "{:?}",
        world.steps()
    );
    // To nothing: there is nobody to hand over to.
    world.edit(json!({"replicas": 0}));
    assert!(!world.steps().iter().any(|step| step.starts_with("hand over")));
}

#[test]
fn a_wish_for_another_leader_is_dealt_with_once() {
    let mut world = members(3, [false; 3]);
    world
        .cluster
        .annotations_mut()
        .insert(crate::names::TRANSFER.to_owned(), "dev-2@1".to_owned());
    assert_eq!(world.pass(), ["hand over from dev-0 to dev-2"]);
    assert_eq!(world.plan().lead.pod(), Some("dev-2"));
    world.lead("dev-1");
    world.pass();
    assert_eq!(world.steps(), Vec::<String>::new(), "once");
    world
        .cluster
        .annotations_mut()
        .insert(crate::names::TRANSFER.to_owned(), "any@2".to_owned());
    assert_eq!(world.steps(), ["hand over from dev-1 to dev-0"]);
}

#[test]
fn a_change_of_metadata_restarts_nobody() {
    let mut world = members(3, [false; 3]);
    world.edit(json!({"inheritedMetadata": {"labels": {"team": "a"}}}));
    let done = rolled_out(&mut world);
    assert!(
        done.iter()
            .all(|step| step.starts_with("apply") || step.starts_with("issue")),
        "{done:?}"
    );
    world.edit(json!({"logLevel": "Debug"}));
    let done = rolled_out(&mut world);
    assert_eq!(
        done.iter().filter(|step| step.starts_with("delete pod")).count(),
        3,
        "{done:?}"
    );
}
