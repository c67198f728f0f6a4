//! Figures of the operator, each beside its goal: `make bench-operator` prints them.

mod leader;
mod process;

use std::time::Duration;

use crds::KubeBrainCluster;
use e2e_cluster::images::BRAIN_NEXT;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testkit::goal::Goal;
use tokio::time::Instant;

use super::brains::{self, condition, embedded, is_observed, on_tikv, version};
use super::kit::{self, Kit, OPERATOR_NAMESPACE, POLL_INTERVAL};
use super::load::Load;
use super::pods::Watched;
use super::tikv::Tikv;
use process::Process;

/// Time for which an idle operator is observed.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Number of passes that are observed; they are a minute apart.
const OBSERVED_PASSES: usize = 2;
/// After this time without a request, nothing is in progress.
const QUIET_TIME: Duration = Duration::from_secs(20);
/// Requests to the API server in passes over a settled cluster.
const REQUESTS_GOAL: Goal = Goal::AtMost(0.0);
/// Percent of a processor.
const IDLE_CPU_GOAL: Goal = Goal::AtMost(0.5);
/// MiB with one cluster.
const MEMORY_GOAL: Goal = Goal::AtMost(40.0);

const MANY_CLUSTERS: usize = 200;
/// MiB with many clusters.
const MEMORY_OF_MANY: Goal = Goal::AtMost(100.0);
/// Seconds from the start of the operator until it has seen all of them.
const START_GOAL: Goal = Goal::AtMost(60.0);
/// For all of them to be made.
const MANY_CLUSTERS_TIMEOUT: Duration = Duration::from_secs(600);

/// Seconds from nothing to three members that are Ready.
const READY_GOAL: Goal = Goal::AtMost(30.0);
/// Milliseconds of the longest write in a planned replacement of all members.
const STALL_GOAL: Goal = Goal::AtMost(150.0);
const MEMBERS: usize = 3;
const ROUNDS: usize = 3;

#[allow(clippy::cast_precision_loss, reason = "far fewer bytes than 2^52")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[test]
#[ignore = "measures: make bench-operator"]
fn idle_operator_asks_for_nothing() {
    kit::run("numbers-idle", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let operator = Process::leading(&kit).await;
        let mut before = operator.counters(&kit).await;
        loop {
            tokio::time::sleep(QUIET_TIME).await; // what is measured is silence
            let now = operator.counters(&kit).await;
            if now.requests == before.requests {
                break;
            }
            before = now;
        }
        let (used, began) = (operator.usage(), Instant::now());
        tokio::time::sleep(IDLE_TIME).await; // what is measured is silence
        let usage = operator.usage();
        let cpu = 100.0 * (usage.cpu - used.cpu).as_secs_f64() / began.elapsed().as_secs_f64();
        kit.say(format_args!(
            "idle operator: {cpu:.2} % of a core {}",
            IDLE_CPU_GOAL.beside(cpu)
        ));
        let (now, peak) = (mib(usage.rss), mib(usage.peak_rss));
        kit.say(format_args!(
            "idle operator: {now:.1} MiB {}, peak {peak:.1}",
            MEMORY_GOAL.beside(now)
        ));
        let requests = requests_in_passes(&kit, &operator).await;
        kit.say(format_args!(
            "requests to the API server in {OBSERVED_PASSES} passes over a settled cluster: {requests} {}",
            REQUESTS_GOAL.beside(requests)
        ));
    });
}

/// Requests in passes over a settled cluster. Those between passes are look-ups of kinds that may be installed later.
async fn requests_in_passes(kit: &Kit, operator: &Process) -> f64 {
    let (mut passes, mut requests) = (0, 0.0);
    let mut before = operator.counters(kit).await;
    while passes < OBSERVED_PASSES {
        tokio::time::sleep(POLL_INTERVAL).await; // between looks
        let now = operator.counters(kit).await;
        if now.passes > before.passes {
            passes += 1;
            requests += now.requests - before.requests;
        }
        before = now;
    }
    requests
}

