//! etcd's services over a store and its members. Protobuf messages of the wire stop here.
//!
//! It must not know storage engines.

pub mod auth;
pub mod cluster;
pub mod concurrency;
pub mod context;
pub mod corruption_check;
pub mod election;
mod forward;
pub mod header;
pub mod health;
pub mod kv;
pub mod leader_request;
pub mod lease;
pub mod lock;
pub mod maintenance;
pub mod member_page;
pub mod request;
pub mod request_log;
pub mod response;
pub mod watch;
