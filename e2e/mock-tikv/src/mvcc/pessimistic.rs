//! Locks taken before the commit, and keeping locks alive.
//!
//! A lock in the way is reported at once: there is no waiting and no deadlock detection here, clients poll.

use bytes::Bytes;

use super::errors::{self, Conflict};
use super::status::not_found;
use super::tables::Fate;
use super::{Decision, Tables};
use crate::change::{ChangeContent, Kind, Lock};
use crate::proto::kvrpcpb::write_conflict::Reason;
use crate::proto::kvrpcpb::{
    Assertion, KeyError, LockInfo, Mutation, Op, PessimisticLockRequest, PessimisticLockResponse,
    PessimisticRollbackRequest, PessimisticRollbackResponse, TxnHeartBeatRequest, TxnHeartBeatResponse,
};

/// Locks all keys, or none.
pub(crate) fn pessimistic_lock(tables: &Tables, request: &PessimisticLockRequest) -> Decision<PessimisticLockResponse> {
    let mut reply = PessimisticLockResponse::default();
    let mut changes = Vec::new();
    for mutation in &request.mutations {
        match lock_key(tables, request, mutation) {
            Ok(lock) => changes.extend(lock.map(ChangeContent::Lock)),
            Err(error) => {
                return Decision::unchanged(PessimisticLockResponse {
                    errors: vec![*error],
                    ..Default::default()
                });
            }
        }
        let newest = Tables::visible(tables.versions(&mutation.key), u64::MAX);
        let value = newest
            .filter(|version| version.kind() == Kind::Put)
            .map(|version| version.value.clone());
        if request.return_values || request.check_existence {
            reply.not_founds.push(value.is_none());
        }
        if request.return_values {
            reply.values.push(value.unwrap_or_default());
        }
    }
    Decision::new(reply, changes)
}

fn lock_key(
    tables: &Tables,
    request: &PessimisticLockRequest,
    mutation: &Mutation,
) -> Result<Option<Lock>, Box<KeyError>> {
    let start_ts = request.start_version;
    match tables.locks.get(&mutation.key) {
        Some(lock) if lock.info.lock_version != start_ts => return Err(errors::locked(&lock.info)),
        Some(lock) if !lock.is_pessimistic() => {
            return Err(errors::abort(format!("transaction {start_ts} has begun to commit")));
        }
        // A repeated request, or the same key locked again for a later statement.
        Some(lock) if lock.info.lock_for_update_ts >= request.for_update_ts => return Ok(None),
        _ => {}
    }
    let conflict = |other, reason| {
        let (key, primary) = (&mutation.key, &request.primary_lock);
        errors::conflict(&Conflict {
            start_ts,
            key,
            primary,
            other,
            reason,
        })
    };
    match tables.fate(&mutation.key, start_ts) {
        Fate::RolledBack => return Err(conflict((start_ts, start_ts), Reason::SelfRolledBack)),
        Fate::Committed(ts) => return Err(errors::abort(format!("transaction {start_ts} is committed at {ts}"))),
        Fate::Unknown => {}
    }
    let newest = tables
        .versions(&mutation.key)
        .iter()
        .rev()
        .find(|version| version.kind() != Kind::Rollback);
    if let Some(version) = newest.filter(|version| version.commit_ts > request.for_update_ts) {
        return Err(conflict(
            (version.start_ts, version.commit_ts),
            Reason::PessimisticRetry,
        ));
    }
    if mutation.assertion() == Assertion::NotExist && tables.exists(&mutation.key) {
        return Err(errors::already_exists(&mutation.key));
    }
    Ok(Some(new_lock(request, &mutation.key)))
}

fn new_lock(request: &PessimisticLockRequest, key: &Bytes) -> Lock {
    let info = LockInfo {
        primary_lock: Bytes::copy_from_slice(&request.primary_lock),
        lock_version: request.start_version,
        key: Bytes::copy_from_slice(key),
        lock_ttl: request.lock_ttl,
        lock_type: Op::PessimisticLock.into(),
        lock_for_update_ts: request.for_update_ts,
        min_commit_ts: request.min_commit_ts,
        ..Default::default()
    };
    Lock {
        info,
        value: Bytes::new(),
    }
}

/// Takes pessimistic locks off; what is prewritten already, or not locked, stays as it is.
pub(crate) fn pessimistic_rollback(
    tables: &Tables,
    request: &PessimisticRollbackRequest,
) -> Decision<PessimisticRollbackResponse> {
    let held = request
        .keys
        .iter()
        .filter_map(|key| tables.lock_of(key, request.start_version));
    let ours = held.filter(|lock| lock.is_pessimistic() && lock.info.lock_for_update_ts <= request.for_update_ts);
    let changes = ours.map(|lock| ChangeContent::Unlock(lock.info.key.clone())).collect();
    Decision::new(PessimisticRollbackResponse::default(), changes)
}

/// Makes the primary's lock live longer; never shorter.
pub(crate) fn heart_beat(tables: &Tables, request: &TxnHeartBeatRequest) -> Decision<TxnHeartBeatResponse> {
    let mut reply = TxnHeartBeatResponse::default();
    let Some(lock) = tables.lock_of(&request.primary_lock, request.start_version) else {
        reply.error = Some(not_found(request.start_version, &request.primary_lock));
        return Decision::unchanged(reply);
    };
    reply.lock_ttl = lock.info.lock_ttl.max(request.advise_lock_ttl);
    if reply.lock_ttl == lock.info.lock_ttl {
        return Decision::unchanged(reply);
    }
    let mut longer = lock.clone();
    longer.info.lock_ttl = reply.lock_ttl;
    Decision::new(reply, vec![ChangeContent::Lock(longer)])
}