#[test]
#[ignore = "measures: make bench-operator"]
fn operator_starts_with_many_clusters() {
    kit::run("numbers-many", async |kit| {
        let began = Instant::now();
        let mut spec = embedded();
        spec["replicas"] = json!(0);
        for number in 0..MANY_CLUSTERS {
            kit.brains(&format!("many-{number:03}"), spec.clone()).await;
        }
        until_all_are_seen(&kit, MANY_CLUSTERS_TIMEOUT).await;
        kit.say(format_args!(
            "{MANY_CLUSTERS} clusters without members made from nothing: {:.1} s",
            began.elapsed().as_secs_f32()
        ));
        scale_operator(&kit, 0).await;
        // of no consequence, but the operator must observe it
        let patch = Patch::Merge(json!({"spec": {"updateStrategy": {"progressDeadlineSeconds": 601}}}));
        for number in 0..MANY_CLUSTERS {
            let clusters = kit.api::<KubeBrainCluster>();
            let name = format!("many-{number:03}");
            clusters.patch(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        let began = Instant::now();
        scale_operator(&kit, 2).await;
        until_all_are_seen(&kit, MANY_CLUSTERS_TIMEOUT).await;
        let took = began.elapsed().as_secs_f64();
        kit.say(format_args!(
            "{MANY_CLUSTERS} clusters reconciled after a start of the operator: {took:.1} s {}",
            START_GOAL.beside(took)
        ));
        let usage = Process::leading(&kit).await.usage();
        let (now, peak) = (mib(usage.rss), mib(usage.peak_rss));
        kit.say(format_args!(
            "operator of {MANY_CLUSTERS} clusters: {now:.1} MiB {}, peak {peak:.1} {}",
            MEMORY_OF_MANY.beside(now),
            MEMORY_OF_MANY.beside(peak)
        ));
    });
}

/// Waits until the operator has judged the newest spec of every cluster.
async fn until_all_are_seen(kit: &Kit, limit: Duration) {
    let deadline = Instant::now() + limit;
    let seen = |cluster: &KubeBrainCluster| {
        is_observed(cluster) && condition(cluster, "Available").is_some_and(|it| it.reason == "Suspended")
    };
    loop {
        let clusters = kit.api::<KubeBrainCluster>().list(&ListParams::default()).await;
        let clusters = clusters.unwrap().items;
        let left: Vec<_> = clusters.iter().filter(|cluster| !seen(cluster)).collect();
        match left.first() {
            None if clusters.len() == MANY_CLUSTERS => return,
            Some(left) if Instant::now() > deadline => panic!("{}", brains::in_words(left)),
            _ => tokio::time::sleep(POLL_INTERVAL).await, // a watch of all would not be simpler
        }
    }
}

/// Scales the operator to this many replicas. For 0, waits until its pods are gone.
async fn scale_operator(kit: &Kit, replicas: usize) {
    let scale = format!("--replicas={replicas}");
    let name = "deployment/kubebrain-operator";
    kit.kubectl()
        .run(["--namespace", OPERATOR_NAMESPACE, "scale", name, &scale])
        .unwrap();
    if replicas > 0 {
        return;
    }
    kit.eventually("without an operator", async || {
        let pods = kit.operator_pods().list(&ListParams::default()).await;
        match pods.map_err(|error| error.to_string())?.items.first() {
            Some(pod) => Err(format!("{} is there", pod.name_any())),
            None => Ok(()),
        }
    })
    .await;
}

#[test]
#[ignore = "measures: make bench-operator"]
fn three_members_from_nothing() {
    kit::run("numbers-nothing", async |kit| {
        let tikv = Tikv::start(&kit).await;
        for name in ["a", "b", "c"].into_iter().take(ROUNDS) {
            let brains = kit.brains(name, on_tikv(&tikv.pd, MEMBERS)).await;
            let took = brains.until_ready().await.as_secs_f64();
            kit.say(format_args!(
                "three members from nothing to Ready: {took:.1} s {}",
                READY_GOAL.beside(took)
            ));
            let clusters = kit.api::<KubeBrainCluster>();
            clusters.delete(name, &Default::default()).await.unwrap();
            kit.until_gone::<KubeBrainCluster>(name).await;
        }
    });
}

#[test]
#[ignore = "measures: make bench-operator"]
fn writes_wait_while_members_are_replaced() {
    kit::run("numbers-stall", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        for round in 0..ROUNDS {
            let load = Load::start(&brains, MEMBERS, &watched, None).await;
            // its newest version, and then again and again
            brains
                .patch(match round {
                    0 => json!({"version": version(BRAIN_NEXT)}),
                    _ => json!({"restartedAt": format!("2026-01-01T00:00:0{round}Z")}),
                })
                .await;
            brains.until_ready().await;
            load.acknowledge(50).await;
            let outcome = load.end().await;
            let longest = outcome.longest.0.as_secs_f64() * 1000.0;
            kit.say(format_args!(
                "longest write while three members were replaced: {longest:.0} ms {}, failed {}",
                STALL_GOAL.beside(longest),
                outcome.failed.len()
            ));
        }
    });
}

#[test]
#[ignore = "measures: make bench-operator"]
fn leader_label_follows() {
    kit::run("numbers-leader", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        leader::measure(&brains).await;
    });
}
