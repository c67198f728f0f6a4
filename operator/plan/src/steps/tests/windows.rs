//! Maintenance windows: members that serve wait for one.

use super::*;

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
fn members_that_do_not_serve_and_requests_for_another_leader_wait_for_no_window() {
    let mut fake = members(3, [true; 3]);
    fake.edit(json!({"updateStrategy": windows()}));
    at(&mut fake, "12:00:00");
    let wishes = fake.cluster.annotations_mut();
    wishes.insert(crds::wishes::TRANSFER_LEADER.to_owned(), "any@1".to_owned());
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
    assert_eq!(fake.condition("Progressing"), "False/OutsideMaintenanceWindow");
    fake.set_ready("dev-2", false);
    assert_eq!(fake.steps().last().unwrap(), "delete pod dev-2");
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
