//! The place of a backup.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::image::LocalRef;
use crate::cluster::status::BundleKind;

/// Place of a backup. Exactly one of the fields is set. Each cluster should have a prefix, or a path, of its own.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("[has(self.s3), has(self.gcs), has(self.azure), has(self.persistentVolumeClaim)].filter(set, set).size() == 1")
        .message("set exactly one of destination.s3, gcs, azure and persistentVolumeClaim")
)]
pub struct Destination {
    /// S3, or a store with its protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3>,

    /// Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<Gcs>,

    /// Azure Blob Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<Azure>,

    /// A volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimDirectory>,
}

/// A bucket of S3, or of a store with its protocol.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.prefix) || !self.prefix.matches('(^|/)[.][.]?(/|$)')")
        .message("prefix must not have the parts . and ..")
        .field_path(".prefix"),
    validation = Rule::new("!has(self.kmsKeyID) || (has(self.serverSideEncryption) && self.serverSideEncryption != 'AES256')")
        .message("kmsKeyID requires serverSideEncryption aws:kms or aws:kms:dsse")
)]
pub struct S3 {
    /// Name of the bucket.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), length(min = 1, max = 255))]
    pub bucket: String,

    /// Prefix of every object, without slashes at its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"), length(max = 512))]
    pub prefix: Option<String>,

    /// Region of the bucket. Default: us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]+$"), length(max = 64))]
    pub region: Option<String>,

    /// URL of the service, for one that is not AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        regex(pattern = r"^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._/-]*)?$"),
        length(max = 512)
    )]
    pub endpoint: Option<String>,

    /// Puts the bucket into the path of URLs, not into their host. Default: true with `endpoint`, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_style: Option<bool>,

    /// Storage class of the objects. `verify` and a restore need one whose objects can be read at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+$"), length(max = 64))]
    pub storage_class: Option<String>,

    /// Encryption of the objects by S3. Default: as the bucket is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_side_encryption: Option<ServerSideEncryption>,

    /// Key of AWS's key service that encrypts the objects. Default: AWS's own.
    #[serde(default, rename = "kmsKeyID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9:/_-]+$"), length(max = 512))]
    pub kms_key_id: Option<String>,

    /// Secret with `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and `AWS_SESSION_TOKEN` if there is one. Either this or
    /// `serviceAccountName` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,

    /// CA certificates that the service is trusted by. KubeBrain's image has none, so an `https` service needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<CaBundleRef>,
}

/// Encryption of objects by S3.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum ServerSideEncryption {
    /// With keys of S3.
    #[serde(rename = "AES256")]
    Aes256,
    /// With a key of AWS's key service.
    #[serde(rename = "aws:kms")]
    Kms,
    /// Twice, with keys of AWS's key service.
    #[serde(rename = "aws:kms:dsse")]
    KmsDsse,
}

impl ServerSideEncryption {
    /// Returns the word of the flag.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::Aes256 => "AES256",
            Self::Kms => "aws:kms",
            Self::KmsDsse => "aws:kms:dsse",
        }
    }
}

/// A bucket of Google Cloud Storage.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.prefix) || !self.prefix.matches('(^|/)[.][.]?(/|$)')")
        .message("prefix must not have the parts . and ..")
        .field_path(".prefix")
)]
pub struct Gcs {
    /// Name of the bucket.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), length(min = 1, max = 255))]
    pub bucket: String,

    /// Prefix of every object, without slashes at its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"), length(max = 512))]
    pub prefix: Option<String>,

    /// URL of the service, for one that is not Google's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        regex(pattern = r"^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._/-]*)?$"),
        length(max = 512)
    )]
    pub endpoint: Option<String>,

    /// Storage class of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+$"), length(max = 64))]
    pub storage_class: Option<String>,

    /// Secret with Google's JSON file of credentials in the key `credentials.json`. Either this or `serviceAccountName` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,

    /// CA certificates that the service is trusted by. KubeBrain's image has none, so an `https` service needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<CaBundleRef>,
}

/// A container of Azure Blob Storage.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.prefix) || !self.prefix.matches('(^|/)[.][.]?(/|$)')")
        .message("prefix must not have the parts . and ..")
        .field_path(".prefix")
)]
pub struct Azure {
    /// Name of the storage account.
    #[schemars(regex(pattern = r"^[a-z0-9]+$"), length(min = 3, max = 24))]
    pub account: String,

    /// Name of the container.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), length(min = 1, max = 255))]
    pub container: String,

    /// Prefix of every object, without slashes at its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"), length(max = 512))]
    pub prefix: Option<String>,

    /// URL of the service, for one that is not Azure's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        regex(pattern = r"^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._/-]*)?$"),
        length(max = 512)
    )]
    pub endpoint: Option<String>,

    /// Access tier of the objects, such as Cool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+$"), length(max = 64))]
    pub access_tier: Option<String>,

    /// Secret with `AZURE_STORAGE_ACCOUNT_KEY`, with `AZURE_STORAGE_SAS_TOKEN`, or with `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` and
    /// `AZURE_CLIENT_SECRET`. Either this or `serviceAccountName` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<LocalRef>,

    /// CA certificates that the service is trusted by. KubeBrain's image has none, so an `https` service needs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<CaBundleRef>,
}

/// A directory of a volume.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.path) || !self.path.matches('(^|/)[.][.]?(/|$)')")
        .message("path must not have the parts . and ..")
        .field_path(".path")
)]
pub struct ClaimDirectory {
    /// Name of a PersistentVolumeClaim in this namespace. Volumes of clusters are refused.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,

    /// Directory in the volume, without slashes at its ends. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"), length(max = 512))]
    pub path: Option<String>,
}

/// Reference to one key of a ConfigMap or Secret in the same namespace that holds CA certificates, as PEM.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaBundleRef {
    /// Kind of the object.
    #[serde(default)]
    pub kind: BundleKind,

    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Key in the object's data. Default: `ca.crt`.
    #[serde(default = "ca_crt")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn ca_crt() -> String {
    "ca.crt".to_owned()
}
