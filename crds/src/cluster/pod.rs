//! Settings of the pods, and what every object of the cluster inherits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration, TopologySpreadConstraint};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Labels and annotations for every object of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.labels) || self.labels.all(key, !key.startsWith('kubebrain.io/') && !(key in ['app.kubernetes.io/component', 'app.kubernetes.io/managed-by', 'app.kubernetes.io/name', 'app.kubernetes.io/part-of', 'app.kubernetes.io/version']))")
        .message("inheritedMetadata.labels must not have the operator's own: those of kubebrain.io, and app.kubernetes.io/component, managed-by, name, part-of and version")
        .field_path(".labels"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(key, !key.startsWith('kubebrain.io/'))")
        .message("inheritedMetadata.annotations must not have those of kubebrain.io, which are the operator's")
        .field_path(".annotations")
)]
pub struct InheritedMetadata {
    /// Labels; those of the operator are not among them. Keys with a domain are refused unless they are known to be harmless, or the
    /// operator allows them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub labels: BTreeMap<String, String>,

    /// Annotations, by the same rule; the ServiceAccount gets none of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub annotations: BTreeMap<String, String>,
}

/// Who chooses the user and the groups that brains run as.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RunAs {
    /// The operator: those of the image, which is 65532.
    #[default]
    Image,
    /// Kubernetes: nothing is set, so that an OpenShift chooses from the range of the namespace. Never root.
    Platform,
}

/// Resources, placement and other settings of the pods. Whatever is missing here goes into `podTemplate`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// CPU and memory of the brain's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Labels that a node has to have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// How the pods spread over zones and nodes. A constraint without selector gets that of the brains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,

    /// Who chooses the user and the groups that brains run as. Default: Image. On OpenShift: Platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,

    /// An existing ServiceAccount, instead of one made for the cluster. Any but the cluster's own, which has its name, only if the
    /// operator allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,

    /// How long a brain may take to hand over and stop, in seconds. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub termination_grace_period_seconds: Option<i64>,
}
