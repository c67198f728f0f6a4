//! The cluster's store is killed under load, and everything continues to work.

use std::time::Duration;

use e2e_cluster::{kubelet, store};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use programs::watchdog::Watchdog;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::harness::exclusive;
use crate::writers::{Load, RECOVERY_TIMEOUT, WRITERS};

const KILLS: usize = 10;
/// Set to another number of kills for a longer run.
const KILLS_VARIABLE: &str = "KUBEBRAIN_KILLS";
/// Acknowledged writes between two kills.
const WRITES_PER_KILL: usize = 100;
const NAMESPACE: &str = "crash";

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_loses_nothing_that_was_acknowledged() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |kills| kills.parse().unwrap());
    let it = exclusive().await;
    let _deadline = Watchdog::within(RECOVERY_TIMEOUT * u32::try_from(kills + 5).unwrap());
    // lines about a batch that was never acknowledged, and from the operator, if it runs, while its API server does not answer
    for text in [
        "truncated an incomplete, unacknowledged batch",
        "a watch was interrupted",
        "watch interrupted; will retry",
        "no answer from the lock",
        "the lock of the election answers slowly",
        "could not renew the lease",
    ] {
        it.cluster.expect_log(text).unwrap();
    }
    let client = it.cluster.client().await.unwrap();
    let load = Load::start(&client, NAMESPACE).await;
    let step = it.progress.step(format_args!("store killed {kills} times under load"));
    let mut slowest = Duration::ZERO;
    for _ in 0..kills {
        load.acknowledge(WRITES_PER_KILL).await;
        let killed = it.cluster.state().unwrap().programs[store::NAME];
        let before = load.newest();
        assert!(killed.signal(Signal::KILL), "the store had ended by itself");
        let at = Instant::now();
        until(
            || it.cluster.state().unwrap().programs[store::NAME] != killed,
            "the store was started again",
        )
        .await;
        load.acknowledge(WRITERS + 1).await; // at least one was begun after the kill
        slowest = slowest.max(at.elapsed());
        let listed: i64 = load.list().await.metadata.resource_version.unwrap().parse().unwrap();
        assert!(
            listed >= before,
            "the list is of {listed}, {before} was acknowledged before the kill"
        );
    }
    step.done();
    let written = load.end().await;
    it.progress
        .say(format_args!("  {written}; back after {slowest:?} at most"));
    the_cluster_works(&client).await;
    tokio::task::block_in_place(|| it.watch_agrees_with_list());
}

pub(crate) async fn until(reached: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    while !reached() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Controllers, scheduler and kubelet have found back too.
async fn the_cluster_works(client: &kube::Client) {
    kubelet::ready(client).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "after"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "after"}},
            "template": {
                "metadata": {"labels": {"app": "after"}},
                "spec": {"containers": [{"name": "serve", "image": "kubebrain.io/pod:e2e", "args": ["serve"]}]},
            },
        },
    }));
    deployments
        .create(&PostParams::default(), &deployment.unwrap())
        .await
        .unwrap();
    let available = await_condition(deployments, "after", |deployment: Option<&Deployment>| {
        deployment.and_then(|it| it.status.as_ref()?.available_replicas) == Some(2)
    });
    timeout(RECOVERY_TIMEOUT, available)
        .await
        .expect("two pods in time")
        .unwrap();
}
