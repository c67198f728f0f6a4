// Copyright 2018 TiKV Project Authors. Licensed under Apache-2.0.

//! This crate provides an easy-to-use client for [TiKV](https://github.com/tikv/tikv), a
//! distributed, transactional key-value database written in Rust.
//!
//! A changed copy of version 0.4.0: NOTICE says how.

#![allow(
    clippy::disallowed_methods,
    reason = "tasks end with their requests, and this crate has no Tasks to start them"
)]

mod backoff;
mod common;
mod config;
mod kv;
mod pd;
mod proto;
mod region;
mod region_cache;
mod request;
mod store;
mod timestamp;
mod transaction;

#[cfg(test)]
mod mock;

pub use crate::backoff::Backoff;
pub use crate::common::Error;
pub use crate::common::ProtoKeyError;
pub use crate::common::ProtoRegionError;
pub use crate::common::Result;
pub use crate::config::Config;
pub use crate::kv::BoundRange;
pub use crate::kv::Key;
pub use crate::kv::KvPair;
pub use crate::kv::Value;
pub use crate::request::RetryOptions;
pub use crate::timestamp::Timestamp;
pub use crate::timestamp::TimestampExt;
pub use crate::transaction::CleanupLocksResult;
pub use crate::transaction::Client as TransactionClient;
pub use crate::transaction::Mutation;
pub use crate::transaction::ProtoLockInfo;
pub use crate::transaction::Snapshot;
pub use crate::transaction::Transaction;
pub use crate::transaction::TransactionOptions;
