//! Settings of the pods, and metadata that every object of the cluster inherits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration, TopologySpreadConstraint};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Labels and annotations for every object of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.labels) || self.labels.all(key, !key.startsWith('kubebrain.io/') && !(key in ['app.kubernetes.io/component', 'app.kubernetes.io/managed-by', 'app.kubernetes.io/name', 'app.kubernetes.io/part-of', 'app.kubernetes.io/version']))")
        .message("inheritedMetadata.labels must not have the operator's own: those of kubebrain.io, and app.kubernetes.io/component, managed-by, name, part-of and version")
        .field_path(".labels"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(key, !key.startsWith('kubebrain.io/'))")
        .message("inheritedMetadata.annotations must not have keys of kubebrain.io, which are reserved for the operator")
        .field_path(".annotations")
)]
pub struct InheritedMetadata {
    /// Labels for every object; they cannot replace the operator's own. Keys with a domain are refused unless they are known to be harmless
    /// or the operator allows them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub labels: BTreeMap<String, String>,

    /// Annotations for every object except the ServiceAccount. The same rule applies to their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub annotations: BTreeMap<String, String>,
}

/// User and groups of the brains. Image: the user and the group of the image, 65532. Platform: the operator sets nothing, so that OpenShift
/// chooses from the range of the namespace; never root. Default: Image.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RunAs {
    /// The operator sets the user and the group of the image, 65532.
    #[default]
    Image,
    /// The operator sets nothing, so that OpenShift chooses from the range of the namespace. Never root.
    Platform,
}

/// Resources, placement and other settings of the pods. Use `podTemplate` for fields that are missing here.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// CPU and memory of the brain's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Node labels that the pods require.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Node taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// Spread of the pods over zones and nodes. A constraint without a selector gets the selector of the brains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,

    /// User and groups of the brains. Default: Image. On OpenShift, set Platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,

    /// Existing ServiceAccount to use instead of creating one for the cluster. Names other than the cluster's own ServiceAccount, which has
    /// the name of the cluster, are refused unless the operator allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,

    /// Seconds that a brain may take to hand over leadership and stop. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub termination_grace_period_seconds: Option<i64>,
}
