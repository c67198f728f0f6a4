//! The status that the kubelet reports of a pod.

use prost::Message;

use super::{ResourceRequirements, Time};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodStatus {
    #[prost(string, required, tag = "1")]
    pub(crate) phase: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) conditions: Vec<PodCondition>,
    #[prost(string, required, tag = "3")]
    pub(crate) message: String,
    #[prost(string, required, tag = "4")]
    pub(crate) reason: String,
    #[prost(string, required, tag = "5")]
    pub(crate) host_ip: String,
    #[prost(string, required, tag = "6")]
    pub(crate) pod_ip: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) start_time: Option<Time>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) container_statuses: Vec<ContainerStatus>,
    #[prost(string, required, tag = "9")]
    pub(crate) qos_class: String,
    #[prost(string, required, tag = "11")]
    pub(crate) nominated_node_name: String,
    #[prost(message, repeated, tag = "12")]
    pub(crate) pod_ips: Vec<IpAddress>,
    #[prost(string, required, tag = "14")]
    pub(crate) resize: String,
    #[prost(message, repeated, tag = "16")]
    pub(crate) host_ips: Vec<IpAddress>,
    #[prost(int64, required, tag = "17")]
    pub(crate) observed_generation: i64,
}

/// `PodIP` and `HostIP`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IpAddress {
    #[prost(string, required, tag = "1")]
    pub(crate) ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodCondition {
    #[prost(string, required, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, required, tag = "2")]
    pub(crate) status: String,
    /// Never set: an empty message.
    #[prost(message, required, tag = "3")]
    pub(crate) last_probe_time: UnsetTime,
    #[prost(message, required, tag = "4")]
    pub(crate) last_transition_time: Time,
    #[prost(string, required, tag = "5")]
    pub(crate) reason: String,
    #[prost(string, required, tag = "6")]
    pub(crate) message: String,
    #[prost(int64, required, tag = "7")]
    pub(crate) observed_generation: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct UnsetTime {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(message, required, tag = "2")]
    pub(crate) state: ContainerState,
    #[prost(message, required, tag = "3")]
    pub(crate) last_state: ContainerState,
    #[prost(bool, required, tag = "4")]
    pub(crate) ready: bool,
    #[prost(int32, required, tag = "5")]
    pub(crate) restart_count: i32,
    #[prost(string, required, tag = "6")]
    pub(crate) image: String,
    #[prost(string, required, tag = "7")]
    pub(crate) image_id: String,
    #[prost(string, required, tag = "8")]
    pub(crate) container_id: String,
    #[prost(bool, optional, tag = "9")]
    pub(crate) started: Option<bool>,
    #[prost(message, optional, tag = "11")]
    pub(crate) resources: Option<ResourceRequirements>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) volume_mounts: Vec<VolumeMountStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerState {
    #[prost(message, optional, tag = "1")]
    pub(crate) waiting: Option<ContainerStateWaiting>,
    #[prost(message, optional, tag = "2")]
    pub(crate) running: Option<ContainerStateRunning>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStateWaiting {
    #[prost(string, required, tag = "1")]
    pub(crate) reason: String,
    #[prost(string, required, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ContainerStateRunning {
    #[prost(message, required, tag = "1")]
    pub(crate) started_at: Time,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VolumeMountStatus {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) mount_path: String,
    #[prost(bool, required, tag = "3")]
    pub(crate) read_only: bool,
    #[prost(string, optional, tag = "4")]
    pub(crate) recursive_read_only: Option<String>,
}
