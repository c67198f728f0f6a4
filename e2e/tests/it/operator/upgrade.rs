//! Rolling upgrades to a second version of the brain, under a write load through every member and through a tenant's kube-apiserver.

use std::time::Duration;

use crds::KubeBrainCluster;
use e2e_cluster::images::{BRAIN, BRAIN_NEXT};
use e2e_cluster::tenant::Tenant;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{EvictParams, LogParams, Patch, PatchParams};
use serde_json::json;

use super::brains::{Brains, condition, is_observed, on_tikv, version};
use super::controllers::Controllers;
use super::kit::{self, STATE_TIMEOUT};
use super::load::Load;
use super::pods::{self, Change, History, Watched};
use super::processes;
use super::tikv::Tikv;
use crate::writers;

const MEMBERS: usize = 3;
/// The address of the tenant's Service; that of the demo is another.
const TENANT: &str = "10.96.0.21";
/// The longest time that writes should stall in a planned hand-over, on a machine that does nothing else.
const STALL_GOAL: Duration = Duration::from_millis(150);

/// The tenant's API server on these brains, ready, and a client of it.
async fn tenant(brains: &Brains<'_>) -> kube::Client {
    let kit = brains.kit;
    let home = kit.harness().cluster.home().clone();
    let url = format!("https://{TENANT}:6443");
    let tenant = Tenant {
        name: "upgrade",
        namespace: &kit.namespace,
        brain: &brains.name,
        members: MEMBERS,
        address: TENANT,
    };
    tenant.create(&home, &kit.kubectl(), &url).unwrap();
    let available = |deployment: &Deployment| {
        let status = deployment.status.as_ref();
        status.is_some_and(|status| status.available_replicas == Some(1))
    };
    kit.until::<Deployment>("tenant-apiserver", "available", STATE_TIMEOUT, available)
        .await;
    let kubeconfig = home.path("upgrade.kubeconfig");
    let client = e2e_cluster::inside::client_at(&kubeconfig, &url).await.unwrap();
    // the Service leads to it some time after that
    kit.eventually("reached by its Service", async || {
        let ready = e2e_cluster::apiserver::ready(&client).await;
        ready.map_err(|error| format!("{error:#}"))
    })
    .await;
    client
}

/// Every member runs the image, was asked to end once, the former leader last, and never more than one was away.
#[track_caller]
fn check_order(history: &History, leader: &str, image: &str) {
    let ended = history.ended();
    let mut sorted = ended.clone();
    sorted.sort_unstable();
    let names: Vec<&String> = history.now.keys().collect();
    assert_eq!(sorted, names, "each was asked to end once: {:#?}", history.changes);
    assert_eq!(ended.last(), Some(&leader), "the leader last: {ended:?}");
    assert!(
        history.now.values().all(|pod| pods::image(pod) == image),
        "all run {image}"
    );
    assert!(
        history.fewest.is_none_or(|fewest| fewest >= MEMBERS - 1),
        "{:?} served at a time: {:#?}",
        history.fewest,
        history.changes
    );
}

