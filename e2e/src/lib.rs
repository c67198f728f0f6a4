//! Starts and stops the real thing: Kubernetes, etcd, brains and the operator.
//!
//! A cluster is run by one process, its [`host`]; [`cluster`] is how others start it and reach it.

pub mod addons;
pub mod apiserver;
pub mod cgroups;
pub mod cluster;
pub mod command;
pub mod complaints;
pub mod config;
pub mod containerd;
pub mod controllers;
pub mod credentials;
pub mod deadline;
pub mod demo;
pub mod differential;
pub mod forward;
pub mod home;
pub mod host;
pub mod images;
pub mod inside;
pub mod kubeconfig;
pub mod kubectl;
pub mod kubelet;
pub mod lock;
pub mod marker;
pub mod members;
pub mod mounts;
pub mod namespace;
pub mod pki;
pub mod probe;
pub mod progress;
pub mod relay;
pub mod server;
pub mod site;
pub mod state;
pub mod store;
pub mod supervisor;
pub mod sweep;
pub mod tenant;
pub mod tikv;
pub mod tools;
pub mod upstream;
pub mod volumes;
pub mod wire;
