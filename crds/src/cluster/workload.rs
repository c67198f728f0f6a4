//! The workload of the brains: a StatefulSet of the operator, or pods that the user creates.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Selects who creates the pods that the brains run in. It cannot be changed later.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("(self.type == 'External') == has(self.selector)")
        .message("workload.selector is required with type External and forbidden otherwise: name the labels of the pods that hold the brains"),
    validation = Rule::new("!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0 && !has(self.selector.matchExpressions))")
        .message("workload.selector needs matchLabels and no matchExpressions: Services select pods only by labels")
        .field_path(".selector"),
    validation = Rule::new("self.type == oldSelf.type")
        .message("workload.type is immutable: create a new cluster")
        .field_path(".type")
)]
pub struct Workload {
    /// Kind of workload. StatefulSet: the operator creates a StatefulSet and replaces its pods. External: you create the pods. It cannot be
    /// changed later.
    #[serde(default, rename = "type")]
    pub type_: WorkloadType,

    /// Selects the pods that run a brain, in this namespace. Only with type External.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Kinds of workload.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum WorkloadType {
    /// The operator creates a StatefulSet and replaces its pods one by one, the leader last.
    #[default]
    StatefulSet,
    /// The user creates the pods, such as a Deployment with a kube-apiserver and the brain beside it. The operator provides certificates,
    /// the headless Service, labels and the status, and replaces no pods.
    External,
}
