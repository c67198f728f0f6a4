//! Containers.

use std::collections::BTreeMap;

use prost::Message;

use super::LocalObjectReference;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) image: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) args: Vec<String>,
    #[prost(string, required, tag = "5")]
    pub(crate) working_dir: String,
    #[prost(message, repeated, tag = "6")]
    pub(crate) ports: Vec<ContainerPort>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) env: Vec<EnvVar>,
    #[prost(message, required, tag = "8")]
    pub(crate) resources: ResourceRequirements,
    #[prost(message, repeated, tag = "9")]
    pub(crate) volume_mounts: Vec<VolumeMount>,
    #[prost(message, optional, tag = "10")]
    pub(crate) liveness_probe: Option<Probe>,
    #[prost(message, optional, tag = "11")]
    pub(crate) readiness_probe: Option<Probe>,
    #[prost(string, required, tag = "13")]
    pub(crate) termination_message_path: String,
    #[prost(string, required, tag = "14")]
    pub(crate) image_pull_policy: String,
    #[prost(message, optional, tag = "15")]
    pub(crate) security_context: Option<SecurityContext>,
    #[prost(bool, required, tag = "16")]
    pub(crate) stdin: bool,
    #[prost(bool, required, tag = "17")]
    pub(crate) stdin_once: bool,
    #[prost(bool, required, tag = "18")]
    pub(crate) tty: bool,
    #[prost(string, required, tag = "20")]
    pub(crate) termination_message_policy: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerPort {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, required, tag = "2")]
    pub(crate) host_port: i32,
    #[prost(int32, required, tag = "3")]
    pub(crate) container_port: i32,
    #[prost(string, required, tag = "4")]
    pub(crate) protocol: String,
    #[prost(string, required, tag = "5")]
    pub(crate) host_ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvVar {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) value: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) value_from: Option<EnvVarSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvVarSource {
    #[prost(message, optional, tag = "1")]
    pub(crate) field_ref: Option<ObjectFieldSelector>,
    #[prost(message, optional, tag = "4")]
    pub(crate) secret_key_ref: Option<SecretKeySelector>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectFieldSelector {
    #[prost(string, required, tag = "1")]
    pub(crate) api_version: String,
    #[prost(string, required, tag = "2")]
    pub(crate) field_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretKeySelector {
    #[prost(message, required, tag = "1")]
    pub(crate) secret: LocalObjectReference,
    #[prost(string, required, tag = "2")]
    pub(crate) key: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceRequirements {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) limits: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) requests: BTreeMap<String, Quantity>,
}

/// `k8s.io.apimachinery.pkg.api.resource.Quantity`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Quantity {
    #[prost(string, required, tag = "1")]
    pub(crate) string: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VolumeMount {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(bool, required, tag = "2")]
    pub(crate) read_only: bool,
    #[prost(string, required, tag = "3")]
    pub(crate) mount_path: String,
    #[prost(string, required, tag = "4")]
    pub(crate) sub_path: String,
    #[prost(string, required, tag = "6")]
    pub(crate) sub_path_expr: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Probe {
    #[prost(message, required, tag = "1")]
    pub(crate) handler: ProbeHandler,
    #[prost(int32, required, tag = "2")]
    pub(crate) initial_delay_seconds: i32,
    #[prost(int32, required, tag = "3")]
    pub(crate) timeout_seconds: i32,
    #[prost(int32, required, tag = "4")]
    pub(crate) period_seconds: i32,
    #[prost(int32, required, tag = "5")]
    pub(crate) success_threshold: i32,
    #[prost(int32, required, tag = "6")]
    pub(crate) failure_threshold: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProbeHandler {
    #[prost(message, optional, tag = "2")]
    pub(crate) http_get: Option<HttpGetAction>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpGetAction {
    #[prost(string, required, tag = "1")]
    pub(crate) path: String,
    #[prost(message, required, tag = "2")]
    pub(crate) port: IntOrString,
    #[prost(string, required, tag = "3")]
    pub(crate) host: String,
    #[prost(string, required, tag = "4")]
    pub(crate) scheme: String,
}

/// `k8s.io.apimachinery.pkg.util.intstr.IntOrString`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IntOrString {
    #[prost(int64, required, tag = "1")]
    pub(crate) kind: i64,
    #[prost(int32, required, tag = "2")]
    pub(crate) int: i32,
    #[prost(string, required, tag = "3")]
    pub(crate) string: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) capabilities: Option<Capabilities>,
    #[prost(bool, optional, tag = "2")]
    pub(crate) privileged: Option<bool>,
    #[prost(int64, optional, tag = "4")]
    pub(crate) run_as_user: Option<i64>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) run_as_non_root: Option<bool>,
    #[prost(bool, optional, tag = "6")]
    pub(crate) read_only_root_filesystem: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub(crate) allow_privilege_escalation: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Capabilities {
    #[prost(string, repeated, tag = "2")]
    pub(crate) drop: Vec<String>,
}
