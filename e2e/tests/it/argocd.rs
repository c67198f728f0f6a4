//! A real Argo CD (application-controller and repo-server as processes, no images) and a git repository with the install files.

mod repository;
mod servers;
mod site;

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use e2e_cluster::images::BRAIN_NEXT;
use e2e_cluster::inside;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;
use testkit::goal::Goal;
use tokio::time::Instant;

use crate::harness::shared_blocking;
use repository::Repository;
use site::{BRAINS, Incarnations, Site, synced_at, text};

const ROOT: &str = "kubebrain";
/// The Applications in order of their waves; the last one holds the clusters.
const WAVES: [&str; 4] = ["kubebrain-definition", "kubebrain-operator", "tenant-secrets", CLUSTERS];
/// Namespace of the operator.
const OPERATOR_NAMESPACE: &str = "kubebrain-system";
const CLUSTERS: &str = "tenant-cluster";
/// Seconds from a commit of a new cluster until it is Synced and Healthy.
const NEW_CLUSTER_GOAL: Goal = Goal::AtMost(30.0);
const REFRESHES: usize = 20;

#[test]
#[ignore = "needs Argo CD: make test-argocd"]
fn clusters_in_git_are_synced_healed_upgraded_and_pruned() {
    let harness = shared_blocking();
    // an image is missing in between
    for text in [format!("/pods/{BRAINS}_"), format!(".{BRAINS}\"")] {
        harness.cluster.expect_log(&text).unwrap();
    }
    let home = harness.cluster.home().clone();
    let ran = inside::run(&home, async || {
        let site = Site::start(harness).await;
        Box::pin(everything_comes_in_waves(&site)).await;
        Box::pin(new_cluster_is_healthy_soon(&site)).await;
        Box::pin(refreshes_find_no_drift(&site)).await;
        Box::pin(changes_by_hand_are_taken_back(&site)).await;
        Box::pin(action_restarts_once(&site)).await;
        Box::pin(upgrade_is_progressing_then_healthy(&site)).await;
        Box::pin(broken_upgrade_is_degraded_until_corrected(&site)).await;
        Box::pin(pruning_leaves_retained_claims(&site)).await;
    });
    ran.unwrap();
}

/// Each wave waits until the former one is healthy.
async fn everything_comes_in_waves(site: &Site) {
    let revision = site.repository.commit("the platform");
    let began = Instant::now();
    site.kubectl.apply(&Repository::app_of_apps()).unwrap();
    site.until_healthy(ROOT, &revision).await;
    let mut former: Option<DynamicObject> = None;
    for name in WAVES {
        let application = site.until_healthy(name, &revision).await;
        let made = application.creation_timestamp().unwrap().0.to_string();
        if let Some(former) = former {
            let (name_of_former, finished) = (former.name_any(), text(&former, "/status/operationState/finishedAt"));
            assert!(
                finished <= made.as_str(),
                "{name} at {made}, {name_of_former} at {finished}"
            );
        }
        former = Some(application);
    }
    // Half of what an Application holds may be healthy while the rest is still to be made.
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), OPERATOR_NAMESPACE);
    let operator = deployments.get("kubebrain-operator").await.unwrap();
    let conditions = operator.status.unwrap().conditions.unwrap();
    let available = conditions.iter().find(|it| it.type_ == "Available").unwrap();
    let next = site.application("tenant-secrets").await.creation_timestamp();
    assert!(
        available.last_transition_time <= next,
        "the next wave came at {next:?}, and the operator: {available:?}"
    );
    site.say(format_args!(
        "from nothing to definition, operator and cluster Synced and Healthy: {:.1} s",
        began.elapsed().as_secs_f32()
    ));
}

async fn new_cluster_is_healthy_soon(site: &Site) {
    let mut second = site.repository.cluster("tenant");
    second["metadata"]["name"] = json!("second");
    site.repository.write("second", &second);
    let began = Instant::now();
    let revision = site.repository.commit("a second cluster");
    site.refresh(CLUSTERS, "normal").await;
    site.until_healthy(CLUSTERS, &revision).await;
    let took = began.elapsed().as_secs_f64();
    site.say(format_args!(
        "Synced and Healthy after a commit of a new cluster: {took:.1} s {}",
        NEW_CLUSTER_GOAL.beside(took)
    ));
    let leader = site.clusters().get("second").await.unwrap().status.unwrap().leader;
    assert!(leader.is_some(), "it is healthy, and nobody leads");
}

async fn refreshes_find_no_drift(site: &Site) {
    let generations = async || -> BTreeMap<String, Option<i64>> {
        let clusters = site.clusters().list(&ListParams::default()).await.unwrap();
        let of = |cluster: &KubeBrainCluster| (cluster.name_any(), cluster.metadata.generation);
        clusters.iter().map(of).collect()
    };
    let (before, mut syncs) = (generations().await, BTreeMap::new());
    for name in WAVES {
        syncs.insert(name, synced_at(&site.application(name).await).to_owned());
    }
    for number in 1..=REFRESHES {
        for name in WAVES {
            site.refresh(name, "hard").await;
            let application = site.application(name).await;
            let sync = text(&application, "/status/sync/status");
            assert_eq!(sync, "Synced", "{name} after {number} refreshes: {}", site.describe());
            assert_eq!(synced_at(&application), syncs[name], "{name} was synced again");
        }
    }
    assert_eq!(generations().await, before);
    site.say(format_args!("no drift after {REFRESHES} forced refreshes"));
}

