//! The one record that candidates compete for.

use std::future::Future;

use crate::record::Record;

/// A place for one [`Record`] that can be compared and set.
///
/// Laws, proved for every implementation by [`laws`](crate::laws):
/// 1. `create` writes only where there is no record; `update` writes only over the very write that `expected` names.
/// 2. A version identifies one record for ever: no write of another record has the same, not even one that restores an older
///    record. (Kubernetes does not count a write that changes nothing. The elector makes none: `renew_time` always advances.)
/// 3. `get` returns every write that was acknowledged before the call, and never an older one than an earlier `get` did.
/// 4. [`LockError::Conflict`] means that nothing was written and never will be. [`LockError::Failed`] of a write promises nothing:
///    the write may have happened, or may happen later, as long as law 1 allows it. The same holds for a write whose future was dropped.
///
/// Calls need no time limit of their own (the elector has one), but must be safe to drop.
pub trait Lock: Send + Sync + 'static {
    /// The identifier of one write.
    type Version: Clone + Send + Sync + 'static;

    /// Returns the record and its version; `None` if there is none.
    fn get(&self) -> impl Future<Output = Result<Option<(Record, Self::Version)>, LockError>> + Send;

    /// Writes the first record.
    fn create(&self, record: &Record) -> impl Future<Output = Result<Self::Version, LockError>> + Send;

    /// Replaces the record that `expected` names.
    fn update(
        &self,
        record: &Record,
        expected: &Self::Version,
    ) -> impl Future<Output = Result<Self::Version, LockError>> + Send;

    /// Does what an update of the record that `expected` names can do before it is sent, so that the lease, which counts from when
    /// it is sent, loses no time to that. Changes nothing, and does not fail: the update does again what is missing.
    fn prepare(&self, expected: &Self::Version) -> impl Future<Output = ()> + Send {
        let _ = expected;
        std::future::ready(())
    }

    /// Returns the lock's name for log lines.
    fn describe(&self) -> String;
}

/// The reason why a call to a lock failed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another candidate wrote first: read again.
    #[error("another candidate changed the lock")]
    Conflict,
    /// The outcome is unknown, or the lock cannot be read: try again later.
    #[error("no answer from the lock")]
    Failed(#[source] anyhow::Error),
}
