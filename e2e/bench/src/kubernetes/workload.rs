//! Nodes that kwok plays, and Deployments on them. Watches say when a phase is done.

use std::collections::BTreeMap;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::json;

use super::follow::{Follower, Reached};
use super::rollout::RolloutState;

/// Requests at a time to create, change and delete objects.
const CONCURRENT_REQUESTS: usize = 32;
/// The label of everything that is made here.
const LABEL: &str = "kubebrain.io/bench=true";
/// The namespace of the leases by which nodes say that they live.
const NODE_LEASES: &str = "kube-node-lease";
/// Most pods of a node, unless there are more pods for each than half of it: a rollout runs more pods than there are before and after it.
const PODS_PER_NODE: u64 = 110;

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSize {
    pub(super) nodes: u64,
    pub(super) pods: u64,
    pub(super) deployments: u64,
    pub(super) namespaces: u64,
}

impl ClusterSize {
    /// Replicas of each Deployment: as even as can be.
    fn replicas(self) -> impl Iterator<Item = u64> {
        let (each, more) = (self.pods / self.deployments, self.pods % self.deployments);
        (0..self.deployments).map(move |n| each + u64::from(n < more))
    }
}

/// The objects that are made in one cluster.
pub(super) struct Workload<'a> {
    pub(super) client: kube::Client,
    pub(super) size: ClusterSize,
    pub(super) follower: Follower<'a>,
}

impl Workload<'_> {
    /// Creates the namespaces, and waits until pods can be created in them.
    pub(super) async fn prepare(&self) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let names = (0..self.size.namespaces).map(namespace);
        let objects = names.map(|name| json!({"metadata": {"name": name, "labels": label()}}));
        each(objects, async |object| create(&namespaces, object).await).await?;
        let accounts = Api::<ServiceAccount>::all(self.client.clone());
        let config = watcher::Config::default().fields("metadata.name=default");
        let is_ours = |account: &ServiceAccount| {
            let namespace = account.metadata.namespace.as_deref();
            namespace.is_some_and(|namespace| namespace.starts_with("bench-"))
        };
        let wanted = self.size.namespaces;
        let reached = |all: &BTreeMap<String, bool>| Reached::count(all.values().filter(|is_ours| **is_ours), wanted);
        self.follower
            .until("namespaces", accounts, config, is_ours, reached)
            .await
    }

    /// Creates the nodes, and waits until each can run pods and has a lease.
    pub(super) async fn join(&self) -> anyhow::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let room = PODS_PER_NODE.max(2 * self.size.pods.div_ceil(self.size.nodes));
        let names = (0..self.size.nodes).map(|n| format!("node-{n}"));
        each(names.map(|name| node(&name, room)), async |object| {
            create(&nodes, object).await
        })
        .await?;
        let wanted = self.size.nodes;
        let reached = |all: &BTreeMap<String, bool>| Reached::count(all.values().filter(|is_ready| **is_ready), wanted);
        let config = watcher::Config::default;
        self.follower
            .until("nodes Ready", nodes, config(), is_ready, reached)
            .await?;
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASES);
        let is_held = |lease: &Lease| lease.spec.as_ref().is_some_and(|spec| spec.renew_time.is_some());
        self.follower
            .until("leases of nodes", leases, config(), is_held, reached)
            .await
    }

    /// Creates the Deployments, and waits until all their pods are ready.
    pub(super) async fn create(&self) -> anyhow::Result<()> {
        let objects = self
            .size
            .replicas()
            .zip(0..)
            .map(|(replicas, n)| deployment(n, replicas));
        each(objects.zip(0..), async |(object, n)| {
            create(&self.deployments(n), object).await
        })
        .await?;
        self.rolled_out("pods Running").await
    }

    /// Changes the template of each Deployment, and waits until all pods are new ones.
    pub(super) async fn roll(&self) -> anyhow::Result<()> {
        let template = json!({"metadata": {"annotations": {"kubebrain.io/rolled": "true"}}});
        let patch = Patch::Merge(json!({"spec": {"template": template}}));
        each(0..self.size.deployments, async |n| {
            let patched = self
                .deployments(n)
                .patch(&name(n), &PatchParams::default(), &patch)
                .await;
            patched.map(drop).context("change a Deployment")
        })
        .await?;
        self.rolled_out("pods replaced").await
    }

    /// Deletes the Deployments, and waits until they are gone. They go after their pods.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        each(0..self.size.deployments, async |n| {
            let deleted = self.deployments(n).delete(&name(n), &DeleteParams::foreground()).await;
            deleted.map(drop).context("delete a Deployment")
        })
        .await?;
        let wanted = self.size.deployments;
        let reached = |all: &BTreeMap<String, ()>| Reached {
            count: wanted.saturating_sub(all.len() as u64),
            of: wanted,
            is_done: all.is_empty(),
        };
        let all = Api::<Deployment>::all(self.client.clone());
        self.follower
            .until("Deployments deleted", all, ours(), |_| (), reached)
            .await
    }

    async fn rolled_out(&self, what: &str) -> anyhow::Result<()> {
        let all = Api::<Deployment>::all(self.client.clone());
        let (pods, deployments) = (self.size.pods, self.size.deployments);
        let reached = |all: &BTreeMap<String, RolloutState>| Reached {
            count: all.values().map(|state| state.pods()).sum(),
            of: pods,
            is_done: all.len() as u64 == deployments && all.values().all(|state| state.is_complete()),
        };
        self.follower.until(what, all, ours(), RolloutState::of, reached).await
    }

    /// The Deployments of the namespace of the `n`-th.
    fn deployments(&self, n: u64) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &namespace(n % self.size.namespaces))
    }
}

