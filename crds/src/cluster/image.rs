//! The container image that the brains run.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source of the brain's image.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.repository) || !self.repository.matches('(^|/)[^/]*:[^/]*$')")
        .message("image.repository must have no tag: the tag is spec.version, or set image.digest")
        .field_path(".repository")
)]
pub struct Image {
    /// Repository without tag or digest. The tag is `version`. Default: the repository of the operator's `--default-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 255),
        regex(pattern = r"^[a-zA-Z0-9][a-zA-Z0-9._:/-]*[a-zA-Z0-9]$")
    )]
    pub repository: Option<String>,

    /// Digest such as `sha256:…`, used instead of the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 136), regex(pattern = r"^sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})$"))]
    pub digest: Option<String>,

    /// When the kubelet pulls the image. If not set, Kubernetes decides by the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When the kubelet pulls the image. Default: chosen by Kubernetes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum PullPolicy {
    /// Pulls at every start of a container.
    Always,
    /// Pulls only if the node has no image of that name.
    IfNotPresent,
    /// Never pulls; the node must already have the image.
    Never,
}

/// Reference to an object in the same namespace by name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Reference to one key of a Secret or ConfigMap in the same namespace.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
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

/// Reference to an object of another API in the same namespace, by group, kind and name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API group of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub group: Option<String>,

    /// Kind of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub kind: Option<String>,

    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
