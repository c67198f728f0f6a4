//! A template is tried before it replaces the only member.

use super::*;
use crate::names::{RESTART_HASH, SKIP_TRIAL};

/// A settled cluster whose templates are tried.
fn settled(spec: Value) -> FakeCluster {
    let mut fake = FakeCluster::settled(spec);
    fake.cluster.annotations_mut().remove(SKIP_TRIAL);
    fake.wait(60);
    fake
}

/// Puts the containers of the trial into these states.
fn containers(fake: &mut FakeCluster, states: Value) {
    let statuses: Vec<Value> = states
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, state)| {
            json!({"name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state})
        })
        .collect();
    let status = json!({"phase": "Pending", "containerStatuses": statuses});
    fake.seen.trial.as_mut().unwrap().status = serde_json::from_value(status).unwrap();
}

fn message(fake: &FakeCluster, type_: &str) -> String {
    let conditions = fake.cluster.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let found = conditions.iter().find(|condition| condition.type_ == type_);
    found.map_or_else(String::new, |found| found.message.clone())
}

#[test]
fn container_that_cannot_be_started_fails_the_trial() {
    let mut fake = settled(json!({}));
    let proxy = json!({"name": "proxy", "image": "proxy:1", "command": ["/no-such"]});
    fake.edit(json!({"podTemplate": {"spec": {"containers": [proxy]}}}));
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
    let never = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}});
    containers(
        &mut fake,
        json!({"brain": {"terminated": {"exitCode": 0, "reason": "Completed"}}, "proxy": never}),
    );
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/TrialFailed");
    assert!(message(&fake, "Stalled").contains("proxy does not start: no such file"));
}

