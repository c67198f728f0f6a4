//! The gRPC API: etcd's services over the modules below. Protobuf types stay in this module.

pub mod about;
pub mod auth;
pub mod cluster;
pub mod concurrency;
pub mod context;
pub mod election;
pub mod header;
pub mod health;
pub mod kv;
pub mod lease;
pub mod lock;
pub mod loggable;
pub mod maintenance;
pub mod request;
pub mod response;
pub mod scrub;
pub mod watch;
