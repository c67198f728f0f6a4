//! An installation of the last release, with its programs and its manifests, is upgraded to this version while clients write.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use e2e_cluster::cluster::Cluster;
use e2e_cluster::images::{BRAIN_NEXT, Image, OPERATOR};
use e2e_cluster::kubectl::Kubectl;
use e2e_cluster::{containerd, demo};
use kube::ResourceExt as _;
use programs::progress::Progress;
use programs::tools::Tools;
use programs::tools::cache::ToolCache;
use serde_json::json;
use wire::etcdserverpb as pb;

use super::brains::{Brains, embedded, on_tikv, version};
use super::kit::{self, OPERATOR_NAMESPACE};
use super::load::Load;
use super::pods::Watched;
use super::tikv::Tikv;
use crate::chart::{helm_alone, manifests, said};
use crate::harness::own_blocking;

/// The source of the last release, with its programs in `target/debug`.
const RELEASE_VARIABLE: &str = "KUBEBRAIN_RELEASE";
/// The tag of the operator of the release. Its brain has the tag of its version, which this version still has, too.
const RELEASED_OPERATOR: &str = "released";
const MEMBERS: usize = 3;
/// Keys of the cluster with one member.
const KEYS: i64 = 1_000;

fn release(path: &str) -> PathBuf {
    let source = std::env::var_os(RELEASE_VARIABLE);
    let source = source.unwrap_or_else(|| panic!("{RELEASE_VARIABLE} is not set: run `make test-upgrade`"));
    PathBuf::from(source).join(path)
}

/// Gives the cluster the images of the release: instead of the brain, which it has under a later version, too, and beside the operator.
fn import_images(cluster: &Cluster, progress: &Progress) {
    let (cache, home) = (ToolCache::open().unwrap(), cluster.home());
    let import = |image: &Image| containerd::import(home, &image.archive(&cache, progress).unwrap()).unwrap();
    Image::of_build(&release("target/debug")).iter().for_each(import);
    let released = OPERATOR.replace(version(OPERATOR), RELEASED_OPERATOR);
    containerd::tag(home, OPERATOR, &released).unwrap();
    let own = Image::of_product(&Tools::prepare(progress).unwrap()).unwrap();
    own.iter().filter(|image| image.tag == OPERATOR).for_each(import);
}

/// A way to install the operator.
#[derive(Clone, Copy)]
enum InstallMethod {
    Kustomize,
    Helm,
}

impl InstallMethod {
    fn install_release(self, kubectl: &Kubectl) {
        match self {
            Self::Kustomize => {
                let directory = release("manifests/yaml");
                let objects = kubectl.run([OsStr::new("kustomize"), directory.as_os_str()]).unwrap();
                let image = OPERATOR.replace(version(OPERATOR), RELEASED_OPERATOR);
                assert!(objects.contains(OPERATOR));
                kubectl.apply(&objects.replace(OPERATOR, &image)).unwrap();
            }
            Self::Helm => {
                let chart = release("manifests/helm/kubebrain-operator");
                let tag = format!("image.tag={RELEASED_OPERATOR}");
                helm_upgrade(kubectl, &chart, &["--set", &tag]);
            }
        }
        until_rolled_out(kubectl);
    }

    fn install_this(self, kubectl: &Kubectl, progress: &Progress) {
        match self {
            Self::Kustomize => demo::install_operator(kubectl, progress).unwrap(),
            // Without a value Helm takes those of the former release.
            Self::Helm => helm_upgrade(kubectl, &manifests("helm/kubebrain-operator"), &["--set", "image.tag="]),
        }
        until_rolled_out(kubectl);
    }
}

fn helm_upgrade(kubectl: &Kubectl, chart: &Path, more: &[&str]) {
    let kubeconfig = kubectl.kubeconfig();
    let words = [
        "upgrade",
        "--install",
        "kubebrain-operator",
        chart.to_str().unwrap(),
        "--namespace",
        OPERATOR_NAMESPACE,
        "--create-namespace",
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
    ];
    said(helm_alone(&[&words, more].concat()));
}

fn until_rolled_out(kubectl: &Kubectl) {
    let deployment = "deployment/kubebrain-operator";
    let words = [
        "--namespace",
        OPERATOR_NAMESPACE,
        "rollout",
        "status",
        deployment,
        "--timeout=120s",
    ];
    kubectl.run(words).unwrap();
}

/// The uid of each pod by its name, with the number of its restarts.
async fn pods(brains: &Brains<'_>) -> BTreeMap<String, (String, i32)> {
    let pods = brains.pods().await.into_iter().map(|pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let restarts = statuses.map(|status| status.restart_count).sum();
        (pod.name_any(), (pod.uid().unwrap(), restarts))
    });
    pods.collect()
}

async fn write_keys(brains: &Brains<'_>) {
    let mut kv = Box::pin(brains.kv()).await;
    for number in 0..KEYS {
        let put = pb::PutRequest {
            key: format!("kept/{number}").into(),
            value: vec![b'v'; 2_000].into(),
            ..pb::PutRequest::default()
        };
        kv.put(put).await.unwrap();
    }
}

fn is_upgraded(method: InstallMethod, namespace: &str) {
    let harness = own_blocking(namespace, |cluster, progress| {
        import_images(cluster, progress);
        method.install_release(cluster.kubectl());
    });
    kit::run_alone(harness, namespace, async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, MEMBERS)).await;
        let single = kit.brains("b", embedded()).await;
        brains.until_ready().await;
        single.until_ready().await;
        write_keys(&single).await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, MEMBERS, &watched, None).await;
        load.acknowledge(50).await;

        // a newer operator replaces no pod of a cluster
        let before = (pods(&brains).await, pods(&single).await);
        method.install_this(&kit.kubectl(), &kit.harness().progress);
        for cluster in [&brains, &single] {
            cluster
                .patch(json!({"updateStrategy": {"progressDeadlineSeconds": 601}}))
                .await;
            cluster.until_ready().await;
        }
        load.acknowledge(50).await;
        assert_eq!((pods(&brains).await, pods(&single).await), before);

        for cluster in [&brains, &single] {
            cluster.patch(json!({"version": version(BRAIN_NEXT)})).await;
        }
        for cluster in [&brains, &single] {
            cluster.until_ready().await;
            for pod in cluster.pods().await {
                assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some(BRAIN_NEXT));
            }
        }
        load.acknowledge(50).await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "failed writes: {:#?}", outcome.failed);
        assert_eq!(single.count_keys().await, KEYS);
        write_keys(&single).await;
        kit.number(
            "longest write in an upgrade from the last release",
            outcome.longest.0,
            None,
        );
    });
}

#[test]
#[ignore = "it needs the programs of the last release: `make test-upgrade`"]
fn installation_by_kustomize_is_upgraded_without_a_failed_write() {
    is_upgraded(InstallMethod::Kustomize, "yaml");
}

#[test]
#[ignore = "it needs the programs of the last release: `make test-upgrade`"]
fn installation_by_helm_is_upgraded_without_a_failed_write() {
    is_upgraded(InstallMethod::Helm, "chart");
}
