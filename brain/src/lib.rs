//! `kubebrain`: a server that every etcd v3 client takes for etcd.
//!
//! Modules in reading order: the two traits below which bytes are durable, the versions between them, the only writer, and the API
//! for clients. Dependencies point downwards only: see ARCHITECTURE.md.

pub mod cas_register;
pub mod tikv;

pub mod log;
pub mod rows;

pub mod mvcc;
pub mod watch;

pub mod storage;

pub mod snapshot;

pub mod sequencer;

pub mod net;

pub mod cluster;

pub mod api;

pub mod import;

pub mod server;

pub mod clock;
pub mod data_dir;
pub mod errors;
pub mod flags;
pub mod metrics;
pub mod otel;
pub mod refusal;
pub mod slow_requests;
pub mod telemetry;
pub mod types;
pub mod version;

#[cfg(test)]
mod fuzzing;
#[cfg(test)]
mod rooms;
#[cfg(test)]
mod small_disk;

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