fn ours() -> watcher::Config {
    watcher::Config::default().labels(LABEL)
}

fn namespace(n: u64) -> String {
    format!("bench-{n}")
}

fn name(n: u64) -> String {
    format!("load-{n}")
}

fn label() -> serde_json::Value {
    let (key, value) = LABEL.split_once('=').unwrap_or((LABEL, ""));
    json!({ key: value })
}

fn node(name: &str, pods: u64) -> serde_json::Value {
    let room = json!({"cpu": "32", "memory": "256Gi", "pods": pods.to_string()});
    json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {"allocatable": room, "capacity": room},
    })
}

fn deployment(n: u64, replicas: u64) -> serde_json::Value {
    let app = json!({"app": name(n)});
    let container = json!({
        "name": "app",
        "image": "registry.example/app:1",
        "env": [{"name": "GREETING", "value": "hello"}],
        "ports": [{"containerPort": 8080}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    });
    json!({
        "metadata": {"name": name(n), "labels": label()},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": {"containers": [container]}},
        },
    })
}

async fn create<K>(api: &Api<K>, object: serde_json::Value) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object)?;
    let created = api.create(&PostParams::default(), &object).await;
    created.map(drop).context("create an object")
}

/// Sends a request for each item, some at a time.
async fn each<T>(items: impl Iterator<Item = T>, request: impl AsyncFn(T) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let requests = stream::iter(items).map(|item| request(item));
    requests.buffer_unordered(CONCURRENT_REQUESTS).try_collect().await
}

/// Returns true if kwok has made a node Ready, and the taints that kept pods away are gone.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    is_ready && taints.is_none_or(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_spread_evenly() {
        let size = ClusterSize {
            nodes: 1,
            pods: 11,
            deployments: 4,
            namespaces: 2,
        };
        assert_eq!(size.replicas().collect::<Vec<_>>(), [3, 3, 3, 2]);
    }

    #[test]
    fn a_node_with_a_taint_is_not_ready() {
        let node = |taints: serde_json::Value, status: &str| {
            let conditions =
                json!([{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status}]);
            serde_json::from_value(json!({"spec": {"taints": taints}, "status": {"conditions": conditions}})).unwrap()
        };
        let taint = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
        assert!(is_ready(&node(json!(null), "True")));
        assert!(!is_ready(&node(taint, "True")));
        assert!(!is_ready(&node(json!(null), "False")));
        assert!(!is_ready(&Node::default()));
    }
}
