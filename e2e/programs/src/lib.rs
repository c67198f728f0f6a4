//! Programs that tests and measurements run on this machine: found, installed or built ([`tools`]), started and ended.
//!
//! [`server`] is one brain or etcd, [`members`] are several of one cluster, and [`tikv`] is what brains store in.
//! It must not depend on Kubernetes or on a crate of the brain.

pub mod command;
pub mod complaints;
pub mod conformance;
pub mod members;
pub mod probe;
pub mod progress;
pub mod server;
pub mod tcp_proxy;
pub mod tikv;
pub mod tools;
pub mod watchdog;
