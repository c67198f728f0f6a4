//! What the operator answers: conditions first, then what it saw.
//!
//! Every field is optional, because a serde default would become a default of the schema. Numbers that change all the
//! time, such as revisions, are metrics and not here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

    /// Where clients reach the brains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,

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
    pub member_id: Option<String>,

    /// What it does for the others.
    pub role: MemberRole,

    /// Whether its pod is ready.
    pub ready: bool,

    /// The version it runs.
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
    pub cluster_id: Option<String>,

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
    /// Generation of its key.
    pub generation: i32,

    /// Phase of a key replacement; `Stable` if there is none.
    pub phase: String,

    /// When its certificate ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
}
