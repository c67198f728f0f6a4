//! Changes of resources for running pods.

use super::*;
use crate::names::{MEMORY_RESIZED, RESIZE_REFUSED, RESOURCES_HASH};

fn limits(cpu: &str) -> Value {
    json!({"pod": {"resources": {"limits": {"cpu": cpu}}}})
}

/// Sets a condition of a pod, in addition to Ready.
fn say(fake: &mut FakeCluster, pod: &str, type_: &str, reason: &str) {
    let pod = fake.pod(pod);
    let mut value = serde_json::to_value(&*pod).unwrap();
    let conditions = value["status"]["conditions"].as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] == "Ready");
    conditions.push(json!({"type": type_, "status": "True", "reason": reason}));
    *pod = serde_json::from_value(value).unwrap();
}

/// Records on the only pod that it cannot get the resources of the live template in place.
fn refuse_resize(fake: &mut FakeCluster) {
    let hash = written(fake)["StatefulSet dev"]["spec"]["template"]["metadata"]["annotations"][RESOURCES_HASH].clone();
    let refused = hash.as_str().unwrap().to_owned();
    fake.pod("dev-0")
        .annotations_mut()
        .insert(RESIZE_REFUSED.to_owned(), refused);
}

/// The message of a condition.
fn message(fake: &FakeCluster, type_: &str) -> String {
    let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
    let found = conditions.into_iter().find(|condition| condition.type_ == type_);
    found.unwrap().message
}

#[test]
fn resources_change_in_place_one_pod_at_a_time() {
    let mut fake = members(3, [false; 3]);
    fake.edit(limits("2"));
    let all = [
        vec!["apply StatefulSet dev"],
        vec!["resize pod dev-0"],
        vec!["resize pod dev-1"],
        vec!["resize pod dev-2"],
        vec![],
    ];
    for expected in all {
        assert_eq!(fake.pass(), expected);
    }
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
}

#[test]
fn resize_in_progress_is_waited_for() {
    let mut fake = members(3, [false; 3]);
    fake.edit(limits("2"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    say(&mut fake, "dev-0", "PodResizeInProgress", "");
    assert_eq!(fake.pass(), Vec::<String>::new());
    say(&mut fake, "dev-0", "Other", "");
    assert_eq!(fake.pass(), ["resize pod dev-1"]);
}

#[test]
fn pause_holds_a_resize() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(limits("2"));
    fake.pass();
    fake.edit(json!({"paused": true}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    fake.edit(json!({"paused": false}));
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
}

/// The roll-out replaces such a pod; the next one is of the template.
#[test]
fn pod_that_cannot_be_resized_is_replaced() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(limits("2"));
    fake.pass();
    refuse_resize(&mut fake);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
    let why = fake.plan().steps.into_iter().find_map(|step| match step {
        PlanStep::Replace { why, .. } => Some(why),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("its resources cannot change in place"));
    fake.pass();
    fake.kubelet();
    assert_eq!(fake.pass(), ["label pod dev-0"]);
    assert_eq!(fake.steps(), Vec::<String>::new());

    // Only those resources were refused, not all others.
    fake.pod("dev-0")
        .annotations_mut()
        .insert(RESIZE_REFUSED.to_owned(), "former".to_owned());
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn pod_whose_node_cannot_give_the_resources_is_replaced() {
    let mut fake = members(3, [false; 3]);
    fake.edit(limits("2"));
    fake.pass();
    for pod in ["dev-0", "dev-1", "dev-2"] {
        assert_eq!(fake.pass(), [format!("resize pod {pod}")]);
    }
    say(&mut fake, "dev-2", "PodResizePending", "Deferred");
    assert_eq!(fake.steps(), Vec::<String>::new());
    say(&mut fake, "dev-2", "PodResizePending", "Infeasible");
    assert_eq!(fake.steps(), ["delete pod dev-2"]);
}

/// Possibly no node has room for the next pod.
#[test]
fn only_member_stays_if_its_node_can_never_give_the_resources() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"pod": {"resources": {"requests": {"memory": "100Gi"}}}}));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    say(&mut fake, "dev-0", "PodResizePending", "Infeasible");
    assert_eq!(fake.pass(), Vec::<String>::new());
    let progressing = message(&fake, "Progressing");
    assert!(progressing.contains("dev-0 keeps its resources"), "{progressing}");
    assert_eq!(
        fake.condition("Progressing"),
        "False/RollingUpdate",
        "it is not rolled out"
    );
    assert_eq!(fake.condition("Available"), "True/LeaderElected");
    fake.edit(json!({"pod": null}));
    fake.pass();
    say(&mut fake, "dev-0", "Other", "");
    fake.settle();
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
}

