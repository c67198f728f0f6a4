//! The status that the operator writes: conditions first, then what it observed.
//!
//! Every field is optional, because a serde default would become a default of the schema. Numbers that change constantly are
//! metrics and not part of the status, or are written there at most once a minute.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::LocalRef;
use super::schema;

/// Last observed state of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeBrainClusterStatus {
    /// The `metadata.generation` that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Number of pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Number of pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Number of pods that match the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,

    /// Label selector of the pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// Version that all members run. During an update it is the former version until the last member has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Image that the pods are configured to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// Last image that all members ran, and the part of the spec that chose it. While that part is unchanged, another default image of the
    /// operator replaces it only if its version is higher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_image: Option<PinnedImage>,

    /// Number of members last set in the StatefulSet. It is kept while the cluster is paused or its spec cannot be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_replicas: Option<i32>,

    /// Revision of the pod template that all members last ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,

    /// Revision of the pod template that the spec results in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,

    /// Current leader; absent while none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderStatus>,

    /// Members by pod name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::members")]
    pub members: Option<Vec<MemberStatus>>,

    /// Addresses and credentials for clients of the brains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,

    /// Change in progress; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,

    /// Operator installation that manages the cluster: namespace and name of its Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,

    /// Newest `restartedAt` or `kubebrain.io/restart` that was acted on. Older ones are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_restart: Option<String>,

    /// Newest value of the annotation `kubebrain.io/transfer-leader` that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_transfer: Option<String>,

    /// Storage of the brains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,

    /// Space of the store, measured at most once an hour; absent until the leader has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Box<SpaceStatus>>,

    /// Certificates by the Secret that holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::certificates")]
    pub certificates: Option<Vec<CertificateStatus>>,

    /// Certificate authority of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaStatus>,

    /// Origin of the cluster's first data; absent without `spec.bootstrap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Box<BootstrapStatus>>,

    /// Backups of the cluster, and its archive; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupStatus>,

    /// Version of the operator that wrote this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,

    /// Conditions Ready, Available, Progressing, Degraded, CertificatesReady and StorageReady; also Stalled if only a change of the spec
    /// helps, SpaceLow once the leader has reported a limit, Bootstrapped with `spec.bootstrap`, Archiving with `spec.backup.archive`, and
    /// VersionAffected if the operator has advisories about versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// Space of the store against the limit that it reaches first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpaceStatus {
    /// The limit: the quota of the brains, or the file system of the volume.
    pub limit: SpaceLimit,

    /// Bytes that are used.
    pub used_bytes: i64,

    /// Bytes of the limit.
    pub limit_bytes: i64,

    /// Time of the measurement. It stays while little changes.
    pub measured_at: Time,

    /// Growth in bytes a day, a mean over the last measurements; absent after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_day: Option<i64>,

    /// Time when the limit is reached at that rate; absent if this takes more than 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_at: Option<Time>,
}

/// Limit of the space of a store.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum SpaceLimit {
    /// The quota of the brains, at which they raise the alarm NOSPACE.
    Quota,
    /// The file system of the volume.
    Disk,
}

/// Origin of a cluster's first data.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapStatus {
    /// Phase of the restore. Once it is Complete, nothing is restored again.
    pub phase: BootstrapPhase,

    /// Place of the backup or the snapshot, and the point up to which it is restored, or the endpoints of the etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,

    /// Name of the backup that was restored; absent for a snapshot, and if there was a store already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_name: Option<String>,

    /// Time when the Job was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// Time when the restore was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// Revision of the store after the restore; absent if there was a store already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,

    /// Progress of a copy of an etcd until it is complete, as last seen. It is written at most once a minute, or with the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<CopyProgress>>,

    /// State of the restore, or the reason why it failed, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Progress of a copy of an etcd.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyProgress {
    /// Revision of the copy; 0 before the first snapshot is restored.
    pub revision: i64,

    /// Newest known revision of the etcd.
    pub source_revision: i64,

    /// Number of revisions that the copy lacks.
    pub lag_revisions: i64,

    /// Time when the pod of the copy reported them.
    pub seen_at: Time,
}

/// Phase of a restore of a cluster's first data.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum BootstrapPhase {
    /// It waits for something.
    Pending,
    /// The Job runs.
    Running,
    /// The copy has all of the etcd, and follows it until the cutover.
    Following,
    /// There is a store, and members may start.
    Complete,
    /// Every attempt failed.
    Failed,
}

/// Backups of a cluster, and its archive.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// A revision up to which the archive has all changes. It is written at most once a minute while the archive keeps up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived_revision: Option<i64>,

    /// Time up to which all changes are stored, seen with that revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived_until: Option<Time>,

    /// Time from `archivedUntil` until it was seen, in seconds: one minute, or rounded up to two minutes, four minutes, and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<i64>,

    /// Newest KubeBrainBackup that was complete. It may have been deleted since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<LastBackup>,
}

/// Newest KubeBrainBackup of a cluster that was complete.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastBackup {
    /// Name of the KubeBrainBackup.
    pub name: String,

    /// Time when it was complete.
    pub completion_time: Time,
}