/// So the next step has something to prove.
async fn changes_by_hand_are_taken_back(site: &Site) {
    let mut cluster = site.repository.cluster("tenant");
    cluster["spec"]["updateStrategy"] = json!({"minReadySeconds": 1, "progressDeadlineSeconds": 15});
    site.repository.write("tenant", &cluster);
    let revision = site.repository.commit("a deadline");
    site.refresh(CLUSTERS, "normal").await;
    site.until_healthy(CLUSTERS, &revision).await;
    let of_git = |cluster: &KubeBrainCluster| {
        let strategy = cluster.spec.update_strategy.as_ref();
        strategy.is_some_and(|strategy| strategy.min_ready_seconds == 1)
    };
    assert!(of_git(&site.clusters().get("tenant").await.unwrap()));
    let patch = Patch::Merge(json!({"spec": {"updateStrategy": {"minReadySeconds": 2}}}));
    let changed = site.clusters().patch("tenant", &PatchParams::default(), &patch).await;
    assert!(!of_git(&changed.unwrap()));
    site.until(site.clusters(), "tenant", "as in git", of_git).await;
    site.until_healthy(CLUSTERS, &revision).await;
}

async fn action_restarts_once(site: &Site) {
    let incarnations = Incarnations::watch(site, "tenant-0");
    let old = site.pods().get("tenant-0").await.unwrap().uid();
    let before = site.application(CLUSTERS).await;
    let revision = text(&before, "/status/sync/revision");
    site.act("tenant", "restart");
    site.until(site.pods(), "tenant-0", "made anew", |pod| pod.uid() != old)
        .await;
    site.until_healthy(CLUSTERS, revision).await;
    for _ in 0..3 {
        site.refresh(CLUSTERS, "hard").await;
    }
    let after = site.until_healthy(CLUSTERS, revision).await;
    assert_eq!(synced_at(&after), synced_at(&before), "the annotation was taken back");
    let cluster = site.clusters().get("tenant").await.unwrap();
    let wish = cluster.annotations()[crds::wishes::RESTART].clone();
    assert_eq!(cluster.status.unwrap().last_handled_restart, Some(wish));
    assert_eq!(incarnations.count(), 2, "one roll-out: the old pod and the new one");
}

/// Commits another version of the cluster, and has Argo CD look at it.
async fn commit_version(site: &Site, version: &str) -> String {
    let mut cluster = site.repository.cluster("tenant");
    cluster["spec"]["version"] = json!(version);
    site.repository.write("tenant", &cluster);
    let revision = site.repository.commit(&format!("tenant: version {version}"));
    site.refresh(CLUSTERS, "normal").await;
    revision
}

/// The version of the second image.
fn next() -> &'static str {
    BRAIN_NEXT.rsplit_once(':').unwrap().1
}

/// The image of the one member.
async fn image(site: &Site) -> String {
    let pod = site.pods().get("tenant-0").await.unwrap();
    pod.spec.unwrap().containers[0].image.clone().unwrap()
}

async fn upgrade_is_progressing_then_healthy(site: &Site) {
    let revision = commit_version(site, next()).await;
    let began = Instant::now();
    site.until_health(CLUSTERS, &revision, "Progressing").await;
    site.until_healthy(CLUSTERS, &revision).await;
    assert_eq!(image(site).await, BRAIN_NEXT);
    site.say(format_args!(
        "upgrade by a commit: Progressing, then Healthy after {:.1} s",
        began.elapsed().as_secs_f32()
    ));
}

async fn broken_upgrade_is_degraded_until_corrected(site: &Site) {
    let revision = commit_version(site, "9.9.9").await;
    let degraded = site.until_health(CLUSTERS, &revision, "Degraded").await;
    let resources = degraded.data["status"]["resources"].as_array().unwrap();
    let tenant = resources.iter().find(|resource| resource["name"] == "tenant").unwrap();
    assert_eq!(tenant["health"]["status"], "Degraded", "{tenant}");
    site.say(format_args!(
        "a broken upgrade is Degraded: {}",
        tenant["health"]["message"]
    ));
    let revision = commit_version(site, next()).await;
    site.until_healthy(CLUSTERS, &revision).await;
    assert_eq!(image(site).await, BRAIN_NEXT);
}

async fn pruning_leaves_retained_claims(site: &Site) {
    let owned = "statefulsets,pods,services,secrets,configmaps,serviceaccounts,poddisruptionbudgets";
    let selector = "--selector=kubebrain.io/cluster=second";
    let list = |kinds: &str| {
        let of = ["--namespace", BRAINS, "get", kinds, selector, "--output=name"];
        site.kubectl.run(of).unwrap()
    };
    assert!(list(owned).contains("statefulset.apps/second"), "{}", list(owned));
    site.repository.remove_cluster("second");
    let revision = site.repository.commit("the second cluster is not needed any more");
    site.refresh(CLUSTERS, "normal").await;
    site.until_gone(site.clusters(), "second").await;
    site.until_healthy(CLUSTERS, &revision).await;
    // Argo CD deletes in the foreground: what the cluster owned went before it.
    assert_eq!(list(owned), "");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(site.client.clone(), BRAINS);
    let claim = claims.get("data-second-0").await.unwrap();
    assert_eq!(claim.metadata.deletion_timestamp, None);
    assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Bound"));
}