#[test]
fn amounts_that_others_changed_are_no_difference() {
    let mut fake = FakeCluster::settled(limits("2"));
    let pod = fake.pod("dev-0");
    pod.spec.as_mut().unwrap().containers[0].resources = None;
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn wait_for_a_replacement_names_the_pod_that_cannot_be_resized() {
    let mut fake = members(3, [false; 3]);
    fake.edit(json!({"updateStrategy": {"type": "OnDelete"}}));
    fake.pass();
    fake.edit(limits("2"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    say(&mut fake, "dev-0", "PodResizePending", "Infeasible");
    let waiting = fake.plan().rollout.waiting.unwrap();
    assert!(
        waiting.ends_with("; dev-0 must be replaced: its node does not have the resources"),
        "{waiting}"
    );
}

fn memory(amount: &str) -> Value {
    json!({"pod": {"resources": {"limits": {"memory": amount}}}})
}

#[test]
fn other_limit_of_memory_restarts_the_brain() {
    let mut fake = FakeCluster::settled(memory("1Gi"));
    fake.edit(json!({"pod": {"resources": {"limits": {"memory": "1024Mi"}}}}));
    fake.pass();
    assert_eq!(fake.steps(), ["resize pod dev-0"], "the same amount");
    fake.pass();
    fake.edit(memory("512Mi"));
    fake.pass();
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
    let why = fake.plan().steps.into_iter().find_map(|step| match step {
        PlanStep::Replace { why, .. } => Some(why),
        _ => None,
    });
    assert!(why.unwrap().contains("divides its memory only at startup"));
    fake.pass();
    fake.kubelet();
    fake.pass();
    assert_eq!(fake.steps(), Vec::<String>::new());
    // Amounts that an autoscaler or a LimitRange set are left alone.
    let pod = fake.pod("dev-0");
    pod.spec.as_mut().unwrap().containers[0].resources = None;
    assert_eq!(fake.steps(), Vec::<String>::new());
    let mut many = members(3, [false; 3]);
    many.edit(memory("1Gi"));
    many.pass();
    assert_eq!(many.steps(), ["delete pod dev-2"]);
}

/// Makes the kubelet give the brain of the only member this limit.
fn give(fake: &mut FakeCluster, amount: &str) {
    let pod = fake.pod("dev-0");
    let mut status = serde_json::to_value(&pod.status).unwrap();
    status["containerStatuses"] = json!([{
        "name": "brain", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}},
        "resources": {"limits": {"memory": amount}},
    }]);
    pod.status = serde_json::from_value(status).unwrap();
}

#[test]
fn only_member_is_replaced_for_more_memory_when_its_node_has_given_that() {
    let mut fake = FakeCluster::settled(memory("1Gi"));
    give(&mut fake, "1Gi");
    fake.edit(memory("2Gi"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    for state in ["Deferred", "Infeasible"] {
        say(&mut fake, "dev-0", "PodResizePending", state);
        assert_eq!(fake.pass(), Vec::<String>::new(), "{state}");
        let progressing = message(&fake, "Progressing");
        assert!(progressing.contains(state), "{progressing}");
    }
    // The node has accepted it, and the message names the problem it meets.
    for (state, expected) in [("", "has provided it"), ("Error", "has provided it (Error)")] {
        say(&mut fake, "dev-0", "PodResizeInProgress", state);
        assert_eq!(fake.pass(), Vec::<String>::new(), "{state}");
        let progressing = message(&fake, "Progressing");
        assert!(progressing.contains(expected), "{progressing}");
    }
    say(&mut fake, "dev-0", "PodResizePending", "Infeasible");
    // Another change in between does not discard it.
    fake.edit(json!({"pod": {"resources": {"limits": {"cpu": "1"}}}}));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    say(&mut fake, "dev-0", "Other", "");
    assert_eq!(fake.steps(), Vec::<String>::new(), "not yet");
    give(&mut fake, "2Gi");
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
    fake.kubelet();
    fake.pass();
    assert_eq!(fake.steps(), Vec::<String>::new());
    // If the API server cannot do it, replacement is the only way.
    fake.edit(memory("4Gi"));
    fake.pass();
    refuse_resize(&mut fake);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn more_memory_that_is_taken_back_before_it_came_restarts_nobody() {
    let mut fake = FakeCluster::settled(memory("1Gi"));
    give(&mut fake, "1Gi");
    fake.edit(memory("2Gi"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    fake.edit(memory("1Gi"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert!(!fake.pod("dev-0").annotations().contains_key(MEMORY_RESIZED));
}

#[test]
fn only_member_that_does_not_run_is_replaced_for_more_memory() {
    let mut fake = FakeCluster::settled(memory("1Gi"));
    give(&mut fake, "1Gi");
    fake.edit(memory("2Gi"));
    fake.pass();
    assert_eq!(fake.pass(), ["resize pod dev-0"]);
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
        "containerStatuses": [{
            "name": "brain", "ready": false, "restartCount": 9, "image": "", "imageID": "",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "resources": {"limits": {"memory": "1Gi"}},
        }],
    });
    fake.pod("dev-0").status = serde_json::from_value(status).unwrap();
    fake.wait(60);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn limit_that_the_namespace_gives_is_no_part_of_a_resize() {
    let mut fake =
        FakeCluster::settled(json!({"pod": {"resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}}));
    let resources = json!({"limits": {"cpu": "1", "memory": "4Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}});
    let pod = fake.pod("dev-0").spec.as_mut().unwrap();
    pod.containers[0].resources = serde_json::from_value(resources).unwrap();
    fake.edit(json!({"pod": {"resources": {"limits": {"cpu": "2"}, "requests": null}}}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    let patch = fake.plan().steps.into_iter().find_map(|step| match step {
        PlanStep::Resize { patch, .. } => Some(patch["spec"]["containers"][0]["resources"].clone()),
        _ => None,
    });
    // The former template set that request, and no limit of memory.
    let expected = json!({"limits": {"cpu": "2"}, "requests": {"memory": null}});
    assert_eq!(patch, Some(expected));
    fake.settle();
    assert_eq!(fake.pass(), Vec::<String>::new());
}
