//! Starts and stops the real thing: Kubernetes with brains, etcd and the operator, in a network of its own.
//!
//! A cluster is run by one process, its [`cluster_process`]; [`cluster`] is how others start it and reach it. Brains and the operator
//! are programs in it: of their crates it may depend on `runtime` alone, which knows neither.

pub mod addons;
pub mod apiserver;
pub mod cgroups;
pub mod cleanup;
pub mod cluster;
pub mod cluster_context;
pub mod cluster_dir;
pub mod cluster_process;
pub mod config;
pub mod containerd;
pub mod controllers;
pub mod credentials;
pub mod demo;
pub mod forward;
pub mod images;
pub mod inside;
pub mod kubeconfig;
pub mod kubectl;
pub mod kubelet;
pub mod lock;
pub mod log_check;
pub mod marker;
pub mod mounts;
pub mod namespace;
pub mod pki;
pub mod state;
pub mod store;
pub mod supervisor;
pub mod tenant;
pub mod volumes;
