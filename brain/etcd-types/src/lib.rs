//! The API that etcd's clients see: its messages, the types that a store uses for them, and its errors with their codes and texts.
//!
//! It must not know how anything is stored or served.

pub mod errors;
mod request_timeout;
pub mod types;
pub mod url;
pub mod version;

pub use request_timeout::{REQUEST_TIMEOUT, request_timeout};

/// The descriptors of all messages: an encoded `FileDescriptorSet`.
pub static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Wire messages of the etcd v3 API, generated from `proto/`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated code"
)]
pub mod pb {
    /// Keys, values and events.
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    /// The messages between members.
    pub mod peerpb {
        tonic::include_proto!("peerpb");
    }
    /// Permissions and options of users.
    pub mod authpb {
        tonic::include_proto!("authpb");
    }
    /// Locks.
    pub mod v3lockpb {
        tonic::include_proto!("v3lockpb");
    }
    /// Elections.
    pub mod v3electionpb {
        tonic::include_proto!("v3electionpb");
    }
    /// Health checks of gRPC.
    pub mod healthpb {
        tonic::include_proto!("grpc.health.v1");
    }
    /// Services, requests and responses.
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
}
