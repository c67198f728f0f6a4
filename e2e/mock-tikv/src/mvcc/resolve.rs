//! Carrying a decided transaction's fate to the locks it left.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Decision, Tables};
use crate::change::ChangeContent;
use crate::proto::kvrpcpb::{ResolveLockRequest, ResolveLockResponse};

/// Commit timestamps by start timestamp, zero for a rollback, as the request tells them in either of its forms.
pub(crate) fn fates(request: &ResolveLockRequest) -> BTreeMap<u64, u64> {
    if request.txn_infos.is_empty() {
        return BTreeMap::from([(request.start_version, request.commit_version)]);
    }
    request.txn_infos.iter().map(|info| (info.txn, info.status)).collect()
}

/// Commits or rolls back those of `keys` that are still locked by one of the transactions.
pub(crate) fn resolve(tables: &Tables, keys: &[Bytes], fates: &BTreeMap<u64, u64>) -> Decision<ResolveLockResponse> {
    let mut changes = Vec::new();
    for lock in keys.iter().filter_map(|key| tables.locks.get(key)) {
        match fates.get(&lock.info.lock_version) {
            None => {}
            Some(0) => changes.extend(tables.rollback(&lock.info.key, lock.info.lock_version)),
            Some(&commit_ts) => {
                changes.push(ChangeContent::Unlock(lock.info.key.clone()));
                changes.push(tables.committed(lock, commit_ts));
            }
        }
    }
    Decision::new(ResolveLockResponse::default(), changes)
}
