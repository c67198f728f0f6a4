//! The program `kubebrain`, an etcd-v3-compatible server built for Kubernetes: it reads the flags, opens a store on the configured engine,
//! and serves it. ARCHITECTURE.md has the map of the crates that it is made of.

pub mod data_dir;
pub mod flags;
pub mod server;
mod sizing;

#[cfg(test)]
mod fuzzing;