/// Image that all members ran, and the part of the spec that chose it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedImage {
    /// The image.
    pub image: String,

    /// `spec.version` when the image was chosen.
    pub version: String,

    /// `spec.image.repository` when the image was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,

    /// `spec.image.digest` when the image was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Leader of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// Name of the leader's pod.
    pub member: String,

    /// Epoch of the leader. It increases with every change of leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,

    /// Time when the operator first saw this leader in this epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// One member.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Name of the member's pod.
    pub name: String,

    /// Id of the member, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "memberID")]
    pub member_id: Option<String>,

    /// Role of the member.
    pub role: MemberRole,

    /// True if the member's pod is ready.
    pub ready: bool,

    /// Node that the member runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,

    /// Zone of that node, from the label `topology.kubernetes.io/zone` of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,

    /// Version that the member reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Revision of the pod template that the pod was created from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,

    /// Problem of the member, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Role of a member.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum MemberRole {
    /// Accepts writes.
    Leader,
    /// Serves reads and watches, and forwards writes to the leader.
    Follower,
    /// Did not answer.
    Unknown,
}

/// Addresses and credentials for clients of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Addresses of the client Service, the leader Service and the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,

    /// ConfigMap or Secret key with the CA certificates to trust; absent without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<BundleRef>,

    /// Secret with a client certificate for a kube-apiserver; absent unless the operator issues it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<LocalRef>,
}

/// Reference to one key of a ConfigMap or Secret in the same namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleRef {
    /// Kind of the object.
    #[serde(default)]
    pub kind: BundleKind,

    /// Name of the object.
    pub name: String,

    /// Key in the object's data.
    pub key: String,
}

/// Kinds of objects that hold CA certificates.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum BundleKind {
    /// A ConfigMap that the operator writes.
    #[default]
    ConfigMap,
    /// The Secret of `tls.secrets.caBundle`.
    Secret,
}

/// Addresses for clients.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// URL of the Service in front of every ready brain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,

    /// URL of the Service in front of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,

    /// URL of each member, for `--etcd-servers` of a kube-apiserver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
}

/// Storage of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Kind of storage.
    #[serde(rename = "type")]
    pub type_: String,

    /// Id of the TiKV cluster, pinned when the brains first started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,

    /// Id of the cluster in the store, in hexadecimal digits, recorded once the store served. From then on no brain starts with an empty
    /// store, and an embedded brain serves no other store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "storeID")]
    pub store_id: Option<String>,

    /// Last value of the annotation `kubebrain.io/accept-store` that was acted on. The same store is not given up again until the
    /// annotation is removed or changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "acceptedStoreID")]
    pub accepted_store_id: Option<String>,

    /// Prefix of every key in TiKV, pinned when the cluster was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,

    /// Smallest capacity among the volumes of an embedded store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,

    /// Addresses of TiKV's placement drivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pd_endpoints: Option<Vec<String>>,
}

/// One certificate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Secret that holds the certificate.
    pub secret_name: String,

    /// Time when the certificate expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,

    /// Time when the certificate will be renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal_time: Option<Time>,

    /// Generation of the key that signed the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_generation: Option<i32>,
}

/// Certificate authority of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaStatus {
    /// Generation of the key that signs.
    pub generation: i32,

    /// Phase of a key replacement: Stable if there is none, else Publishing, Issuing or Retiring.
    pub phase: String,

    /// Time when this phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// Time when the certificate of the signing authority expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,

    /// SHA-256 of the published CA bundle. Members report the SHA-256 of the bundle they trust in the same form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,

    /// SHA-256 of the public key that signs. A Secret with another key is not trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,

    /// Key that will sign next. Only in phase Publishing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextCa>,
}

/// Key of a certificate authority that does not sign yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextCa {
    /// Generation of this key.
    pub generation: i32,

    /// SHA-256 of the public key.
    pub fingerprint: String,
}

/// Change of the brains in progress.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The `metadata.generation` whose spec is being rolled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,

    /// Kind of the change, which continues until every member serves; absent if only the leader changes.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RolloutType>,

    /// Time when the change began. The progress deadline counts from the latest progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// Time when a member was last replaced or became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,

    /// Current step, such as `ReplaceFollower` or `HandOver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,

    /// Condition that the next step waits for, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,

    /// Number of trials of the new template that were ended from outside. After three of them the operator reports TrialFailed at the next
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial_losses: Option<i32>,

    /// Planned hand-over of leadership in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOver>,
}

/// Kind of the change, which continues until every member serves; absent if only the leader changes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum RolloutType {
    /// Members are created for the first time.
    Creating,
    /// Members are replaced by ones of the newest template.
    RollingUpdate,
    /// Members are added or removed.
    Scaling,
}

/// Planned hand-over of leadership.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandOver {
    /// Pod of the leader that hands over.
    pub from: String,

    /// Pod of the member that will lead.
    pub to: String,

    /// Epoch of the leader that hands over.
    pub epoch: i64,

    /// Time of the first request.
    pub since: Time,
}
