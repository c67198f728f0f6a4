//! The status that the operator writes: conditions first, then what it saw.
//!
//! Every field is optional, because a serde default would become a default of the schema. Numbers that change all the
//! time, such as revisions, are metrics and not here.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::LocalRef;
use super::schema;

/// What the operator saw when it last looked.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeBrainClusterStatus {
    /// The `metadata.generation` that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Pods that are as the spec wants them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,

    /// Label selector of the pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// The version that all members run; the former one until the last has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// The image that the pods are told to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// The image that all members ran last, and the part of the spec that chose it. While that part stays, another default image of the
    /// operator does not change it, unless by its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_image: Option<PinnedImage>,

    /// The number of members that the StatefulSet was last told to have. A pause, or a spec that cannot be acted on, keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_replicas: Option<i32>,

    /// Revision of the pod template that all members ran last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,

    /// Revision of the pod template that the spec wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,

    /// The leader; absent while none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderStatus>,

    /// The members, by pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::members")]
    pub members: Option<Vec<MemberStatus>>,

    /// Where clients reach the brains, and what they need for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,

    /// The change in flight; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,

    /// The installation of the operator that looks after the cluster: namespace and name of its Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,

    /// The newest `restartedAt` or `kubebrain.io/restart` that was acted on; older ones are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_restart: Option<String>,

    /// The newest value of the annotation `kubebrain.io/transfer-leader` that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_transfer: Option<String>,

    /// The storage below the brains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,

    /// Certificates by the Secret that holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::certificates")]
    pub certificates: Option<Vec<CertificateStatus>>,

    /// The certificate authority of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<CaStatus>,

    /// Version of the operator that wrote this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,

    /// Ready, Available, Progressing, Degraded, CertificatesReady, StorageReady; and Stalled when only a change of the spec helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// An image that all members ran, and what chose it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedImage {
    /// The image.
    pub image: String,

    /// `spec.version` that it was chosen for.
    pub version: String,

    /// `spec.image.repository` at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,

    /// `spec.image.digest` at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The leader of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// Name of its pod.
    pub member: String,

    /// Its epoch; it rises with every change of leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,

    /// When the operator first saw this leader in this epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// One member.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Name of its pod.
    pub name: String,

    /// Its id, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "memberID")]
    pub member_id: Option<String>,

    /// What it does for the others.
    pub role: MemberRole,

    /// Whether its pod is ready.
    pub ready: bool,

    /// Node that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,

    /// Zone of that node, as `topology.kubernetes.io/zone` of its pod says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,

    /// The version it says it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// Revision of the pod template it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,

    /// What is wrong with it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a member does for the others.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum MemberRole {
    /// It takes the writes.
    Leader,
    /// It serves reads and watches, and forwards writes.
    Follower,
    /// It did not answer.
    Unknown,
}

/// What a client needs to reach the brains.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Addresses, by what answers there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,

    /// ConfigMap or Secret key with the certificates to trust; absent without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<BundleRef>,

    /// Secret with a client certificate for a kube-apiserver; absent unless the operator issues it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<LocalRef>,
}

/// One key of a ConfigMap or Secret of the same namespace.
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

/// Kinds of objects that hold certificates to trust.
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
    /// URL of every ready brain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,

    /// URL of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,

    /// URL of each member; what a kube-apiserver wants in `--etcd-servers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
}

/// The storage below the brains.
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

    /// Id of the cluster in the store, in hexadecimal digits, once it served. No brain begins an empty one then, and an embedded one serves
    /// no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "storeID")]
    pub store_id: Option<String>,

    /// The value of the annotation `kubebrain.io/accept-store` that was acted on. Until the annotation is removed or changed, it does
    /// not give that store up again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "acceptedStoreID")]
    pub accepted_store_id: Option<String>,

    /// Prefix of every key in TiKV, pinned when the cluster was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,

    /// Smallest capacity among the volumes of an embedded store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,

    /// Placement drivers of TiKV.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pd_endpoints: Option<Vec<String>>,
}

/// One certificate.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// The Secret that holds it.
    pub secret_name: String,

    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,

    /// When it will be renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewal_time: Option<Time>,

    /// Generation of the key that signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_generation: Option<i32>,
}

/// The certificate authority of the cluster.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaStatus {
    /// Generation of the key that signs.
    pub generation: i32,

    /// Phase of a key replacement: Stable if there is none, Publishing, Issuing or Retiring.
    pub phase: String,

    /// Since when it is in this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When the certificate of the authority that signs ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,

    /// SHA-256 of the published bundle, as the members report what they trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,

    /// SHA-256 of the public key that signs. A Secret with another key is not trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,

    /// The key that signs next; only in phase Publishing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextCa>,
}

/// The key of a certificate authority that does not sign yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextCa {
    /// Its generation.
    pub generation: i32,

    /// SHA-256 of the public key.
    pub fingerprint: String,
}

/// A change of the brains that is in flight.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The `metadata.generation` whose spec is being rolled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,

    /// Kind of the change, which goes on until every member serves; absent if only the leader changes.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RolloutType>,

    /// When that began; the progress deadline counts from the newest progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When a member was last replaced or became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,

    /// What is done now, such as `ReplaceFollower` or `HandOver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,

    /// What the next step waits for, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,

    /// Trials of the new template that were ended from outside. After three of them the operator reports TrialFailed at the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial_losses: Option<i32>,

    /// The planned hand-over of leadership that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<HandOver>,
}

/// Kind of the change, which goes on until every member serves; absent if only the leader changes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, JsonSchema)]
pub enum RolloutType {
    /// The members are made for the first time.
    Creating,
    /// Members are replaced by ones of the newest template.
    RollingUpdate,
    /// Members are added or removed.
    Scaling,
}

/// A planned hand-over of leadership.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandOver {
    /// Pod of the leader that hands over.
    pub from: String,

    /// Pod of the member that shall lead.
    pub to: String,

    /// Epoch of the leader that hands over.
    pub epoch: i64,

    /// When it was asked for first.
    pub since: Time,
}
