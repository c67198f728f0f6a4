//! `KubeBrainCluster`: a set of brains, servers that every etcd v3 client takes for etcd.
//!
//! One module per part of the spec. Rules that the API server can check are CEL rules beside the type they concern;
//! they run in unit tests too. A default in the schema is part of the contract and never changes: no image, no version.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub mod election;
pub mod image;
pub mod pod;
mod schema;
pub mod services;
pub mod status;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod update;

use election::LeaderElection;
use image::Image;
use pod::{InheritedMetadata, PodSettings};
use services::{Monitoring, Services, Toggle};
use status::KubeBrainClusterStatus;
use storage::Storage;
use tls::Tls;
use update::Update;

/// What a cluster of brains shall be.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "kubebrain.io",
    version = "v1alpha1",
    kind = "KubeBrainCluster",
    namespaced,
    status = "KubeBrainClusterStatus",
    doc = "A cluster of brains: servers that every etcd v3 client, a kube-apiserver above all, takes for etcd.",
    shortname = "kbc",
    category = "kubebrain",
    derive = "PartialEq",
    cel,
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader.member"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Storage", type_ = "string", json_path = ".spec.storage.type", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 45")
        .message("name must be at most 45 characters: pod, Service and Secret names are derived from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must start with a letter and hold only a-z, 0-9 and -: Service names are derived from it"),
    validation = Rule::new("self.spec.storage.type != 'Embedded' || self.spec.replicas <= 1")
        .message("Embedded storage is single-member: set replicas to 0 or 1"),
    validation = Rule::new("self.spec.storage.type != 'Embedded' || self.spec.leaderElection.backend == 'Storage'")
        .message("Embedded storage needs no Lease: leaderElection.backend must be Storage")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.storage.type == oldSelf.storage.type")
        .message("storage.type is immutable")
        .field_path(".storage.type")
)]
pub struct KubeBrainClusterSpec {
    /// Number of brains. 0 suspends the cluster and keeps its data. Embedded storage allows 0 or 1.
    #[schemars(range(min = 0, max = 64))]
    #[serde(default = "three")]
    pub replicas: i32,

    /// Version of the brain, as MAJOR.MINOR.PATCH. It is the image tag unless `image.digest` is set. Changing it rolls the brains.
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$"), length(max = 64))]
    pub version: String,

    /// Where the brain's image comes from. Without it the operator's `--default-image` is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,

    /// Stops every change to the cluster's objects, renewal of certificates included. The status is still reported.
    #[serde(default)]
    pub paused: bool,

    /// Any text, by convention a time such as `2026-11-21T00:00:00Z`. Changing it restarts the brains one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,

    /// Where the data is kept.
    pub storage: Storage,

    /// Certificates of the brains and of their clients.
    #[serde(default)]
    pub tls: Tls,

    /// How the brains agree on their leader.
    #[serde(default)]
    pub leader_election: LeaderElection,

    /// How a change reaches running brains.
    #[serde(default)]
    pub update: Update,

    /// The Services in front of the brains.
    #[serde(default)]
    pub services: Services,

    /// The PodDisruptionBudget. None is made for fewer than two brains: it would only block drains.
    #[serde(default)]
    pub pod_disruption_budget: Toggle,

    /// Scraping of the brains' metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Monitoring>,

    /// Labels and annotations that every object of the cluster inherits. Those of this resource itself are not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<InheritedMetadata>,

    /// Resources, placement and other settings of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,

    /// A partial PodTemplateSpec, merged over the rendered one last; lists merge by their keys, the brain's container is `brain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_object")]
    pub pod_overrides: Option<serde_json::Value>,

    /// Further flags of the brain, without the dashes, such as `auto-compaction-retention: 5m`. Flags that the operator sets are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

fn three() -> i32 {
    3
}
