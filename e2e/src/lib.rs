//! Starts and stops the real thing: Kubernetes, etcd, brains and the operator.

pub mod progress;
pub mod tools;
