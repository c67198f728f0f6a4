//! The one record that candidates compete for.

use std::future::Future;

use crate::record::Record;

/// A place for one [`Record`] that can be compared and set.
///
/// Laws, proved for every implementation by [`laws`](crate::laws):
/// 1. `create` writes only where there is no record; `update` writes only over the very write that `expected` names.
/// 2. A version names one record for ever: no write of another record has the same, also not one that restores an older record.
///    (Kubernetes does not count a write that changes nothing. The elector makes none: `renew_time` always moves on.)
/// 3. `get` shows every write that was answered before it was asked, and never an older one than an earlier `get` did.
/// 4. [`LockError::Conflict`] means that nothing was written and never will be. [`LockError::Failed`] of a write promises
///    nothing: it may be there, or appear later, as long as law 1 lets it. So may a write whose future was dropped.
///
/// Calls need no time limit of their own (the elector has one), but must be safe to drop.
pub trait Lock: Send + Sync + 'static {
    /// Names one write.
    type Version: Clone + Send + Sync + 'static;

    /// The record and its version; `None` if there is none.
    fn get(&self) -> impl Future<Output = Result<Option<(Record, Self::Version)>, LockError>> + Send;

    /// Writes the first record.
    fn create(&self, record: &Record) -> impl Future<Output = Result<Self::Version, LockError>> + Send;

    /// Writes over the record that `expected` names.
    fn update(
        &self,
        record: &Record,
        expected: &Self::Version,
    ) -> impl Future<Output = Result<Self::Version, LockError>> + Send;

    /// The lock's name in log lines.
    fn describe(&self) -> String;
}

/// Why a call to a lock did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else was there first: read again.
    #[error("another candidate changed the lock")]
    Conflict,
    /// The outcome is unknown, or the lock cannot be read: try again later.
    #[error("no answer from the lock")]
    Failed(#[source] anyhow::Error),
}
