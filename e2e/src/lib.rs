//! Starts and stops the real thing: Kubernetes, etcd, brains and the operator.

pub mod differential;
pub mod progress;
pub mod server;
pub mod tools;
pub mod upstream;
pub mod wire;
