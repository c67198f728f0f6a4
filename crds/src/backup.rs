//! `KubeBrainBackup`: one backup of a cluster, made once.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::image::LocalRef;
use status::KubeBrainBackupStatus;

pub mod destination;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;

use destination::Destination;

/// Time that a backup may take if `timeout` is not set.
pub const DEFAULT_TIMEOUT: &str = "24h";
/// Number of pods of a Job that may fail if `backoffLimit` is not set.
pub const DEFAULT_BACKOFF_LIMIT: i32 = 3;

/// Desired backup. It cannot be changed later, apart from `deletionPolicy` and `pod`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(any(test, feature = "cel"), kube(cel))]
#[kube(
    group = "kubebrain.io",
    version = "v1alpha1",
    kind = "KubeBrainBackup",
    namespaced,
    status = "KubeBrainBackupStatus",
    doc = "One backup of a KubeBrainCluster: the whole store at one revision, in an object store or on a volume.",
    shortname = "kbb",
    category = "kubebrain",
    derive = "PartialEq",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(
        name = "Complete",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Complete")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Complete")].reason"#
    ),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.storedBytes"),
    printcolumn(name = "Verified", type_ = "boolean", json_path = ".status.verified"),
    printcolumn(name = "Backup", type_ = "string", json_path = ".status.backupName", priority = 1),
    printcolumn(name = "Location", type_ = "string", json_path = ".status.location", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Complete")].message"#,
        priority = 1
    ),
    printcolumn(name = "Completed", type_ = "date", json_path = ".status.completionTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    selectable = ".spec.clusterName",
    validation = Rule::new("size(self.metadata.name) <= 49")
        .message("name must be at most 49 characters: names of Jobs are derived from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must hold only a-z, 0-9 and -, and begin and end with a letter or a digit")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.clusterName == oldSelf.clusterName")
        .message("clusterName is immutable: create another KubeBrainBackup")
        .field_path(".clusterName"),
    validation = Rule::new("self.destination == oldSelf.destination")
        .message("destination is immutable: the backup stays where it is")
        .field_path(".destination"),
    validation = Rule::new("has(self.encryption) == has(oldSelf.encryption) && (!has(self.encryption) || self.encryption == oldSelf.encryption)")
        .message("encryption is immutable: create another KubeBrainBackup"),
    validation = Rule::new("self.verify == oldSelf.verify")
        .message("verify is immutable: create another KubeBrainBackup")
        .field_path(".verify"),
    validation = Rule::new("has(self.timeout) == has(oldSelf.timeout) && (!has(self.timeout) || self.timeout == oldSelf.timeout)")
        .message("timeout is immutable: create another KubeBrainBackup"),
    validation = Rule::new("has(self.backoffLimit) == has(oldSelf.backoffLimit) && (!has(self.backoffLimit) || self.backoffLimit == oldSelf.backoffLimit)")
        .message("backoffLimit is immutable: create another KubeBrainBackup"),
    validation = Rule::new("has(self.userSecretRef) == has(oldSelf.userSecretRef) && (!has(self.userSecretRef) || self.userSecretRef == oldSelf.userSecretRef)")
        .message("userSecretRef is immutable: create another KubeBrainBackup"),
    validation = Rule::new("has(self.serviceAccountName) == has(oldSelf.serviceAccountName) && (!has(self.serviceAccountName) || self.serviceAccountName == oldSelf.serviceAccountName)")
        .message("serviceAccountName is immutable: create another KubeBrainBackup"),
    validation = Rule::new("!has(self.destination.s3) || has(self.destination.s3.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either destination.s3.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.gcs) || has(self.destination.gcs.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either destination.gcs.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.azure) || has(self.destination.azure.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either destination.azure.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination.persistentVolumeClaim) || !has(self.serviceAccountName)")
        .message("serviceAccountName has no effect for a volume: remove it"),
    validation = Rule::new("!has(self.timeout) || !self.timeout.matches('^([0-9]+(h|m|s))+$') || (duration(self.timeout) >= duration('1m') && duration(self.timeout) <= duration('168h'))")
        .message("timeout must be between 1m and 168h")
        .field_path(".timeout")
)]
pub struct KubeBrainBackupSpec {
    /// Name of the KubeBrainCluster in this namespace whose store is backed up. The backup begins once a member leads.
    #[schemars(length(min = 1, max = 45))]
    pub cluster_name: String,

    /// Place of the backup.
    pub destination: Destination,

    /// Encryption before the backup leaves the pod. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<BackupEncryption>,

    /// Reads the backup again after it was made, and compares all of it with what was written.
    #[serde(default)]
    pub verify: bool,

    /// Way in which the annotation `kubebrain.io/verify`, and `verify` of a schedule, have the backup verified. Read: all of it is read and compared
    /// with what was written. Restore: it is also restored, with the archive after it, into an empty directory of the pod, and compared; the pod
    /// needs ephemeral storage of four times the snapshot, and of twelve times the archive after it.
    #[serde(default)]
    pub verification_mode: VerificationMode,

    /// Policy for the stored objects when this resource is deleted. Keep: they stay. Delete: the Job `<name>-backup-delete` deletes them
    /// before this resource is removed; if it cannot, set Keep to remove this resource without it.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// Time that the backup may take, from one minute to a week, in h, m and s. It begins when the Job is created. Default: 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub timeout: Option<String>,

    /// Number of attempts that may fail before the backup fails; pods that are evicted do not count. However many attempts there are, one
    /// backup is made. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20))]
    pub backoff_limit: Option<i32>,

    /// Secret of type kubernetes.io/basic-auth with the user of the cluster, who needs the role root. Only if the cluster has auth enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_secret_ref: Option<LocalRef>,

    /// ServiceAccount in this namespace whose identity at the cloud provider stores the backup, instead of a Secret. It is refused unless the
    /// operator allows it. No token of the API server is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,

    /// Resources and placement of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<BackupPod>,
}

/// Encryption of a backup.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupEncryption {
    /// Key of a Secret with the encryption key: 32 random bytes, as they are, in base64 or in hexadecimal. Without it the backup is lost.
    pub key_secret_ref: EncryptionKeyRef,
}

/// Reference to the key of a Secret in the same namespace that holds an encryption key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EncryptionKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Key in the Secret's data. Default: `key`.
    #[serde(default = "key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn key() -> String {
    "key".to_owned()
}

/// Way in which a backup is verified.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum VerificationMode {
    /// It is read.
    #[default]
    Read,
    /// It is restored into an empty directory.
    Restore,
}

/// Policy for the stored objects of a deleted backup.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted first.
    Delete,
}

/// Resources and placement of the pods of a backup. Changes have no effect on pods that exist.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupPod {
    /// CPU and memory of the container. It needs 64 MiB of memory, and 320 MiB of ephemeral storage; with `verify` as much as the snapshot
    /// in addition, and with `verificationMode: Restore` four times as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Node labels that the pods require.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Node taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
}

impl KubeBrainBackupSpec {
    /// Returns the time that the backup may take, with its default filled in, as text for [`crate::duration`].
    #[must_use]
    pub fn timeout(&self) -> &str {
        self.timeout.as_deref().unwrap_or(DEFAULT_TIMEOUT)
    }
}
