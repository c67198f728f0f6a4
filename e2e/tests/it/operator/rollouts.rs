//! Roll-outs with unplanned events. One cluster is rolled out again and again.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;

use super::brains::{Brains, embedded, is_observed, is_ready, on_tikv};
use super::kit::{self, Kit};
use super::load::Load;
use super::pods::{self, History, Watched};
use super::processes;
use super::tikv::Tikv;

const MEMBERS: usize = 3;
/// For the others to notice that a leader is gone, to elect another and to let it take over: the lease of `patient` several times over, on a machine that does other things.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// The step that a roll-out is at.
fn step(cluster: &KubeBrainCluster) -> Option<String> {
    cluster.status.as_ref()?.rollout.as_ref()?.step.clone()
}

/// Asks for a restart of all members, by the time in the spec.
async fn restart(brains: &Brains<'_>, round: u32) {
    brains
        .patch(json!({"restartedAt": format!("2026-01-01T00:00:{round:02}Z")}))
        .await;
    brains.until("seen", is_observed).await;
}

/// Each was asked to end once, and all but one served at any time.
#[track_caller]
fn check_planned(history: &History) {
    let mut ended = history.ended();
    ended.sort_unstable();
    let names: Vec<&String> = history.now.keys().collect();
    assert_eq!(ended, names, "each was asked to end once: {:#?}", history.changes);
    assert!(
        history.fewest.is_none_or(|fewest| fewest >= MEMBERS - 1),
        "{:?} served at a time: {:#?}",
        history.fewest,
        history.changes
    );
}

/// Waits until this many members were asked to end, and all members serve again.
async fn until_replaced(kit: &Kit, watched: &Watched, count: usize) {
    kit.eventually("replaced", async || {
        let history = watched.history();
        let serving = history.now.values().filter(|pod| pods::serves(pod)).count();
        let ended = history.ended().len();
        (ended >= count && serving == MEMBERS)
            .then_some(())
            .ok_or(format!("{ended} of {count} asked to end, {serving} serve"))
    })
    .await;
}

/// Has a member that serves take the lead, whichever the roll-out has not asked to end.
async fn move_leader(brains: &Brains<'_>) {
    let moved = async || {
        let leader = brains.leader().await;
        let pods = brains.pods().await;
        let target = pods.iter().find(|pod| pods::serves(pod) && pod.name_any() != leader);
        Box::pin(brains.move_leader(target.ok_or("no follower serves")?)).await
    };
    brains.kit.eventually("led by another member", moved).await;
}

#[test]
fn roll_out_goes_on_when_the_operator_is_killed_at_each_step() {
    kit::run_troubled("rollout-killed", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        restart(&brains, 1).await;
        let mut steps = Vec::new();
        loop {
            let last = steps.last().cloned();
            let further = |cluster: &KubeBrainCluster| {
                let step = step(cluster);
                is_ready(cluster) || (step.is_some() && step != last)
            };
            let cluster = brains.until("at another step", further).await;
            if is_ready(&cluster) {
                break;
            }
            steps.extend(step(&cluster));
            processes::kill_operator(&kit).await;
        }
        kit.say(format_args!("the operator was killed at {}", steps.join(", ")));
        assert!(steps.iter().any(|step| step == "HandOver"), "{steps:?}");
        check_planned(&watched.history());
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert_eq!(outcome.epochs.len(), 2, "{:?}", outcome.epochs);
    });
}

#[test]
fn roll_out_bears_two_operators_another_leader_and_a_killed_member() {
    kit::run_troubled("rollout-disturbed", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;

        // two operators that both think that they work, and a leader that moves by itself
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        restart(&brains, 1).await;
        until_replaced(&kit, &watched, 1).await;
        processes::take_lease_away(&kit).await;
        // both also begin a new cluster, and agree on its authority
        let new = kit.brains("b", embedded()).await;
        move_leader(&brains).await;
        brains.until_ready().await;
        new.until_ready().await;
        check_planned(&watched.history());
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert!(outcome.epochs.len() <= 3, "epochs of leaders: {:?}", outcome.epochs);

        // the leader killed: writes may fail until another one is elected, and none that was acknowledged is lost
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        restart(&brains, 2).await;
        until_replaced(&kit, &watched, 1).await;
        let leader = kit.api::<Pod>().get(&brains.leader().await).await.unwrap();
        processes::kill(&kit, &leader, "kubebrain");
        brains.until_ready().await;
        load.acknowledge(50).await;
        let outcome = load.end().await;
        assert!(
            outcome.longest.0 < ELECTION_TIMEOUT,
            "the longest write: {:?}",
            outcome.longest
        );
        let history = watched.history();
        assert!(history.ended().len() >= MEMBERS, "{:#?}", history.changes);
    });
}