#[test]
fn rolling_upgrade_fails_no_write_and_moves_the_leader_once() {
    kit::run("upgrade-load", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        let tenant = tenant(&brains).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        let controllers = Controllers::start(&kit, "upgrade", &tenant).await;
        controllers.scale(&kit, 2).await;
        let through_tenant = writers::Load::start(&tenant, "load").await;
        through_tenant.acknowledge(20).await;
        let leader = brains.leader().await;
        let step = kit
            .harness()
            .progress
            .step("three members upgraded one by one under load");
        brains.patch(json!({"version": version(BRAIN_NEXT)})).await;
        brains.until_ready().await;
        step.done();
        load.acknowledge(50).await;
        through_tenant.acknowledge(50).await;
        check_order(&watched.history(), &leader, BRAIN_NEXT);
        let successor = brains.leader().await;
        assert_ne!(successor, leader);
        let log = kit.api::<Pod>().logs(&successor, &LogParams::default()).await.unwrap();
        let has_led = |line: &&str| line.contains(r#""msg":"leading""#);
        let led: Vec<&str> = log.lines().filter(has_led).collect();
        assert!(
            matches!(led[..], [line] if line.contains(r#""predecessor":"Named""#)),
            "the lock was not handed over: {led:#?}"
        );
        let outcome = load.end().await;
        let gap = through_tenant.longest_gap();
        let failed = through_tenant.failed();
        let said = through_tenant.end().await;
        kit.say(format_args!(
            "through the tenant: {said}; the longest gap {} ms",
            gap.as_millis()
        ));
        assert!(outcome.failed.is_empty(), "failed writes: {:#?}", outcome.failed);
        assert_eq!(failed, 0, "through the tenant: {said}");
        controllers.scale(&kit, 4).await;
        controllers.check().await;
        kit.number(
            "longest write in a rolling upgrade with a planned hand-over",
            outcome.longest.0,
            Some(STALL_GOAL),
        );
        assert_eq!(outcome.epochs.len(), 2, "epochs of leaders: {:?}", outcome.epochs);
    });
}

#[test]
fn broken_image_stops_after_one_pod_and_heals_when_corrected() {
    kit::run_troubled("upgrade-broken", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let mut spec = on_tikv(&tikv.pd, MEMBERS);
        spec["updateStrategy"]["progressDeadlineSeconds"] = json!(10);
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        let leader = brains.leader().await;
        brains.patch(json!({"version": "9.9.9"})).await;
        brains
            .until_condition("Progressing", "False", &["DeadlineExceeded"])
            .await;
        brains.until_condition("Degraded", "True", &[]).await;
        let history = watched.history();
        assert_eq!(history.ended().len(), 1, "one pod was replaced: {:#?}", history.changes);
        assert_ne!(history.ended(), [leader.as_str()], "not the leader");
        brains.patch(json!({"version": version(BRAIN_NEXT)})).await;
        brains.until_ready().await;
        let history = watched.history();
        assert!(history.now.values().all(|pod| pods::image(pod) == BRAIN_NEXT));
        assert!(
            history.fewest.is_none_or(|fewest| fewest >= MEMBERS - 1),
            "{:#?}",
            history.changes
        );
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert_eq!(outcome.epochs.len(), 2, "{:?}", outcome.epochs);
    });
}

#[test]
fn upgrade_goes_on_after_a_pause_an_eviction_and_the_death_of_the_operator() {
    kit::run_troubled("upgrade-disturbed", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        brains.patch(json!({"version": version(BRAIN_NEXT)})).await;
        until_replaced(&brains, &watched, 1).await;
        brains.patch(json!({"paused": true})).await;
        let paused = |cluster: &KubeBrainCluster| {
            let progressing = condition(cluster, "Progressing");
            is_observed(cluster) && progressing.is_some_and(|progressing| progressing.reason == "Paused")
        };
        brains.until("paused", paused).await;
        // one that was asked to end before the pause has come back by now, or does so without the operator
        kit.eventually("all ready", async || {
            let serving = watched.history().now.values().filter(|pod| pods::serves(pod)).count();
            (serving == MEMBERS).then_some(()).ok_or(format!("{serving} serve"))
        })
        .await;
        let before = watched.history().ended().len();
        assert!(before < MEMBERS, "it was not paused in between");
        load.acknowledge(300).await;
        assert_eq!(
            watched.history().ended().len(),
            before,
            "a pod was replaced in the pause"
        );
        brains.patch(json!({"paused": false})).await;
        processes::kill_operator(&kit).await;
        evict_an_old_follower(&brains).await;
        brains.until_ready().await;
        let history = watched.history();
        assert!(history.now.values().all(|pod| pods::image(pod) == BRAIN_NEXT));
        assert!(
            history.fewest.is_none_or(|fewest| fewest >= MEMBERS - 1),
            "{:#?}",
            history.changes
        );
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert!(outcome.epochs.len() <= 2, "{:?}", outcome.epochs);
    });
}

/// Evicts a member that still has the old image and does not lead, as soon as the budget allows it. Does nothing if none is left.
async fn evict_an_old_follower(brains: &Brains<'_>) {
    let pods = brains.kit.api::<Pod>();
    brains
        .kit
        .eventually("evicted", async || {
            let leader = brains.leader().await;
            let old = |pod: &&Pod| {
                let ends = pod.metadata.deletion_timestamp.is_some();
                pods::image(pod) == BRAIN && pod.name_any() != leader && !ends
            };
            let Some(name) = brains.pods().await.iter().find(old).map(|pod| pod.name_any()) else {
                return Ok(());
            };
            match pods.evict(&name, &EvictParams::default()).await {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
}

/// Waits until this many pods of the next version serve.
async fn until_replaced(brains: &Brains<'_>, watched: &Watched, count: usize) {
    brains
        .kit
        .eventually("replaced", async || {
            let history = watched.history();
            let next = |pod: &&Pod| pods::image(pod) == BRAIN_NEXT && pods::serves(pod);
            let replaced = history.now.values().filter(next).count();
            (replaced >= count)
                .then_some(())
                .ok_or(format!("{replaced} of {count}"))
        })
        .await;
}

#[test]
fn leader_moves_when_asked_and_only_once() {
    kit::run("upgrade-transfer", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        let leader = brains.leader().await;
        let next = brains
            .pods()
            .await
            .iter()
            .map(|pod| pod.name_any())
            .find(|name| *name != leader);
        let next = next.unwrap();
        brains.annotate("kubebrain.io/transfer-leader", &next).await;
        let moved = |cluster: &KubeBrainCluster| super::brains::leader(cluster).is_some_and(|leader| leader == next);
        brains.until("led by the other", moved).await;
        kit.eventually("the new leader behind its Service", async || {
            let behind = brains.endpoints("leader").await;
            (behind == [next.clone()])
                .then_some(())
                .ok_or(format!("{behind:?} are behind it"))
        })
        .await;
        // a change that restarts nothing
        let labels = Patch::Merge(json!({"spec": {"inheritedMetadata": {"labels": {"team": "storage"}}}}));
        let api = kit.api::<KubeBrainCluster>();
        api.patch("a", &PatchParams::default(), &labels).await.unwrap();
        brains.until_ready().await;
        load.acknowledge(50).await;
        let history = watched.history();
        let replaced = |(_, change): &&(String, Change)| matches!(change, Change::Ending(_) | Change::Made(_));
        let replaced: Vec<_> = history.changes.iter().filter(replaced).collect();
        assert!(replaced.is_empty(), "{replaced:?}");
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert_eq!(outcome.epochs.len(), 2, "{:?}", outcome.epochs);
    });
}
