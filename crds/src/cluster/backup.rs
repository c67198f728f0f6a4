//! The continuous archive of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::LocalRef;
use crate::backup::BackupEncryption;
use crate::backup::destination::Destination;

/// Time after which changes are stored if `interval` is not set.
pub const DEFAULT_INTERVAL: &str = "10s";

/// Continuous archive of the cluster: every change is stored, so that the cluster can be restored to any revision and second.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.destination.s3) || has(self.destination.s3.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either backup.destination.s3.credentialsSecretRef or backup.serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.gcs) || has(self.destination.gcs.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either backup.destination.gcs.credentialsSecretRef or backup.serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.azure) || has(self.destination.azure.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either backup.destination.azure.credentialsSecretRef or backup.serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.persistentVolumeClaim) || !has(self.serviceAccountName)")
        .message("backup.serviceAccountName has no effect for a volume: remove it")
)]
pub struct ClusterBackup {
    /// Place of the archive, and of the backup that it begins with. Each cluster needs a prefix, or a path, of its own. At another place the
    /// archive begins anew.
    pub destination: Destination,

    /// Encryption before anything leaves the pod. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<BackupEncryption>,

    /// Secret of type kubernetes.io/basic-auth with the user of the cluster, who needs the role root. Only if the cluster has auth enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_secret_ref: Option<LocalRef>,

    /// ServiceAccount in this namespace whose identity at the cloud provider stores the archive, instead of a Secret. It is refused unless
    /// the operator allows it. No token of the API server is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,

    /// Archive of every change. The Deployment `<name>-archive` runs it. Default: nothing is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Archive>,
}

/// Archive of every change.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.interval) || !self.interval.matches('^([0-9]+(m|s))+$') || (duration(self.interval) >= duration('1s') && duration(self.interval) <= duration('1m'))")
        .message("backup.archive.interval must be between 1s and 1m")
        .field_path(".interval")
)]
pub struct Archive {
    /// Time after which changes are stored, from 1s to 1m; as much is lost at most. Default: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(m|s))+$"), length(max = 16))]
    pub interval: Option<String>,

    /// Ends the archive. Changes that the members compact until it runs again cannot be restored.
    #[serde(default)]
    pub suspend: bool,

    /// Resources and placement of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ArchivePod>,
}

/// Resources and placement of the archive's pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchivePod {
    /// CPU and memory of the container; by default it requests 50m and 64Mi. It needs up to 320 MiB of ephemeral storage for the backup that the
    /// archive begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Node labels that the pod requires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Node taints that the pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// Priority class of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
}

impl Archive {
    /// Returns the time after which changes are stored, with its default filled in.
    #[must_use]
    pub fn interval(&self) -> &str {
        self.interval.as_deref().unwrap_or(DEFAULT_INTERVAL)
    }
}
