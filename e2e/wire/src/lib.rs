//! The client side of the etcd v3 API, generated from the brain's wire files.
//!
//! It must not depend on a crate of the brain: tests see a server as its clients do.

/// Descriptors of all messages, for reading and writing them as JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Keys, values and events.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Requests, responses and the clients of each service.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Permissions and options of users.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod authpb {
    tonic::include_proto!("authpb");
}

/// Locks.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

/// Elections.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}
