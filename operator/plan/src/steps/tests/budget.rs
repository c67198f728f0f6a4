//! The number of members that may be unavailable at a time.

use super::*;

/// Returns N outdated members, the first one leading; `max_unavailable` of them may be unavailable.
fn outdated<const N: usize>(max_unavailable: usize) -> FakeCluster {
    let mut fake = members(N, [true; N]);
    fake.edit(json!({"updateStrategy": {"maxUnavailable": max_unavailable}}));
    fake
}

fn deletions(fake: &mut FakeCluster) -> Vec<String> {
    fake.pass()
        .into_iter()
        .filter(|step| !step.starts_with("label"))
        .collect()
}

#[test]
fn max_unavailable_bounds_members_that_are_away_at_a_time() {
    let mut fake = outdated::<5>(2);
    assert_eq!(deletions(&mut fake), ["delete pod dev-4"]);
    assert_eq!(deletions(&mut fake), ["delete pod dev-3"], "one step in a pass");
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
    assert_eq!(
        fake.plan().rollout.waiting.as_deref(),
        Some("dev-3 is not ready for 10 s yet")
    );
    // One has been ready again for long enough, the other has not.
    fake.set_ready("dev-4", true);
    fake.wait(15);
    assert_eq!(deletions(&mut fake), ["delete pod dev-2"]);
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
}

#[test]
fn leader_is_replaced_alone_whatever_the_budget() {
    let mut fake = outdated::<3>(3);
    assert_eq!(deletions(&mut fake), ["delete pod dev-2"]);
    assert_eq!(deletions(&mut fake), ["delete pod dev-1"]);
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
    fake.kubelet_keeping_the_leader();
    fake.set_ready("dev-2", false);
    fake.wait(15);
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
    assert_eq!(
        fake.plan().rollout.waiting.as_deref(),
        Some("dev-2 is not ready for 10 s yet")
    );
    fake.kubelet_keeping_the_leader();
    fake.wait(15);
    assert_eq!(deletions(&mut fake), ["transfer leadership from dev-0 to dev-1"]);
    assert_eq!(deletions(&mut fake), ["delete pod dev-0"]);
}

#[test]
fn pods_that_others_take_away_count() {
    let mut fake = outdated::<5>(2);
    fake.pod("dev-1").metadata.deletion_timestamp = Some(Time(fake.seen.now));
    assert_eq!(deletions(&mut fake), ["delete pod dev-4"]);
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
    assert_eq!(fake.plan().rollout.waiting.as_deref(), Some("a pod is being deleted"));
    let mut fake = outdated::<5>(2);
    for name in ["dev-1", "dev-2"] {
        let mut value = serde_json::to_value(fake.pod(name)).unwrap();
        let target = json!({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": crate::testing::BEGIN});
        value["status"]["conditions"].as_array_mut().unwrap().push(target);
        *fake.pod(name) = serde_json::from_value(value).unwrap();
    }
    assert_eq!(deletions(&mut fake), Vec::<String>::new());
    assert_eq!(fake.plan().rollout.waiting.as_deref(), Some("dev-1 is being evicted"));
}
