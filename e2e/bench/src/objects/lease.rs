//! The messages of a Lease: `k8s.io.api.coordination.v1`.

use prost::Message;

use super::meta::{ObjectMeta, Time};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lease {
    #[prost(message, required, tag = "1")]
    pub(crate) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(crate) spec: LeaseSpec,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseSpec {
    #[prost(string, optional, tag = "1")]
    pub(crate) holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) lease_duration_seconds: Option<i32>,
    /// A MicroTime, which has the same fields.
    #[prost(message, optional, tag = "4")]
    pub(crate) renew_time: Option<Time>,
}
