//! The messages of a Pod: `k8s.io.api.core.v1`.

use std::collections::BTreeMap;

use prost::Message;

use super::meta::{ObjectMeta, Time};

mod container;
mod status;
mod volume;

pub(crate) use container::*;
pub(crate) use status::*;
pub(crate) use volume::*;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pod {
    #[prost(message, required, tag = "1")]
    pub(crate) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(crate) spec: PodSpec,
    #[prost(message, required, tag = "3")]
    pub(crate) status: PodStatus,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSpec {
    #[prost(message, repeated, tag = "1")]
    pub(crate) volumes: Vec<Volume>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) containers: Vec<Container>,
    #[prost(string, required, tag = "3")]
    pub(crate) restart_policy: String,
    #[prost(int64, optional, tag = "4")]
    pub(crate) termination_grace_period_seconds: Option<i64>,
    #[prost(string, required, tag = "6")]
    pub(crate) dns_policy: String,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) node_selector: BTreeMap<String, String>,
    #[prost(string, required, tag = "8")]
    pub(crate) service_account_name: String,
    #[prost(string, required, tag = "9")]
    pub(crate) deprecated_service_account: String,
    #[prost(string, required, tag = "10")]
    pub(crate) node_name: String,
    #[prost(bool, required, tag = "11")]
    pub(crate) host_network: bool,
    #[prost(bool, required, tag = "12")]
    pub(crate) host_pid: bool,
    #[prost(bool, required, tag = "13")]
    pub(crate) host_ipc: bool,
    #[prost(message, optional, tag = "14")]
    pub(crate) security_context: Option<PodSecurityContext>,
    #[prost(string, required, tag = "16")]
    pub(crate) hostname: String,
    #[prost(string, required, tag = "17")]
    pub(crate) subdomain: String,
    #[prost(string, required, tag = "19")]
    pub(crate) scheduler_name: String,
    #[prost(message, repeated, tag = "22")]
    pub(crate) tolerations: Vec<Toleration>,
    #[prost(string, required, tag = "24")]
    pub(crate) priority_class_name: String,
    #[prost(int32, optional, tag = "25")]
    pub(crate) priority: Option<i32>,
    #[prost(bool, optional, tag = "30")]
    pub(crate) enable_service_links: Option<bool>,
    #[prost(string, optional, tag = "31")]
    pub(crate) preemption_policy: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSecurityContext {
    #[prost(int64, optional, tag = "2")]
    pub(crate) run_as_user: Option<i64>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) run_as_non_root: Option<bool>,
    #[prost(int64, optional, tag = "5")]
    pub(crate) fs_group: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Toleration {
    #[prost(string, required, tag = "1")]
    pub(crate) key: String,
    #[prost(string, required, tag = "2")]
    pub(crate) operator: String,
    #[prost(string, required, tag = "3")]
    pub(crate) value: String,
    #[prost(string, required, tag = "4")]
    pub(crate) effect: String,
    #[prost(int64, optional, tag = "5")]
    pub(crate) toleration_seconds: Option<i64>,
}

/// The name of an object in the same namespace.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LocalObjectReference {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
}
