//! Copies of a store: etcd's snapshot files, stores that are made of them, and copies of a running etcd.
//!
//! It must not know how clients are served.

pub mod archive;
pub mod import;
pub mod snapshot;
