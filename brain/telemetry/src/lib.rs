//! Logs, metrics and spans of a member, under etcd's names and in etcd's formats.
//!
//! It must not know what is measured: others update the handles that it gives them.

pub mod logs;
pub mod metrics;
pub mod otel;
pub mod slow_requests;
