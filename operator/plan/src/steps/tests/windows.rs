//! Maintenance windows: members that serve wait for one.

use super::*;
use crate::member::BrainRefusal;

fn at(fake: &mut FakeCluster, time: &str) {
    fake.at(format!("2026-11-21T{time}Z").parse().unwrap());
}

/// A window from 04:00 to 05:00 of each day.
fn windows() -> serde_json::Value {
    json!({"progressDeadlineSeconds": 100, "maintenanceWindows": [{"schedule": "0 4 * * *", "duration": "1h"}]})
}

#[test]
fn only_member_waits_for_a_window_and_the_cluster_stays_ready() {
    let mut fake = FakeCluster::settled(json!({"updateStrategy": windows()}));
    at(&mut fake, "03:00:00");
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    fake.controllers();
    for time in ["03:00:10", "03:59:59"] {
        at(&mut fake, time);
        assert_eq!(fake.pass(), Vec::<String>::new(), "{time}");
        let why = "outside of updateStrategy.maintenanceWindows: the next one begins at 2026-11-21T04:00:00Z";
        assert_eq!(fake.plan().rollout.waiting.as_deref(), Some(why));
        assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
        assert_eq!(fake.condition("Ready"), "True/AsExpected");
        assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    }
    at(&mut fake, "04:00:00");
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
    // The deadline begins with the window.
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    fake.settle();
    assert_eq!(fake.condition("Progressing"), "False/Reconciled");
}

#[test]
fn roll_out_that_a_window_is_too_short_for_continues_in_the_next_one() {
    let mut fake = members(3, [true; 3]);
    fake.edit(json!({"updateStrategy": windows()}));
    at(&mut fake, "04:59:00");
    assert_eq!(fake.pass(), ["delete pod dev-2"]);
    fake.kubelet();
    at(&mut fake, "05:00:00");
    assert_eq!(fake.pass(), ["label pod dev-2"]);
    at(&mut fake, "23:00:00");
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
    fake.at("2026-11-22T04:00:00Z".parse().unwrap());
    assert_eq!(fake.pass(), ["delete pod dev-1"]);
}

#[test]
fn request_for_another_leader_waits_for_no_window() {
    let mut fake = members(3, [true; 3]);
    fake.edit(json!({"updateStrategy": windows()}));
    at(&mut fake, "12:00:00");
    let wishes = fake.cluster.annotations_mut();
    wishes.insert(crds::wishes::TRANSFER_LEADER.to_owned(), "any@1".to_owned());
    let waiting = fake.plan().rollout.waiting.unwrap();
    let both = "the next one begins at 2026-11-22T04:00:00Z; transferring leadership to dev-1 from dev-0";
    assert!(waiting.ends_with(both), "{waiting}");
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
    assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
}

/// Steps of a pass in the middle of the day, without those that label pods.
fn at_noon(change: impl FnOnce(&mut FakeCluster)) -> (FakeCluster, Vec<String>) {
    let mut fake = members(3, [true; 3]);
    fake.edit(json!({"updateStrategy": windows()}));
    at(&mut fake, "12:00:00");
    fake.pass();
    change(&mut fake);
    let steps = fake.pass();
    let steps = steps.into_iter().filter(|step| !step.starts_with("label"));
    let steps = steps.collect();
    (fake, steps)
}

