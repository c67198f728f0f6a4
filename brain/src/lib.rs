//! `kubebrain`: a server that every etcd v3 client takes for etcd.
//!
//! Modules in reading order: the two traits below which bytes are durable, the versions between them, the only writer, and the API
//! for clients. Dependencies point downwards only: see ARCHITECTURE.md.

pub mod server;

pub mod data_dir;
pub mod flags;
#[cfg(test)]
mod fuzzing;
