//! etcd's services over a store and its members. Protobuf messages of the wire stop here.
//!
//! It must not know storage engines.

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
