//! The status of a transaction, asked by others that met its locks.

use bytes::Bytes;

use super::tables::Fate;
use super::{Decision, Tables};
use crate::change::{ChangeContent, Lock};
use crate::proto::kvrpcpb::{
    Action, CheckSecondaryLocksRequest, CheckSecondaryLocksResponse, CheckTxnStatusRequest, CheckTxnStatusResponse,
    KeyError, PrimaryMismatch, TxnNotFound,
};

/// Milliseconds of a timestamp: the lower 18 bits count within one.
pub(super) fn physical(ts: u64) -> u64 {
    ts >> 18
}

/// Looks at the primary; ends the transaction when its time to live is over, or, if so asked, when there is no trace of it.
pub(crate) fn check_txn_status(tables: &Tables, request: &CheckTxnStatusRequest) -> Decision<CheckTxnStatusResponse> {
    if let Some(lock) = tables.lock_of(&request.primary_key, request.lock_ts) {
        return check_lock(tables, request, lock);
    }
    let mut reply = CheckTxnStatusResponse::default();
    match tables.fate(&request.primary_key, request.lock_ts) {
        Fate::Committed(ts) => reply.commit_version = ts,
        Fate::RolledBack => {}
        Fate::Unknown if !request.rollback_if_not_exist => {
            let primary_key = request.primary_key.clone();
            let not_found = TxnNotFound {
                start_ts: request.lock_ts,
                primary_key,
            };
            reply.error = Some(KeyError {
                txn_not_found: Some(not_found),
                ..Default::default()
            });
        }
        Fate::Unknown if request.resolving_pessimistic_lock => reply.action = Action::LockNotExistDoNothing.into(),
        Fate::Unknown => {
            reply.action = Action::LockNotExistRollback.into();
            let key = Bytes::copy_from_slice(&request.primary_key);
            return Decision::new(reply, tables.rollback(&key, request.lock_ts));
        }
    }
    Decision::unchanged(reply)
}

fn check_lock(tables: &Tables, request: &CheckTxnStatusRequest, lock: &Lock) -> Decision<CheckTxnStatusResponse> {
    let mut reply = CheckTxnStatusResponse::default();
    if request.verify_is_primary && lock.info.primary_lock != request.primary_key {
        let mismatch = PrimaryMismatch {
            lock_info: Some(lock.info.clone()),
        };
        reply.error = Some(KeyError {
            primary_mismatch: Some(mismatch),
            ..Default::default()
        });
        return Decision::unchanged(reply);
    }
    let held = |reply: &mut CheckTxnStatusResponse, lock: &Lock| {
        reply.lock_ttl = lock.info.lock_ttl;
        reply.lock_info = Some(lock.info.clone());
    };
    if lock.info.use_async_commit && !request.force_sync_commit {
        held(&mut reply, lock);
        return Decision::unchanged(reply);
    }
    let key = lock.info.key.clone();
    if physical(lock.info.lock_version).saturating_add(lock.info.lock_ttl) < physical(request.current_ts) {
        if request.resolving_pessimistic_lock && lock.is_pessimistic() {
            reply.action = Action::TtlExpirePessimisticRollback.into();
            return Decision::new(reply, vec![ChangeContent::Unlock(key)]);
        }
        reply.action = Action::TtlExpireRollback.into();
        return Decision::new(reply, tables.rollback(&key, request.lock_ts));
    }
    let pushable = lock.info.min_commit_ts > 0 && request.caller_start_ts != u64::MAX;
    if pushable && request.caller_start_ts >= lock.info.min_commit_ts {
        let mut pushed = lock.clone();
        pushed.info.min_commit_ts = (request.caller_start_ts + 1).max(request.current_ts);
        reply.action = Action::MinCommitTsPushed.into();
        held(&mut reply, &pushed);
        return Decision::new(reply, vec![ChangeContent::Lock(pushed)]);
    }
    held(&mut reply, lock);
    Decision::unchanged(reply)
}

/// The locks of an async commit's other keys. The first key without one decides: its commit timestamp, or, when it has
/// none, a rollback that keeps the transaction from ever committing.
pub(crate) fn check_secondary_locks(
    tables: &Tables,
    request: &CheckSecondaryLocksRequest,
) -> Decision<CheckSecondaryLocksResponse> {
    let mut reply = CheckSecondaryLocksResponse::default();
    for key in &request.keys {
        match tables.lock_of(key, request.start_version) {
            Some(lock) if !lock.is_pessimistic() => {
                reply.locks.push(lock.info.clone());
                continue;
            }
            _ => reply.locks.clear(),
        }
        if let Fate::Committed(ts) = tables.fate(key, request.start_version) {
            reply.commit_ts = ts;
            return Decision::unchanged(reply);
        }
        let changes = tables.rollback(&Bytes::copy_from_slice(key), request.start_version);
        return Decision::new(reply, changes);
    }
    Decision::unchanged(reply)
}

/// The error of a heartbeat or the like for a transaction that has no lock here.
pub(super) fn not_found(start_ts: u64, primary_key: &Bytes) -> KeyError {
    let not_found = TxnNotFound {
        start_ts,
        primary_key: primary_key.clone(),
    };
    KeyError {
        txn_not_found: Some(not_found),
        ..Default::default()
    }
}
