//! The storage of the data: on the brain's own volume, or in TiKV.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::image::{KeyRef, LocalRef, ObjectRef};

/// The engine below the brains; exactly the part named by `type` is set.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("(self.type == 'TiKV') == has(self.tikv)")
        .message("storage.tikv is required when type is TiKV and forbidden otherwise"),
    validation = Rule::new("self.type == 'Embedded' || !has(self.embedded)")
        .message("storage.embedded is forbidden when type is TiKV: remove it")
)]
pub struct Storage {
    /// Kind of storage. It cannot be changed later.
    #[serde(rename = "type")]
    pub type_: StorageType,

    /// Settings of TiKV; only with type TiKV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tikv: Option<Tikv>,

    /// Settings of the embedded store; required with type Embedded, but forbidden with workload External: whoever makes the pods makes
    /// their volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<Embedded>,
}

/// Kinds of storage.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum StorageType {
    /// A TiKV cluster; any number of brains without state of their own.
    TiKV,
    /// Files on the brain's own volume; a single brain.
    Embedded,
}

/// How the brains reach TiKV.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("has(self.clusterRef) != has(self.pdEndpoints)")
        .message("set exactly one of clusterRef and pdEndpoints"),
    validation = Rule::new("has(self.keyPrefix) == has(oldSelf.keyPrefix) && (!has(self.keyPrefix) || self.keyPrefix == oldSelf.keyPrefix)")
        .message("storage.tikv.keyPrefix is immutable: the data lies under it; make a new cluster"),
    validation = Rule::new("!has(oldSelf.clusterID) || (has(self.clusterID) && self.clusterID == oldSelf.clusterID)")
        .message("storage.tikv.clusterID is immutable: the data lies in that TiKV cluster"),
    validation = Rule::new("!has(self.clusterRef) || (!has(self.clusterRef.group) || self.clusterRef.group == 'core.pingcap.com') && (!has(self.clusterRef.kind) || self.clusterRef.kind == 'Cluster')")
        .message("storage.tikv.clusterRef must name a Cluster of core.pingcap.com")
        .field_path(".clusterRef"),
    validation = Rule::new("!has(self.pdEndpoints) || self.pdEndpoints.all(e, e.matches(r'^(https?://)?([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$'))")
        .message("storage.tikv.pdEndpoints must be host:port, perhaps with http:// or https:// in front")
        .field_path(".pdEndpoints")
)]
pub struct Tikv {
    /// A cluster of the TiDB operator in this namespace, whose placement drivers are taken from its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ObjectRef>,

    /// Addresses of the placement drivers, instead of `clusterRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub pd_endpoints: Option<Vec<String>>,

    /// Prefix of every key in TiKV; no two clusters on one TiKV may share it. Default: `<namespace>/<name>`. It cannot be changed
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub key_prefix: Option<String>,

    /// Id of the TiKV cluster, in decimal digits as PD says it. Brains refuse another one. Without it the first one seen is pinned
    /// in the status.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{1,20}$"), length(max = 20))]
    pub cluster_id: Option<String>,

    /// Who lets TiKV forget old versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<TikvGc>,

    /// What happens to the keys below the prefix when the cluster is deleted. With Delete the Job `<name>-wipe` deletes them when no
    /// brain runs any more, and the resource goes last; the annotation `kubebrain.io/skip-wipe: "true"` lets it go without.
    #[serde(default)]
    pub when_deleted: Retention,

    /// Certificates for the way to TiKV. Without them the connection is plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TikvTls>,
}

/// Who lets a TiKV cluster forget old versions.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.owner == 'Brain' || (!has(self.interval) && !has(self.window))")
        .message("storage.tikv.gc.interval and window go with owner Brain: nobody else reads them")
)]
pub struct TikvGc {
    /// Who moves the safe point.
    #[serde(default)]
    pub owner: GcOwner,

    /// How often the leader collects; only with owner Brain. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub interval: Option<String>,

    /// How old a version gets before it is taken; only with owner Brain. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s))+$"), length(max = 32))]
    pub window: Option<String>,
}

/// Who moves the safe point of a TiKV cluster's garbage collection.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum GcOwner {
    /// Somebody else, such as a TiDB of the same cluster.
    #[default]
    External,
    /// The brain that leads. Only for a TiKV cluster that nobody else uses, or whose users register service safe points.
    Brain,
}

/// Certificates for the way to TiKV.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TikvTls {
    /// The certificate authority of TiKV and its placement drivers.
    pub ca_secret_ref: KeyRef,

    /// A Secret of type kubernetes.io/tls with the client certificate that the brains present: TiKV knows mutual TLS only.
    pub client_secret_ref: LocalRef,
}

/// The volume of an embedded store.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
    )
    .message("storage.embedded.storageClassName is immutable: make a new cluster and copy the data"),
    validation = Rule::new("self.accessMode == oldSelf.accessMode")
        .message("storage.embedded.accessMode is immutable")
        .field_path(".accessMode"),
    validation = Rule::new("isQuantity(string(self.size))")
        .message("storage.embedded.size must be a size such as 10Gi or 10G; 10GB is written 10G")
        .field_path(".size"),
    validation = Rule::new("!isQuantity(string(self.size)) || quantity(string(self.size)).compareTo(quantity('64Mi')) >= 0")
        .message("storage.embedded.size must be at least 64Mi, such as 10Gi")
        .field_path(".size")
)]
pub struct Embedded {
    /// Size of the volume, such as `10Gi`. A volume can only grow, and only if its storage class allows expansion; a smaller size
    /// than the volume has changes nothing.
    pub size: Quantity,

    /// Access mode of the volume. ReadWriteOnce for drivers that do not know ReadWriteOncePod. It cannot be changed later.
    #[serde(default)]
    pub access_mode: AccessMode,

    /// Storage class of the volume; the namespace's default if not set. It cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,

    /// Volume attributes class of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub volume_attributes_class_name: Option<String>,

    /// What happens to the volume when the cluster is deleted. Scaling to 0 always keeps it.
    #[serde(default)]
    pub when_deleted: Retention,
}

/// Access modes of a volume.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum AccessMode {
    /// One pod of the whole Kubernetes cluster.
    #[default]
    ReadWriteOncePod,
    /// The pods of one node.
    ReadWriteOnce,
}

/// What happens to data whose owner is gone.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Retention {
    /// It stays until somebody deletes it.
    #[default]
    Retain,
    /// It is deleted too.
    Delete,
}
