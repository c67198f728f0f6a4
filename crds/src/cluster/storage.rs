//! Where the data is kept: on the brain's own volume, or in TiKV.

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
    validation = Rule::new("(self.type == 'Embedded') == has(self.embedded)")
        .message("storage.embedded is required when type is Embedded and forbidden otherwise")
)]
pub struct Storage {
    /// Kind of storage. It cannot be changed later.
    #[serde(rename = "type")]
    pub type_: StorageType,

    /// Settings of TiKV; only with type TiKV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tikv: Option<Tikv>,

    /// Settings of the embedded store; only with type Embedded.
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
    validation = Rule::new("self.keyPrefix == oldSelf.keyPrefix")
        .message("keyPrefix is immutable")
        .field_path(".keyPrefix")
)]
pub struct Tikv {
    /// A cluster of the TiDB operator in this namespace, whose placement drivers are taken from its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ObjectRef>,

    /// Addresses of the placement drivers, instead of `clusterRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 512)))]
    pub pd_endpoints: Option<Vec<String>>,

    /// Prefix of every key in TiKV; unique for each cluster of brains, and never changed.
    #[serde(default = "slash")]
    #[schemars(length(min = 1, max = 256))]
    pub key_prefix: String,

    /// Certificates for the way to TiKV. Without them the connection is plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TikvTls>,
}

fn slash() -> String {
    "/".to_owned()
}

/// Certificates for the way to TiKV.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TikvTls {
    /// The certificate authority of TiKV and its placement drivers.
    pub ca_secret_ref: KeyRef,

    /// A Secret of type kubernetes.io/tls with the client certificate that the brains present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<LocalRef>,
}

/// The volume of an embedded store.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0")
        .message("storage.embedded.size can only grow")
        .field_path(".size"),
    validation = Rule::new(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
    )
    .message("storageClassName is immutable")
)]
pub struct Embedded {
    /// Size of the volume, such as `10Gi`. It can only grow, and only if the storage class allows expansion.
    pub size: Quantity,

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

/// What happens to data whose owner is gone.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Retention {
    /// It stays until somebody deletes it.
    #[default]
    Retain,
    /// It is deleted too.
    Delete,
}