/// A limit below the brain's needs is found before the only member is replaced; and so is a pod that a rule of the namespace forbids.
#[test]
fn other_resources_are_tried_before_the_only_member_gets_them() {
    let mut fake = settled(json!({"pod": {"resources": {"limits": {"memory": "1Gi"}}}}));
    fake.edit(json!({"pod": {"resources": {"limits": {"memory": "6Mi"}}}}));
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
    let trial = serde_json::to_value(&fake.seen.trial).unwrap();
    assert_eq!(trial["spec"]["containers"][0]["resources"]["limits"]["memory"], "6Mi");
    containers(
        &mut fake,
        json!({"brain": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}),
    );
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Stalled"), "True/TrialFailed");
    assert!(message(&fake, "Stalled").contains("brain ends with exit code 137: OOMKilled"));
    // A corrected template is tried again, and applied once its trial runs.
    fake.edit(json!({"pod": {"resources": {"limits": {"memory": "2Gi"}}}}));
    assert_eq!(fake.pass(), ["delete pod dev-trial"]);
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
    containers(&mut fake, json!({"brain": {"terminated": {"exitCode": 0}}}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
}

/// A slow volume says nothing about the template.
#[test]
fn member_that_waits_for_its_volume_is_not_replaced_untried() {
    let mut fake = settled(json!({}));
    let begun = serde_json::to_value(fake.seen.now).unwrap();
    fake.pod("dev-0").status = serde_json::from_value(json!({
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": begun}],
        "containerStatuses": [{
            "name": "brain", "ready": false, "restartCount": 0, "image": "", "imageID": "",
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }],
    }))
    .unwrap();
    fake.pod("dev-0").spec.as_mut().unwrap().node_name = Some("node1".to_owned());
    fake.wait(600);
    fake.pass();
    assert_eq!(fake.condition("Degraded"), "True/ContainerCreationFailed");
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
}

/// The small trial would fit on the node, but the member would not.
#[test]
fn template_beside_resources_that_its_node_cannot_give_is_tried_with_all_of_them() {
    let mut fake = settled(json!({}));
    let trial = |fake: &FakeCluster| serde_json::to_value(&fake.seen.trial).unwrap();
    fake.edit(json!({"pod": {"resources": {"requests": {"memory": "100Gi"}}}}));
    fake.pass();
    assert_eq!(
        trial(&fake)["spec"]["containers"][0]["resources"]["requests"]["memory"],
        "32Mi"
    );
    containers(&mut fake, json!({"brain": {"terminated": {"exitCode": 0}}}));
    fake.settle();
    let conditions = fake.pod("dev-0").status.as_mut().unwrap().conditions.as_mut().unwrap();
    let pending = json!({"type": "PodResizePending", "status": "True", "reason": "Infeasible"});
    conditions.push(serde_json::from_value(pending).unwrap());
    fake.edit(json!({"version": "0.2.0"}));
    fake.pass();
    assert_eq!(
        trial(&fake)["spec"]["containers"][0]["resources"]["requests"]["memory"],
        "100Gi"
    );
}

#[test]
fn member_from_before_its_cluster_was_made_again_is_not_lost_to_an_untried_template() {
    let mut fake = settled(json!({}));
    let status = fake.cluster.status.as_mut().unwrap();
    (status.version, status.current_revision) = (None, None);
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
}

#[test]
fn only_member_is_replaced_after_the_new_template_has_run() {
    let mut fake = settled(json!({}));
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    let trial = serde_json::to_value(&fake.seen.trial).unwrap();
    let brain = &trial["spec"]["containers"][0];
    assert_eq!(brain["image"], "kubebrain.io/kubebrain:0.2.0");
    assert_eq!(brain["args"].as_array().unwrap().last().unwrap(), "--check");
    assert_eq!(brain["env"][0], json!({"name": "POD_NAME", "value": "dev-0"}));
    assert!(
        trial["metadata"]["labels"]["app.kubernetes.io/component"].is_null(),
        "a Service would take it for a brain"
    );
    assert_eq!(
        trial["spec"]["volumes"].as_array().unwrap().last().unwrap(),
        &json!({"name": "data", "emptyDir": {}})
    );
    containers(&mut fake, json!({"brain": {"terminated": {"exitCode": 0}}}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.pass(), ["delete pod dev-trial", "delete pod dev-0"]);
    fake.kubelet();
    fake.pass();
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn template_that_does_not_run_replaces_nothing_and_says_why() {
    for (state, why) in [
        (
            json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            "ErrImagePull: no such image",
        ),
        (
            json!({"terminated": {"exitCode": 2, "message": "{\"code\":\"Failed\",\"message\":\"--max-txn-ops is not valid\"}"}}),
            "brain ends with exit code 2: --max-txn-ops is not valid",
        ),
    ] {
        let mut fake = settled(json!({}));
        let set = written(&fake)["StatefulSet dev"].clone();
        fake.edit(json!({"version": "9.9.9"}));
        fake.pass();
        fake.wait(60);
        containers(&mut fake, json!({ "brain": state }));
        assert_eq!(fake.pass(), Vec::<String>::new());
        assert_eq!(fake.condition("Stalled"), "True/TrialFailed");
        assert!(message(&fake, "Stalled").contains(why), "{}", message(&fake, "Stalled"));
        assert_eq!(fake.condition("Available"), "True/LeaderElected");
        assert_eq!(
            written(&fake)["StatefulSet dev"],
            set,
            "a node that fails would take the member away"
        );
        // Another template gets a new trial.
        fake.edit(json!({"version": "0.3.0"}));
        assert_eq!(fake.pass(), ["delete pod dev-trial"]);
        assert_eq!(fake.pass(), ["create pod dev-trial"]);
        fake.kubelet();
        assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
        // The former template needs no trial.
        let mut back = settled(json!({}));
        back.edit(json!({"version": "9.9.9"}));
        back.pass();
        back.edit(json!({"version": "0.1.0"}));
        assert_eq!(back.pass(), ["delete pod dev-trial"]);
        assert_eq!(back.pass(), Vec::<String>::new());
        assert_eq!(back.condition("Ready"), "True/AsExpected");
    }
}

#[test]
fn containers_that_a_template_adds_must_start_too() {
    let mut fake = settled(json!({}));
    fake.edit(json!({"podTemplate": {"spec": {"containers": [{"name": "side", "image": "x"}]}}}));
    fake.pass();
    let done = json!({"terminated": {"exitCode": 0}});
    containers(
        &mut fake,
        json!({"brain": done, "side": {"waiting": {"reason": "ContainerCreating"}}}),
    );
    assert_eq!(fake.pass(), Vec::<String>::new());
    fake.wait(60);
    containers(
        &mut fake,
        json!({"brain": done, "side": {"waiting": {"reason": "InvalidImageName", "message": "x"}}}),
    );
    fake.pass();
    assert!(
        message(&fake, "Stalled").contains("container side: InvalidImageName"),
        "{}",
        message(&fake, "Stalled")
    );
    containers(&mut fake, json!({"brain": done, "side": {"running": {}}}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
}

#[test]
fn template_is_not_tried_where_no_member_would_be_lost() {
    let applies = |fake: &mut FakeCluster| {
        fake.edit(json!({"version": "0.2.0"}));
        assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    };
    let mut skipped = settled(json!({}));
    skipped
        .cluster
        .annotations_mut()
        .insert(SKIP_TRIAL.to_owned(), "true".to_owned());
    applies(&mut skipped);
    let mut broken = settled(json!({}));
    crash(&mut broken);
    applies(&mut broken);
    // Nothing ever ran.
    let mut new = FakeCluster::new(json!({}));
    new.cluster.annotations_mut().remove(SKIP_TRIAL);
    (0..3).for_each(|_| drop(new.pass()));
    applies(&mut new);
    let mut many = members(3, [false; 3]);
    many.cluster.annotations_mut().remove(SKIP_TRIAL);
    applies(&mut many);
    let mut suspended = settled(json!({}));
    suspended.edit(json!({"replicas": 0}));
    applies(&mut suspended);
    // A single member on TiKV is the only one, too.
    let mut single = members(1, [false]);
    single.cluster.annotations_mut().remove(SKIP_TRIAL);
    single.edit(json!({"version": "0.2.0"}));
    assert_eq!(single.pass(), ["create pod dev-trial"]);
}

#[test]
fn trial_that_somebody_else_ends_is_made_anew_a_few_times() {
    let mut fake = settled(json!({}));
    fake.edit(json!({"version": "0.2.0"}));
    let evicted = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "the node has no room"});
    for _ in 0..3 {
        assert_eq!(fake.pass(), ["create pod dev-trial"]);
        let hash = fake.seen.trial.as_ref().unwrap().annotations().get(RESTART_HASH);
        assert!(hash.is_some());
        fake.seen.trial.as_mut().unwrap().status = serde_json::from_value(evicted.clone()).unwrap();
        fake.wait(5);
        assert_eq!(fake.pass(), Vec::<String>::new(), "not at once");
        assert!(message(&fake, "Progressing").contains("OutOfcpu: the node has no room"));
        fake.wait(30);
        assert_eq!(fake.pass(), ["delete pod dev-trial"]);
    }
    fake.pass();
    fake.seen.trial.as_mut().unwrap().status = serde_json::from_value(evicted).unwrap();
    for _ in 0..2 {
        fake.wait(60);
        assert_eq!(fake.pass(), Vec::<String>::new());
        assert_eq!(fake.condition("Stalled"), "True/TrialFailed");
        assert!(message(&fake, "Stalled").contains("OutOfcpu: the node has no room"));
    }
    fake.edit(json!({"version": "0.3.0"}));
    assert_eq!(fake.pass(), ["delete pod dev-trial"]);
    assert_eq!(fake.condition("Stalled"), "absent");
}

/// Makes the brain of the member end repeatedly.
fn crash(fake: &mut FakeCluster) {
    fake.set_ready("dev-0", false);
    let ended = json!({"terminated": {"exitCode": 1}});
    let mut status = serde_json::to_value(&fake.pod("dev-0").status).unwrap();
    status["containerStatuses"] = json!([{
        "name": "brain", "ready": false, "restartCount": 5, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended,
    }]);
    fake.pod("dev-0").status = serde_json::from_value(status).unwrap();
}

#[test]
fn trial_decides_whatever_becomes_of_the_member() {
    let failed = || {
        let mut fake = settled(json!({}));
        fake.edit(json!({"version": "9.9.9"}));
        fake.pass();
        containers(&mut fake, json!({"brain": {"terminated": {"exitCode": 2}}}));
        fake.pass();
        fake
    };
    let changes: [fn(&mut FakeCluster); 4] = [
        |fake| fake.set_ready("dev-0", false),
        |fake| fake.seen.pods.clear(),
        crash,
        |fake| fake.seen.trial.as_mut().unwrap().status = None,
    ];
    for change in changes {
        let mut fake = failed();
        let set = written(&fake)["StatefulSet dev"].clone();
        change(&mut fake);
        assert_eq!(fake.pass(), Vec::<String>::new());
        assert_eq!(written(&fake)["StatefulSet dev"]["spec"], set["spec"]);
    }
    let mut scaled = failed();
    scaled.object(ObjectKind::StatefulSet, "dev").data["spec"]["replicas"] = json!(3);
    assert_eq!(scaled.pass(), ["reset the replicas of dev to 1"]);
    let mut open = settled(json!({}));
    open.edit(json!({"version": "9.9.9"}));
    open.pass();
    open.object(ObjectKind::StatefulSet, "dev").data["spec"]["replicas"] = json!(3);
    assert_eq!(open.pass(), ["reset the replicas of dev to 1"]);
    // The node may recover in a moment.
    let mut away = settled(json!({}));
    away.set_ready("dev-0", false);
    away.edit(json!({"version": "0.2.0"}));
    assert_eq!(away.pass(), ["create pod dev-trial"]);
    let mut missing = settled(json!({}));
    missing.seen.pods.clear();
    missing.edit(json!({"version": "0.2.0"}));
    assert_eq!(missing.pass(), ["create pod dev-trial"]);
}

#[test]
fn containers_beside_the_brain_may_end_as_they_like() {
    let native = json!({"name": "native", "image": "x", "restartPolicy": "Always"});
    let once = json!({"name": "once", "image": "x"});
    let given = json!({"podTemplate": {"spec": {"initContainers": [native, once], "containers": [{"name": "side", "image": "x"}]}}});
    let state = |name: &str, state: Value| json!({"name": name, "ready": false, "restartCount": 3, "image": "", "imageID": "", "state": state});
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let tried = |inits: [Value; 2], others: [Value; 2]| {
        let mut fake = settled(json!({}));
        fake.edit(given.clone());
        fake.pass();
        fake.wait(60);
        let [native, once] = inits;
        let [brain, side] = others;
        let status = json!({
            "phase": "Failed",
            "initContainerStatuses": [state("native", native), state("once", once)],
            "containerStatuses": [state("brain", brain), state("side", side)],
        });
        fake.seen.trial.as_mut().unwrap().status = serde_json::from_value(status).unwrap();
        let done = fake.pass();
        (done, message(&fake, "Stalled"))
    };
    let passed = vec!["apply StatefulSet dev".to_owned()];
    let crashing = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    // The kubelet ends the native one after the brain.
    assert_eq!(tried([ended(137), ended(0)], [ended(0), ended(1)]).0, passed);
    let wrong = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    for (inits, others, why) in [
        (
            [ended(0), ended(3)],
            [json!({"waiting": {}}), crashing],
            "once ends with exit code 3",
        ),
        (
            [wrong.clone(), ended(0)],
            [ended(0), ended(0)],
            "container native: ErrImagePull",
        ),
        (
            [ended(0), ended(0)],
            [ended(2), ended(0)],
            "brain ends with exit code 2",
        ),
        ([ended(0), ended(0)], [ended(0), wrong], "container side: ErrImagePull"),
    ] {
        let (done, message) = tried(inits, others);
        assert_eq!(done, Vec::<String>::new(), "{why}");
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn brain_from_before_trials_is_not_tried() {
    let mut fake = settled(json!({}));
    fake.edit(json!({"version": "0.2.0"}));
    fake.pass();
    let message = r#"{"code":"Failed","message":"unknown flag --check: see --help"}"#;
    containers(
        &mut fake,
        json!({"brain": {"terminated": {"exitCode": 2, "message": message}}}),
    );
    let event = fake.plan().untried.unwrap();
    assert_eq!(event.reason, "TrialSkipped");
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(fake.pass(), ["delete pod dev-trial", "delete pod dev-0"]);
}

#[test]
fn trial_asks_for_little_and_never_for_more_than_its_limits() {
    let tried = |resources: Value| {
        let mut fake = settled(json!({}));
        fake.edit(json!({"version": "0.2.0", "pod": {"resources": resources}}));
        fake.pass();
        let trial = serde_json::to_value(&fake.seen.trial).unwrap();
        trial["spec"]["containers"][0]["resources"].clone()
    };
    assert_eq!(
        tried(
            json!({"limits": {"cpu": "5m", "memory": "1Gi", "ephemeral-storage": "1Gi"}, "requests": {"ephemeral-storage": "1Gi"}})
        ),
        json!({
            "limits": {"cpu": "5m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "requests": {"cpu": "5m", "memory": "32Mi", "ephemeral-storage": "1Gi"},
        })
    );
    assert_eq!(
        tried(json!({"requests": {"cpu": "2", "memory": "16Mi"}})),
        json!({"limits": {}, "requests": {"cpu": "10m", "memory": "16Mi"}})
    );
    let device = json!({"limits": {"example.com/device": "1"}});
    assert_eq!(tried(device.clone())["limits"], device["limits"], "no node may have it");
    let mut holder = settled(json!({"pod": {"resources": device}}));
    holder.edit(json!({"version": "0.2.0"}));
    holder.pass();
    let trial = serde_json::to_value(&holder.seen.trial).unwrap();
    let limits = &trial["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({}), "its node may have no other");
}

#[test]
fn wrong_default_image_changes_no_cluster_that_runs() {
    let mut fake = settled(json!({}));
    let before = written(&fake);
    for default in [
        "wrong.example/brain",
        "wrong.example/brain:latest",
        "wrong.example/brain@sha256:00",
    ] {
        fake.default_image = default.to_owned();
        assert_eq!(fake.pass(), Vec::<String>::new(), "{default}");
        assert_eq!(written(&fake), before);
    }
    // A new version gets the default at that time.
    fake.edit(json!({"version": "0.2.0"}));
    fake.default_image = "right.example/brain".to_owned();
    fake.pass();
    let image = fake.seen.trial.as_ref().unwrap().spec.as_ref().unwrap().containers[0]
        .image
        .clone();
    assert_eq!(image.as_deref(), Some("right.example/brain:0.2.0"));
    // A template that never ran is not kept.
    fake.default_image = "other.example/brain".to_owned();
    assert_eq!(fake.pass(), ["delete pod dev-trial"]);
}

#[test]
fn image_of_an_older_operator_is_recorded_before_the_default_moves() {
    let mut fake = settled(json!({}));
    let before = written(&fake);
    let status = fake.cluster.status.as_mut().unwrap();
    status.pinned_image = None;
    fake.default_image = "kubebrain.io/kubebrain:0.3.0".to_owned();
    fake.set_ready("dev-0", false);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(written(&fake), before);
    let pinned = fake.cluster.status.as_ref().unwrap().pinned_image.clone().unwrap();
    assert_eq!(pinned.image, "kubebrain.io/kubebrain:0.1.0");
    assert_eq!(fake.pass(), ["create pod dev-trial"]);
    let pinned = fake.cluster.status.as_ref().unwrap().pinned_image.clone().unwrap();
    assert_eq!(pinned.image, "kubebrain.io/kubebrain:0.1.0", "it has not moved yet");
}
