//! The status of a backup. As in that of a cluster, every field is optional.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::image::{LocalRef, PullPolicy};
use crate::cluster::pod::RunAs;
use crate::cluster::schema;

/// Last observed state of the backup.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeBrainBackupStatus {
    /// The `metadata.generation` that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Time when the backup began. From then on objects may be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// Time when the backup was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// Place of the backup as a URL, for `--destination`; for a volume `pvc://` with its claim and the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,

    /// Name of the backup, for `kubebrain backup restore`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_name: Option<String>,

    /// Revision of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,

    /// Id of the cluster in the store, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,

    /// Size of the snapshot, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,

    /// SHA-256 of the snapshot, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,

    /// Size of the stored objects, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<i64>,

    /// Id of the key that the backup is encrypted with; absent if it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "encryptionKeyID")]
    pub encryption_key_id: Option<String>,

    /// True if the backup was read again and is as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,

    /// Result of the last verification that the annotation `kubebrain.io/verify` asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,

    /// Settings of the cluster for the pods of the backup, recorded when it began: the cluster may be gone when the backup is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<BackupRuntime>,

    /// Version of the operator that wrote this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,

    /// Conditions Complete, Failed and Reconciling; also Stalled if the backup has failed, and Verified after a request to verify it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// Result of a verification.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Value of the annotation `kubebrain.io/verify` that asked for it.
    #[schemars(length(max = 256))]
    pub handled: String,

    /// Time when it ended.
    pub time: Time,

    /// Verified: the backup is as it was written. Damaged: it is not, or a part is missing. Failed: it could not be read.
    pub result: VerificationResult,

    /// Details for users.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Result of a verification.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum VerificationResult {
    /// The backup is as it was written.
    Verified,
    /// It is not, or a part of it is missing.
    Damaged,
    /// It could not be read.
    Failed,
}

/// Settings of a cluster for the pods of a backup.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRuntime {
    /// Image of the pods.
    pub image: String,

    /// Pull policy of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,

    /// Secrets with credentials for the image's repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalRef>,

    /// User and groups of the pods. Default: Image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
}