#[test]
fn member_that_has_failed_is_replaced_outside_of_a_window_and_one_that_may_recover_is_not() {
    let unready = |seconds: i64| {
        move |fake: &mut FakeCluster| {
            fake.set_ready("dev-2", false);
            fake.wait(seconds);
        }
    };
    assert_eq!(at_noon(unready(59)).1, Vec::<String>::new());
    assert_eq!(at_noon(unready(60)).1, ["delete pod dev-2"]);
    // Its node is cut off from the API server, and its brain serves.
    let (_, steps) = at_noon(|fake| {
        let answer = fake.seen.probes["dev-2"].clone();
        unready(3600)(fake);
        fake.seen.probes.insert("dev-2".to_owned(), answer);
    });
    assert_eq!(steps, Vec::<String>::new());
    // The storage is away, so that no member is ready.
    let (_, steps) = at_noon(|fake| {
        for name in ["dev-0", "dev-1", "dev-2"] {
            let mut answer = fake.seen.probes[name].clone().unwrap();
            answer.ready = false;
            answer.storage.reachable = false;
            fake.set_ready(name, false);
            fake.seen.probes.insert(name.to_owned(), Ok(answer));
        }
        fake.wait(3600);
    });
    assert_eq!(steps, Vec::<String>::new());
    // The same, and the brains wait for it since they were started.
    let (_, steps) = at_noon(|fake| {
        for name in ["dev-0", "dev-1", "dev-2"] {
            let refusal = BrainRefusal {
                code: "StorageUnreachable".to_owned(),
                message: "no answer".to_owned(),
            };
            fake.set_ready(name, false);
            fake.seen.refusals.insert(name.to_owned(), refusal);
        }
        fake.wait(3600);
    });
    assert_eq!(steps, Vec::<String>::new());
    // No node has room for it.
    let (_, steps) = at_noon(|fake| {
        let now = Time(fake.seen.now);
        fake.set_ready("dev-2", false);
        let pod = fake.pod("dev-2");
        pod.metadata.creation_timestamp = Some(now);
        pod.status.as_mut().unwrap().conditions = None;
        fake.wait(60);
    });
    assert_eq!(steps, ["delete pod dev-2"]);
    // Its container cannot even start.
    let (_, steps) = at_noon(|fake| {
        fake.set_ready("dev-2", false);
        let status = fake.pod("dev-2").status.as_mut().unwrap();
        let waiting = json!({"name": "brain", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}}});
        status.container_statuses = Some(vec![serde_json::from_value(waiting).unwrap()]);
    });
    assert_eq!(steps, ["delete pod dev-2"]);
}

#[test]
fn pod_that_leaves_outside_of_a_window_is_no_roll_out() {
    let (mut fake, steps) = at_noon(|fake| {
        let now = Time(fake.seen.now);
        fake.pod("dev-1").metadata.deletion_timestamp = Some(now);
    });
    assert_eq!(steps, Vec::<String>::new());
    assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
    fake.wait(1000);
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "absent");
}

#[test]
fn member_that_was_replaced_at_the_end_of_a_window_is_waited_for() {
    let mut fake = members(3, [true; 3]);
    fake.edit(json!({"updateStrategy": windows()}));
    at(&mut fake, "04:59:30");
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    fake.kubelet();
    fake.set_ready("dev-2", false);
    at(&mut fake, "05:00:10");
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "True/RollingUpdate");
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    // And not for ever.
    at(&mut fake, "05:03:00");
    fake.pass();
    assert_eq!(fake.condition("Progressing"), "False/DeadlineExceeded");
}

#[test]
fn cluster_that_waits_for_a_window_stays_ready_whatever_is_written_and_a_paused_one_does_not() {
    let mut fake = FakeCluster::settled(json!({"updateStrategy": windows()}));
    at(&mut fake, "12:00:00");
    for version in ["2026-11-21T00:00:01Z", "2026-11-21T00:00:02Z"] {
        fake.edit(json!({"restartedAt": version}));
        assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
        assert_eq!(fake.condition("Ready"), "True/AsExpected");
        assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
        fake.controllers();
    }
    fake.edit(json!({"paused": true}));
    fake.pass();
    assert_eq!(fake.condition("Ready"), "False/Paused");
}

#[test]
fn spec_with_a_window_that_cannot_be_read_is_refused() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"updateStrategy": {"maintenanceWindows": [
        {"schedule": "@daily", "duration": "1h", "timeZone": "Europe/Atlantis"},
    ]}}));
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/InvalidSpec");
}
