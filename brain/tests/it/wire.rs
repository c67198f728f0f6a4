//! A request to an etcd, and what comes back, each as one type.

use std::future::Future;

pub(crate) use etcd_types::pb::etcdserverpb as pb;
pub(crate) use etcd_types::pb::mvccpb::KeyValue;
use tonic::Code;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    KeepAlive(pb::LeaseKeepAliveRequest),
    TimeToLive(pb::LeaseTimeToLiveRequest),
    Leases(pb::LeaseLeasesRequest),
}

/// The answer to the request of the same name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Response {
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    Delete(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compact(pb::CompactionResponse),
    Grant(pb::LeaseGrantResponse),
    Revoke(pb::LeaseRevokeResponse),
    KeepAlive(pb::LeaseKeepAliveResponse),
    TimeToLive(pb::LeaseTimeToLiveResponse),
    Leases(pb::LeaseLeasesResponse),
}

/// An error as clients see it: they look at both.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl From<tonic::Status> for Refusal {
    fn from(status: tonic::Status) -> Self {
        Self {
            code: status.code(),
            text: status.message().to_owned(),
        }
    }
}

pub(crate) type Answer = Result<Response, Refusal>;

/// A server that answers like an etcd.
pub(crate) trait Target {
    fn call(&mut self, request: Request) -> impl Future<Output = Answer>;
}

impl Response {
    /// The header that names cluster and member; those of operations in a txn do not.
    pub(crate) fn header_mut(&mut self) -> &mut Option<pb::ResponseHeader> {
        match self {
            Self::Range(response) => &mut response.header,
            Self::Put(response) => &mut response.header,
            Self::Delete(response) => &mut response.header,
            Self::Txn(response) => &mut response.header,
            Self::Compact(response) => &mut response.header,
            Self::Grant(response) => &mut response.header,
            Self::Revoke(response) => &mut response.header,
            Self::KeepAlive(response) => &mut response.header,
            Self::TimeToLive(response) => &mut response.header,
            Self::Leases(response) => &mut response.header,
        }
    }
}
