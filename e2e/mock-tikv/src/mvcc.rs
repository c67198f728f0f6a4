//! Percolator's multi-version store, as TiKV's transaction commands see it.
//!
//! Pure: a command is decided over the current tables and returns its changes; replication applies them. The caller holds latches on the
//! keys of a command from its decision until it is applied.

mod commit;
mod errors;
mod pessimistic;
mod prewrite;
mod read;
mod resolve;
mod status;
mod tables;

use crate::change::ChangeContent;
use crate::proto::kvrpcpb::LockInfo;

pub(crate) use commit::{batch_rollback, commit};
pub(crate) use pessimistic::{heart_beat, pessimistic_lock, pessimistic_rollback};
pub(crate) use prewrite::prewrite;
pub(crate) use read::{batch_get, get, scan, scan_lock};
pub(crate) use resolve::{fates, resolve};
pub(crate) use status::{check_secondary_locks, check_txn_status};
pub(crate) use tables::Tables;

/// Result of a command: its answer, and the changes that must be durable before the answer is sent.
#[derive(Debug)]
pub(crate) struct Decision<R> {
    pub(crate) reply: R,
    pub(crate) changes: Vec<ChangeContent>,
    /// Locks that readers must see from the decision on although the commit is not applied yet: those of one-phase and
    /// async commits, whose commit timestamp is chosen here.
    pub(crate) pending: Vec<LockInfo>,
}

impl<R> Decision<R> {
    /// Nothing changes.
    pub(crate) fn unchanged(reply: R) -> Self {
        Self::new(reply, Vec::new())
    }

    pub(crate) fn new(reply: R, changes: Vec<ChangeContent>) -> Self {
        Self {
            reply,
            changes,
            pending: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
