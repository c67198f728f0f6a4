//! gRPC in and out: etcd's services over the modules below. Protobuf types stop here.

pub mod auth;
pub mod cluster;
pub mod contest;
pub mod election;
pub mod elsewhere;
pub mod health;
pub mod kv;
pub mod leaderless;
pub mod lease;
pub mod lock;
pub mod maintenance;
pub mod request;
pub mod response;
pub mod status;
pub mod store;
pub mod watch;
