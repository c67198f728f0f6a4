//! Storage of the data: on the brain's own volume, or in TiKV.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::{KeyRef, LocalRef, ObjectRef};

/// Storage engine of the brains. Exactly the part that `type` names is set.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("(self.type == 'TiKV') == has(self.tikv)")
        .message("storage.tikv is required when type is TiKV and forbidden otherwise"),
    validation = Rule::new("self.type == 'Embedded' || !has(self.embedded)")
        .message("storage.embedded is forbidden when type is TiKV: remove it")
)]
pub struct Storage {
    /// Kind of storage. TiKV: a TiKV cluster, for any number of brains without state of their own. Embedded: files on the brain's own volume,
    /// for a single brain. It cannot be changed later.
    #[serde(rename = "type")]
    pub type_: StorageType,

    /// Settings of TiKV. Only with type TiKV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tikv: Option<Tikv>,

    /// Settings of the embedded store. Required with type Embedded, but forbidden with workload External, where the owner of the pods
    /// provides their volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<Embedded>,
}

/// Kinds of storage.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum StorageType {
    /// A TiKV cluster, for any number of brains without state of their own.
    TiKV,
    /// Files on the brain's own volume, for a single brain.
    Embedded,
}

/// Connection of the brains to TiKV.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("has(self.clusterRef) != has(self.pdEndpoints)")
        .message("set exactly one of clusterRef and pdEndpoints"),
    validation = Rule::new("has(self.keyPrefix) == has(oldSelf.keyPrefix) && (!has(self.keyPrefix) || self.keyPrefix == oldSelf.keyPrefix)")
        .message("storage.tikv.keyPrefix is immutable: the data is below it; create a new cluster"),
    validation = Rule::new("!has(oldSelf.clusterID) || (has(self.clusterID) && self.clusterID == oldSelf.clusterID)")
        .message("storage.tikv.clusterID is immutable: the data is in that TiKV cluster"),
    validation = Rule::new("!has(self.clusterRef) || (!has(self.clusterRef.group) || self.clusterRef.group == 'core.pingcap.com') && (!has(self.clusterRef.kind) || self.clusterRef.kind == 'Cluster')")
        .message("storage.tikv.clusterRef must name a Cluster of core.pingcap.com")
        .field_path(".clusterRef"),
    validation = Rule::new("!has(self.pdEndpoints) || self.pdEndpoints.all(e, e.matches(r'^(https?://)?([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$'))")
        .message("storage.tikv.pdEndpoints must be host:port, optionally with http:// or https://")
        .field_path(".pdEndpoints")
)]
pub struct Tikv {
    /// Cluster of the TiDB operator in this namespace. The addresses of its placement drivers are taken from its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ObjectRef>,

    /// Addresses of the placement drivers (PD), instead of `clusterRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub pd_endpoints: Option<Vec<String>>,

    /// Prefix of every key in TiKV. Two clusters on the same TiKV must not share it. Default: `<namespace>/<name>`. It cannot be changed
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub key_prefix: Option<String>,

    /// Id of the TiKV cluster, in decimal digits as PD reports it. Brains refuse a cluster with another id. If not set, the first id seen
    /// is pinned in the status.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{1,20}$"), length(max = 20))]
    pub cluster_id: Option<String>,

    /// Garbage collection of old versions in TiKV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<TikvGc>,

    /// Policy for the keys below the prefix when the cluster is deleted. With Delete the Job `<name>-wipe` deletes them after the last
    /// brain has stopped, and this resource is removed last. The annotation `kubebrain.io/skip-wipe: "true"` removes it without deleting
    /// the keys.
    #[serde(default)]
    pub when_deleted: Retention,

    /// Certificates for the connection to TiKV. Without them the connection is plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TikvTls>,
}

/// Garbage collection of old versions in a TiKV cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("self.owner == 'Brain' || (!has(self.interval) && !has(self.window))")
        .message("storage.tikv.gc.interval and window require owner Brain")
)]
pub struct TikvGc {
    /// Owner of the GC safe point. External: another system, such as a TiDB on the same TiKV cluster. Brain: the leader; only for a TiKV
    /// cluster without other users, or whose other users register service safe points.
    #[serde(default)]
    pub owner: GcOwner,

