//! Who is replaced next, and what holds that back.

use super::*;

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
        waits(|world| world.edit(json!({"updateStrategy": {"type": "OnDelete"}}))),
        "update.type is OnDelete: waiting for dev-0 to be deleted"
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
