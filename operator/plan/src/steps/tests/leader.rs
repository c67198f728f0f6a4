//! The leader in a roll-out, and requests for another one.

use super::*;

/// Makes a pod unready, although its brain still answers as before.
fn unready_but_answering(fake: &mut FakeCluster, name: &str) {
    let answer = fake.seen.probes[name].clone();
    fake.set_ready(name, false);
    fake.seen.probes.insert(name.to_owned(), answer);
}

#[test]
fn unready_leader_that_is_alone_is_replaced() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.edit(json!({"version": "0.2.0"}));
    fake.pass();
    unready_but_answering(&mut fake, "dev-0");
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn unready_leader_hands_over_before_it_is_replaced() {
    let mut fake = members(3, [true; 3]);
    unready_but_answering(&mut fake, "dev-0");
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
    assert!(
        fake.steps().contains(&"delete pod dev-0".to_owned()),
        "{:?}",
        fake.steps()
    );

    // It prefers a member that will not hand over again.
    let mut fake = members(3, [true, true, false]);
    unready_but_answering(&mut fake, "dev-0");
    assert_eq!(fake.steps(), ["transfer leadership from dev-0 to dev-2"]);

    // A refusal delays it only for the timeout of a hand-over.
    let mut fake = members(3, [true; 3]);
    unready_but_answering(&mut fake, "dev-0");
    fake.refuses_hand_over = true;
    fake.pass();
    assert_eq!(fake.steps(), ["transfer leadership from dev-0 to dev-1"]);
    fake.wait(30);
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn unready_leader_without_a_successor_is_replaced_after_the_others() {
    let mut fake = members(3, [true; 3]);
    for name in ["dev-0", "dev-1", "dev-2"] {
        unready_but_answering(&mut fake, name);
    }
    assert_eq!(fake.steps(), ["delete pod dev-1"]);
    for name in ["dev-1", "dev-2"] {
        let pod = fake.pod(name);
        pod.annotations_mut().remove(crate::names::RESTART_HASH);
        let hash = fake.object(ObjectKind::StatefulSet, "dev").data["spec"]["template"]["metadata"]["annotations"]
            [crate::names::RESTART_HASH]
            .as_str()
            .unwrap()
            .to_owned();
        let pod = fake.pod(name);
        pod.annotations_mut()
            .insert(crate::names::RESTART_HASH.to_owned(), hash);
    }
    assert_eq!(fake.steps(), ["delete pod dev-0"]);
}

#[test]
fn hand_over_in_a_pause_is_not_recorded() {
    let mut fake = members(3, [true, false, false]);
    fake.edit(json!({"paused": true}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    fake.wait(3600);
    assert_eq!(fake.pass(), Vec::<String>::new());
    let hand_over = |fake: &FakeCluster| {
        fake.cluster
            .status
            .clone()
            .unwrap()
            .rollout
            .and_then(|rollout| rollout.hand_over)
    };
    assert_eq!(hand_over(&fake), None);
    fake.edit(json!({"paused": false}));
    assert_eq!(fake.steps(), ["transfer leadership from dev-0 to dev-1"]);
    // A leader that was asked before the pause is asked again, with a new timeout.
    fake.refuses_hand_over = true;
    fake.pass();
    assert!(hand_over(&fake).is_some());
    fake.edit(json!({"paused": true}));
    fake.pass();
    fake.wait(3600);
    fake.edit(json!({"paused": false}));
    assert_eq!(fake.steps(), ["transfer leadership from dev-0 to dev-1"]);
}

fn wish(fake: &mut FakeCluster, text: &str) {
    fake.cluster
        .annotations_mut()
        .insert(crds::wishes::TRANSFER_LEADER.to_owned(), text.to_owned());
}

fn handled(fake: &FakeCluster) -> Option<String> {
    fake.cluster.status.as_ref().unwrap().last_handled_transfer.clone()
}

#[test]
fn transfer_wish_outlasts_a_pause() {
    let mut fake = members(3, [false; 3]);
    wish(&mut fake, "any@1");
    fake.edit(json!({"paused": true}));
    assert_eq!((fake.pass(), handled(&fake)), (vec![], None));
    fake.edit(json!({"paused": false}));
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
    assert_eq!(handled(&fake).as_deref(), Some("any@1"));
    fake.pass();
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn transfer_wish_outlasts_a_refusal() {
    let mut fake = members(3, [false; 3]);
    wish(&mut fake, "any@1");
    fake.refuses_hand_over = true;
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
    assert_eq!(handled(&fake), None);
    // The hand-over succeeded although the answer was lost: it is not requested again.
    fake.lead("dev-1");
    fake.pass();
    assert_eq!(handled(&fake).as_deref(), Some("any@1"));
    assert_eq!(fake.plan().lead.pod(), Some("dev-1"));
}

#[test]
fn transfer_wish_waits_for_a_member_that_can_lead() {
    let mut fake = members(3, [false; 3]);
    fake.set_ready("dev-2", false);
    wish(&mut fake, "dev-2@1");
    assert!(!fake.pass().iter().any(|step| step.starts_with("transfer leadership")));
    assert_eq!(handled(&fake), None);
    assert_eq!(fake.plan().rollout.waiting.as_deref(), Some("dev-2 cannot lead now"));
    fake.kubelet_keeping_the_leader();
    fake.pass();
    assert_eq!(
        (fake.plan().lead.pod(), handled(&fake).as_deref()),
        (Some("dev-2"), Some("dev-2@1"))
    );
}

#[test]
fn transfer_wish_that_cannot_come_true_is_given_up() {
    let given_up = |fake: &mut FakeCluster, text: &str| {
        wish(fake, text);
        let transfer = fake.plan().rollout.transfer;
        let note = transfer.and_then(|transfer| transfer.event()).map(|event| event.note);
        assert!(!fake.pass().iter().any(|step| step.starts_with("transfer leadership")));
        (handled(fake).as_deref() == Some(text), note.unwrap_or_default())
    };
    let mut fake = members(3, [false; 3]);
    let unknown = (true, "no transfer to dev-7: the cluster has no such member".to_owned());
    assert_eq!(given_up(&mut fake, "dev-7@1"), unknown);
    let leads = (true, "dev-0 already leads".to_owned());
    assert_eq!(given_up(&mut fake, "dev-0@2"), leads);
    let mut fake = FakeCluster::settled(json!({}));
    let alone = (true, "no transfer to any: the cluster has one member".to_owned());
    assert_eq!(given_up(&mut fake, "any@3"), alone);
}

#[test]
fn bare_time_is_a_wish_for_any_leader() {
    let mut fake = members(3, [false; 3]);
    wish(&mut fake, "2026-11-21T00:00:00Z");
    assert_eq!(fake.pass(), ["transfer leadership from dev-0 to dev-1"]);
}