    /// Time between two garbage collections by the leader. Only with owner Brain. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub interval: Option<String>,

    /// Age at which a version may be garbage-collected. Only with owner Brain. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub window: Option<String>,
}

/// Selects who advances the GC safe point of a TiKV cluster.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum GcOwner {
    /// Another system, such as a TiDB on the same TiKV cluster.
    #[default]
    External,
    /// The leading brain. Only for a TiKV cluster that has no other users, or whose other users register service safe points.
    Brain,
}

/// Certificates for the connection to TiKV.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TikvTls {
    /// Certificate authority of TiKV and its placement drivers.
    pub ca_secret_ref: KeyRef,

    /// Secret of type kubernetes.io/tls with the client certificate of the brains. It is required because TiKV supports only mutual TLS.
    pub client_secret_ref: LocalRef,
}

/// Volume of an embedded store.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
    )
    .message("storage.embedded.storageClassName is immutable: create a new cluster and copy the data"),
    validation = Rule::new("self.accessMode == oldSelf.accessMode")
        .message("storage.embedded.accessMode is immutable")
        .field_path(".accessMode"),
    validation = Rule::new("isQuantity(string(self.size))")
        .message("storage.embedded.size must be a size such as 10Gi or 10G; 10GB is written 10G")
        .field_path(".size"),
    validation = Rule::new("!isQuantity(string(self.size)) || quantity(string(self.size)).compareTo(quantity('64Mi')) >= 0")
        .message("storage.embedded.size must be at least 64Mi, such as 10Gi")
        .field_path(".size"),
    validation = Rule::new("!has(self.autoGrow) || !isQuantity(string(self.autoGrow.max)) || !isQuantity(string(self.size)) || quantity(string(self.autoGrow.max)).compareTo(quantity(string(self.size))) >= 0")
        .message("storage.embedded.autoGrow.max must not be smaller than storage.embedded.size")
        .field_path(".autoGrow.max")
)]
pub struct Embedded {
    /// Size of the volume, such as `10Gi`. A volume can only grow, and only if its storage class allows expansion. A size smaller than that
    /// of the existing volume changes nothing.
    pub size: Quantity,

    /// Access mode of the volume. ReadWriteOncePod: one pod of the whole Kubernetes cluster. ReadWriteOnce: the pods of one node, for drivers
    /// that do not support ReadWriteOncePod. It cannot be changed later.
    #[serde(default)]
    pub access_mode: AccessMode,

    /// Storage class of the volume. Default: the default storage class. It cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,

    /// Volume attributes class of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub volume_attributes_class_name: Option<String>,

    /// Policy for the volume when the cluster is deleted. Scaling to 0 always keeps the volume.
    #[serde(default)]
    pub when_deleted: Retention,

    /// Growth of the volume by the operator, before it is full. Its storage class must allow expansion. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_grow: Option<Box<AutoGrow>>,
}

/// Growth of a volume: once four fifths of its file system are used, its claim is enlarged. Without `spec.quota` the brains then have no
/// quota but the volume; set it before you remove `autoGrow`, or the quota is 2 GiB again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("isQuantity(string(self.max))")
        .message("storage.embedded.autoGrow.max must be a size such as 100Gi")
        .field_path(".max"),
    validation = Rule::new("!has(self.step) || (isQuantity(string(self.step)) && quantity(string(self.step)).compareTo(quantity('64Mi')) >= 0)")
        .message("storage.embedded.autoGrow.step must be a size of at least 64Mi, such as 10Gi")
        .field_path(".step")
)]
pub struct AutoGrow {
    /// Maximum size of the volume, such as `100Gi`.
    pub max: Quantity,

    /// Size that is added at a time, such as `10Gi`. Default: a quarter of the present size, but at least `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Quantity>,
}

/// Access modes of a volume.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AccessMode {
    /// Usable by one pod of the whole Kubernetes cluster.
    #[default]
    ReadWriteOncePod,
    /// Usable by the pods of one node.
    ReadWriteOnce,
}

/// Policy for data whose owner is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Retention {
    /// Keeps the data until a user deletes it.
    #[default]
    Retain,
    /// Deletes the data, too.
    Delete,
}
