// Copyright 2018 TiKV Project Authors. Licensed under Apache-2.0.

//! Transactional related functionality.
//!
//! Using the [`TransactionClient`](client::Client) you can utilize TiKV's transactional interface.
//!
//! This interface offers SQL-like transactions.

pub use crate::request::plan::CleanupLocksResult;
pub use client::Client;
pub use client::ProtoLockInfo;
pub(crate) use client::SCAN_LOCK_BATCH_SIZE;
pub(crate) use lock::resolve_locks;
pub(crate) use lock::HasLocks;
pub use snapshot::Snapshot;
pub use transaction::Mutation;
pub use transaction::Transaction;
pub use transaction::TransactionOptions;

mod buffer;
mod client;
mod lock;
pub(crate) mod lowering;
mod requests;
pub(crate) use lock::LockResolver;
pub(crate) use lock::ResolveLocksContext;
mod snapshot;
#[cfg(test)]
mod tests;
#[allow(clippy::module_inception)]
mod transaction;
