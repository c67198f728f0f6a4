// Copyright 2018 TiKV Project Authors. Licensed under Apache-2.0.

//! Transactional related functionality.
//!
//! Using the [`TransactionClient`](client::Client) you can utilize TiKV's transactional interface.
//!
//! This interface offers SQL-like transactions.

mod buffer;
mod client;
mod committer;
mod lock;
pub(crate) mod lowering;
mod options;
mod pessimistic;
mod requests;
mod snapshot;
#[cfg(test)]
mod tests;
#[allow(clippy::module_inception)]
mod transaction;

pub use self::client::Client;
pub use self::client::ProtoLockInfo;
pub use self::options::TransactionOptions;
pub use self::snapshot::Snapshot;
pub use self::transaction::Mutation;
pub use self::transaction::Transaction;
pub use crate::request::plan::CleanupLocksResult;

pub(crate) use self::client::SCAN_LOCK_BATCH_SIZE;
pub(crate) use self::committer::TXN_COMMIT_BATCH_SIZE;
pub(crate) use self::lock::resolve_locks;
pub(crate) use self::lock::HasLocks;
pub(crate) use self::lock::LockResolver;
pub(crate) use self::lock::ResolveLocksContext;
