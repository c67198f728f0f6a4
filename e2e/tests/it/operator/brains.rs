//! One `KubeBrainCluster` of a test.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kit::{Kit, STATE_TIMEOUT};

/// Election timing for brains on a busy machine: a leader keeps the lead when it stalls for a moment.
pub(super) fn patient() -> Value {
    json!({"leaseDuration": "4s", "renewDeadline": "3s"})
}

/// A spec of many members on the TiKV that `pd` leads to, quick to change.
pub(super) fn on_tikv(pd: &str, members: usize) -> Value {
    json!({
        "replicas": members,
        "version": version(e2e_cluster::images::BRAIN),
        "storage": {"type": "TiKV", "tikv": {"pdEndpoints": [pd]}},
        "leaderElection": patient(),
        "updateStrategy": {"minReadySeconds": 1},
        "pod": {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}},
    })
}

/// A spec of one member with a volume of its own.
pub(super) fn embedded() -> Value {
    json!({
        "replicas": 1,
        "version": version(e2e_cluster::images::BRAIN),
        "storage": {"type": "Embedded", "embedded": {"size": "1Gi", "whenDeleted": "Delete"}},
        "updateStrategy": {"minReadySeconds": 1},
    })
}

/// The version that an image of the brain is tagged with.
pub(super) fn version(image: &str) -> &str {
    image.rsplit_once(':').unwrap().1
}

/// A cluster of brains by its name.
#[derive(Clone)]
pub(super) struct Brains<'a> {
    pub(super) kit: &'a Kit,
    pub(super) name: String,
}

impl<'a> Brains<'a> {
    pub(super) fn new(kit: &'a Kit, name: &str) -> Self {
        Self {
            kit,
            name: name.to_owned(),
        }
    }

    /// It as it is now.
    pub(super) async fn get(&self) -> KubeBrainCluster {
        self.kit.api::<KubeBrainCluster>().get(&self.name).await.unwrap()
    }

    /// A merge patch of its spec.
    pub(super) async fn patch(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let api = self.kit.api::<KubeBrainCluster>();
        api.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Sets an annotation of it.
    pub(super) async fn annotate(&self, key: &str, value: &str) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let api = self.kit.api::<KubeBrainCluster>();
        api.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until `wanted` accepts it.
    pub(super) async fn until(&self, what: &str, wanted: impl Fn(&KubeBrainCluster) -> bool) -> KubeBrainCluster {
        self.kit.until(&self.name, what, STATE_TIMEOUT, wanted).await
    }

    /// Waits until its newest spec is wholly there, and gives the time that took.
    pub(super) async fn until_ready(&self) -> Duration {
        let began = Instant::now();
        self.until("Ready", is_ready).await;
        began.elapsed()
    }

    /// Waits for a condition with a status and one of some reasons, seen for the newest spec.
    pub(super) async fn until_condition(&self, type_: &str, status: &str, reasons: &[&str]) -> Condition {
        let what = format!("{type_}={status} for {}", reasons.join(" or "));
        let wanted = |cluster: &KubeBrainCluster| {
            let condition = condition(cluster, type_);
            is_observed(cluster)
                && condition.is_some_and(|condition| {
                    condition.status == status && (reasons.is_empty() || reasons.contains(&condition.reason.as_str()))
                })
        };
        let cluster = self.until(&what, wanted).await;
        condition(&cluster, type_).unwrap().clone()
    }

    /// The pod that leads, as soon as one is known to.
    pub(super) async fn leader(&self) -> String {
        let cluster = self.until("led by somebody", |cluster| leader(cluster).is_some()).await;
        leader(&cluster).unwrap()
    }

    /// Its pods by name.
    pub(super) async fn pods(&self) -> Vec<Pod> {
        let selector = format!("kubebrain.io/cluster={},app.kubernetes.io/component=brain", self.name);
        let listed = self
            .kit
            .api::<Pod>()
            .list(&ListParams::default().labels(&selector))
            .await;
        let mut pods = listed.unwrap().items;
        pods.sort_by_key(|pod| pod.metadata.name.clone());
        pods
    }

    /// Names of the ready pods of one of its Services.
    pub(super) async fn endpoints(&self, service: &str) -> Vec<String> {
        let selector = format!("kubernetes.io/service-name={}-{service}", self.name);
        let api = self.kit.api::<EndpointSlice>();
        let slices = api.list(&ListParams::default().labels(&selector)).await.unwrap();
        let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints);
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.is_none_or(|conditions| conditions.ready != Some(false))
        });
        let mut names: Vec<String> = ready.filter_map(|endpoint| endpoint.target_ref?.name).collect();
        names.sort();
        names
    }

    /// Returns the state that the member in a pod reports on its metrics port.
    pub(super) async fn member(&self, pod: &Pod) -> Result<Value, String> {
        let address = super::pods::address(pod).ok_or("the pod has no address")?;
        let answer = programs::probe::command(&format!("{address}:2381"), "GET", "/member", "").await;
        serde_json::from_str(&answer.map_err(|error| format!("{error:#}"))?).map_err(|error| error.to_string())
    }

    /// Certificates that its clients trust, and certificate and key of a client, as PEM.
    pub(super) async fn credentials(&self) -> Credentials {
        let bundle = self
            .kit
            .api::<ConfigMap>()
            .get(&format!("{}-ca-bundle", self.name))
            .await;
        let secret = format!("{}-apiserver-client-tls", self.name);
        let secret = self.kit.api::<Secret>().get(&secret).await.unwrap().data.unwrap();
        let text = |key: &str| String::from_utf8(secret[key].0.clone()).unwrap();
        Credentials {
            trusted: bundle.unwrap().data.unwrap()["ca.crt"].clone(),
            certificate: text("tls.crt"),
            key: text("tls.key"),
        }
    }
}

/// Credentials of a client of brains, as PEM.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Credentials {
    pub(super) trusted: String,
    pub(super) certificate: String,
    pub(super) key: String,
}

/// One condition.
pub(super) fn condition<'a>(cluster: &'a KubeBrainCluster, type_: &str) -> Option<&'a Condition> {
    let conditions = cluster.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the status speaks of the newest spec.
pub(super) fn is_observed(cluster: &KubeBrainCluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed == cluster.metadata.generation
}

/// Returns true if the newest spec is wholly there.
pub(super) fn is_ready(cluster: &KubeBrainCluster) -> bool {
    is_observed(cluster) && condition(cluster, "Ready").is_some_and(|condition| condition.status == "True")
}

/// The pod that leads.
pub(super) fn leader(cluster: &KubeBrainCluster) -> Option<String> {
    Some(cluster.status.as_ref()?.leader.as_ref()?.member.clone())
}

/// Its name, conditions and status, for the reader of a failure.
pub(super) fn in_words(cluster: &KubeBrainCluster) -> String {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let mut text = format!("KubeBrainCluster {name}, generation {:?}", cluster.metadata.generation);
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    for condition in conditions.into_iter().flatten() {
        text += &format!(
            "\n{}={} {}: {}",
            condition.type_, condition.status, condition.reason, condition.message
        );
    }
    let mut status = serde_json::to_value(&cluster.status).unwrap_or_default();
    if let Some(status) = status.as_object_mut() {
        status.remove("conditions");
    }
    text + &format!("\nstatus: {status}")
}
