//! The first data of a cluster.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::LocalRef;
use crate::backup::BackupEncryption;
use crate::backup::destination::{CaBundleRef, Destination};

/// Source of a cluster's first data: at most one. Without one, a cluster begins empty.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("[has(self.fromBackup), has(self.fromSnapshot), has(self.fromEtcd)].filter(set, set).size() <= 1")
        .message("set at most one of bootstrap.fromBackup, fromSnapshot and fromEtcd")
)]
pub struct Bootstrap {
    /// A backup. The Job `<name>-bootstrap` restores it into the volume of the only member, or below the key prefix in TiKV, before any
    /// member starts. If there is a store already, that is served as it is, and nothing is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_backup: Option<FromBackup>,

    /// A snapshot of an etcd or a KubeBrain. It is restored in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<FromSnapshot>,

    /// A running etcd, or a KubeBrain, whose keys are copied with their revisions. Members start once the copy was compared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_etcd: Option<FromEtcd>,
}

/// A running etcd, whose keys are copied.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.tls) || self.endpoints.all(endpoint, endpoint.startsWith('https://'))")
        .message("bootstrap.fromEtcd.tls requires endpoints that begin with https://"),
    validation = Rule::new("!has(self.userSecretRef) || self.endpoints.all(endpoint, endpoint.startsWith('https://'))")
        .message("bootstrap.fromEtcd.userSecretRef requires endpoints that begin with https://: a password is not sent in the clear")
)]
pub struct FromEtcd {
    /// Client URLs of members, all of one cluster, such as `https://10.0.0.5:2379`.
    #[schemars(
        length(min = 1, max = 16),
        inner(
            regex(pattern = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"),
            length(max = 300)
        )
    )]
    pub endpoints: Vec<String>,

    /// Certificates for `https` endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<EtcdTls>,

    /// Secret of type kubernetes.io/basic-auth with a user who may read every key. Only if auth is enabled, and with `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_secret_ref: Option<LocalRef>,

    /// Adds what is written there while the copy is made, and later, until the annotation `kubebrain.io/cutover: "true"` of this resource ends
    /// the copy. Stop the writers before you set it. Default: true.
    #[serde(default = "follows")]
    pub follow: bool,
}

/// Certificates for an etcd.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdTls {
    /// CA certificates that its members are trusted by. KubeBrain's image has none, so they are needed unless yours has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<CaBundleRef>,

    /// Secret of type kubernetes.io/tls with a client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<LocalRef>,
}

fn follows() -> bool {
    true
}

/// A file that `etcdctl snapshot save` made, or `kubebrain backup export`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("has(self.bumpRevision) == (has(self.markCompacted) && self.markCompacted)")
        .message("bootstrap.fromSnapshot.bumpRevision and markCompacted require each other")
)]
pub struct FromSnapshot {
    /// Volume with the file.
    pub persistent_volume_claim: ClaimFile,

    /// Increase of the revision after the restore, so that clients that have seen later revisions of the old store find no revision twice.
    /// It must exceed what was written after the snapshot. Requires `markCompacted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub bump_revision: Option<i64>,

    /// Compacts the store at its new revision, so that watches of such clients end and they list again. Requires `bumpRevision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_compacted: Option<bool>,
}

/// A file on a volume.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!self.path.matches('(^|/)[.][.]?(/|$)')")
        .message("path must not have the parts . and ..")
        .field_path(".path")
)]
pub struct ClaimFile {
    /// Name of a PersistentVolumeClaim in this namespace. Volumes of clusters are refused.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,

    /// The file, by its path in the volume, without a slash at its beginning.
    #[schemars(
        regex(pattern = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"),
        length(min = 1, max = 512)
    )]
    pub path: String,
}

/// A backup, and the changes of an archive after it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("has(self.backup) != has(self.destination)")
        .message("set exactly one of bootstrap.fromBackup.backup and destination"),
    validation = Rule::new("!has(self.backup) || (!has(self.name) && !has(self.encryption) && !has(self.serviceAccountName))")
        .message("bootstrap.fromBackup.name, encryption and serviceAccountName are those of the KubeBrainBackup: remove them, or set destination instead of backup"),
    validation = Rule::new("[has(self.revision), has(self.time), has(self.end) && self.end].filter(set, set).size() <= 1")
        .message("set at most one of bootstrap.fromBackup.revision, time and end"),
    validation = Rule::new("has(self.bumpRevision) == (has(self.markCompacted) && self.markCompacted)")
        .message("bootstrap.fromBackup.bumpRevision and markCompacted require each other"),
    validation = Rule::new("!has(self.destination) || !has(self.destination.s3) || has(self.destination.s3.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either bootstrap.fromBackup.destination.s3.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination) || !has(self.destination.gcs) || has(self.destination.gcs.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either bootstrap.fromBackup.destination.gcs.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination) || !has(self.destination.azure) || has(self.destination.azure.credentialsSecretRef) != has(self.serviceAccountName)")
        .message("set either bootstrap.fromBackup.destination.azure.credentialsSecretRef or serviceAccountName: the identity of the node is never used"),
    validation = Rule::new("!has(self.destination) || !has(self.destination.persistentVolumeClaim) || !has(self.serviceAccountName)")
        .message("bootstrap.fromBackup.serviceAccountName has no effect for a volume: remove it"),
    validation = Rule::new("!has(self.time) || self.time.matches('^([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$')")
        .message("bootstrap.fromBackup.time must be a time such as 2026-11-29T16:45:00Z")
        .field_path(".time")
)]
pub struct FromBackup {
    /// KubeBrainBackup in this namespace, whose place, encryption and credentials are used. The restore begins once it is complete. Either
    /// this or `destination` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<LocalRef>,

    /// Place of the backup, instead of `backup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,

    /// Name of the backup at `destination`, as `kubebrain backup list` and the status of a KubeBrainBackup show it. Default: the newest
    /// one, or the newest one before the point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{8}T[0-9]{6}[.][0-9]{3}Z-[0-9]{19}$"), length(max = 64))]
    pub name: Option<String>,

    /// Encryption of the backup at `destination`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<BackupEncryption>,

    /// ServiceAccount in this namespace whose identity at the cloud provider reads the backup, instead of a Secret. It is refused unless the
    /// operator allows it. No token of the API server is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,

    /// Adds the changes in the archive after the backup up to this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub revision: Option<i64>,

    /// Adds the changes in the archive up to this time, in RFC 3339, such as `2026-11-29T16:45:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub time: Option<String>,

    /// Adds all changes in the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<bool>,

    /// Increase of the revision after the restore, so that clients that have seen later revisions of the old store find no revision twice.
    /// It must exceed what was written after the point. Requires `markCompacted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub bump_revision: Option<i64>,

    /// Compacts the store at its new revision, so that watches of such clients end and they list again. Requires `bumpRevision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_compacted: Option<bool>,
}
