//! The client side of the etcd v3 API, generated from the brain's wire files.

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
