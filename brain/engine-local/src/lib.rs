//! The engines of one machine: a log in files, and rows in an LSM tree.
//!
//! It must not know etcd, nor other engines.

pub mod log;
pub mod rows;
