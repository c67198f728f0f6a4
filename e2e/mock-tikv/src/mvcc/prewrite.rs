//! Prewrite: the first phase, or the only one.

use bytes::Bytes;

use super::errors::{self, Conflict};
use super::{Decision, Tables};
use crate::change::{ChangeContent, Kind, Lock, Version};
use crate::mvcc::tables::Fate;
use crate::proto::kvrpcpb::prewrite_request::PessimisticAction;
use crate::proto::kvrpcpb::write_conflict::Reason;
use crate::proto::kvrpcpb::{KeyError, LockInfo, Mutation, Op, PrewriteRequest, PrewriteResponse};

/// Step that one mutation needs.
enum Step {
    /// Lock the key.
    Lock(Lock),
    /// The lock already exists, from an earlier try. Holds its `min_commit_ts`.
    Locked(u64),
    /// Nothing to lock: only checked.
    Checked,
    /// An earlier try of this very transaction is committed already, at this timestamp.
    Committed(u64),
}

/// Reason that a mutation cannot be done.
enum Refusal {
    /// Another transaction's lock: all of them are reported at once.
    Locked(Box<KeyError>),
    /// Anything else: reported alone.
    Fatal(Box<KeyError>),
}

/// Checks all mutations, then locks all keys, or commits them at once for a one-phase commit. `max_ts` is the highest timestamp of any
/// read so far: a commit timestamp chosen here is higher.
pub(crate) fn prewrite(tables: &Tables, request: &PrewriteRequest, max_ts: u64) -> Decision<PrewriteResponse> {
    let mut reply = PrewriteResponse::default();
    let mut locks = Vec::with_capacity(request.mutations.len());
    let mut min_commit_ts = request.min_commit_ts;
    for (place, mutation) in request.mutations.iter().enumerate() {
        match check(tables, request, place, mutation) {
            Ok(Step::Lock(lock)) => locks.push(lock),
            Ok(Step::Locked(ts)) => min_commit_ts = min_commit_ts.max(ts),
            Ok(Step::Checked) => {}
            Ok(Step::Committed(ts)) => return Decision::unchanged(committed(request, ts)),
            Err(Refusal::Locked(error)) => reply.errors.push(*error),
            Err(Refusal::Fatal(error)) => {
                return Decision::unchanged(PrewriteResponse {
                    errors: vec![*error],
                    ..Default::default()
                });
            }
        }
    }
    if !reply.errors.is_empty() {
        return Decision::unchanged(reply);
    }
    let chosen = min_commit_ts.max(max_ts.max(request.start_version).max(request.for_update_ts) + 1);
    if request.try_one_pc {
        return one_phase(tables, locks, chosen);
    }
    if request.use_async_commit {
        reply.min_commit_ts = chosen;
        locks.iter_mut().for_each(|lock| lock.info.min_commit_ts = chosen);
    }
    let pending = if request.use_async_commit {
        infos(&locks)
    } else {
        Vec::new()
    };
    Decision {
        reply,
        changes: locks.into_iter().map(ChangeContent::Lock).collect(),
        pending,
    }
}

/// The answer to a repeated prewrite whose first try is committed.
fn committed(request: &PrewriteRequest, ts: u64) -> PrewriteResponse {
    let mut reply = PrewriteResponse::default();
    if request.try_one_pc {
        reply.one_pc_commit_ts = ts;
    } else {
        reply.min_commit_ts = ts;
    }
    reply
}

fn infos(locks: &[Lock]) -> Vec<LockInfo> {
    locks.iter().map(|lock| lock.info.clone()).collect()
}

fn one_phase(tables: &Tables, mut locks: Vec<Lock>, commit_ts: u64) -> Decision<PrewriteResponse> {
    locks.iter_mut().for_each(|lock| lock.info.min_commit_ts = commit_ts);
    let mut changes = Vec::with_capacity(locks.len());
    for lock in &locks {
        if tables.locks.contains_key(&lock.info.key) {
            changes.push(ChangeContent::Unlock(lock.info.key.clone()));
        }
        changes.push(tables.committed(lock, commit_ts));
    }
    let reply = PrewriteResponse {
        one_pc_commit_ts: commit_ts,
        ..Default::default()
    };
    Decision {
        reply,
        changes,
        pending: infos(&locks),
    }
}

fn check(tables: &Tables, request: &PrewriteRequest, place: usize, mutation: &Mutation) -> Result<Step, Refusal> {
    let start_ts = request.start_version;
    let must_be_locked = request.pessimistic_actions.get(place) == Some(&PessimisticAction::DoPessimisticCheck.into());
    match tables.locks.get(&mutation.key) {
        Some(lock) if lock.info.lock_version != start_ts => {
            return Err(Refusal::Locked(errors::locked(&lock.info)));
        }
        Some(lock) if !lock.is_pessimistic() => return Ok(Step::Locked(lock.info.min_commit_ts)),
        Some(_) => {}
        None if must_be_locked => return lost_lock(tables, mutation, start_ts),
        None => {
            if let Some(commit_ts) = check_versions(tables, request, mutation)? {
                return Ok(Step::Committed(commit_ts));
            }
        }
    }
    if matches!(mutation.op(), Op::Insert | Op::CheckNotExists) && tables.exists(&mutation.key) {
        return Err(Refusal::Fatal(errors::already_exists(&mutation.key)));
    }
    if mutation.op() == Op::CheckNotExists {
        return Ok(Step::Checked);
    }
    Ok(Step::Lock(new_lock(request, mutation)))
}

/// The pessimistic lock that the mutation expects is gone: the transaction is committed, or its lock was rolled back.
fn lost_lock(tables: &Tables, mutation: &Mutation, start_ts: u64) -> Result<Step, Refusal> {
    match tables.fate(&mutation.key, start_ts) {
        Fate::Committed(ts) => Ok(Step::Committed(ts)),
        _ => Err(Refusal::Fatal(errors::abort(format!(
            "pessimistic lock of transaction {start_ts} not found"
        )))),
    }
}

/// Looks for versions newer than the transaction. Answers its own commit timestamp if it is one of them.
fn check_versions(tables: &Tables, request: &PrewriteRequest, mutation: &Mutation) -> Result<Option<u64>, Refusal> {
    let start_ts = request.start_version;
    let refuse = |version: &Version, reason| {
        let conflict = Conflict {
            start_ts,
            key: &mutation.key,
            primary: &request.primary_lock,
            other: (version.start_ts, version.commit_ts),
            reason,
        };
        Refusal::Fatal(errors::conflict(&conflict))
    };
    let versions = tables.versions(&mutation.key);
    let newest = versions.last();
    match tables.fate(&mutation.key, start_ts) {
        Fate::Committed(ts) => Ok(Some(ts)),
        Fate::RolledBack => {
            let own = versions.iter().find(|version| version.commit_ts == start_ts).or(newest);
            Err(refuse(own.unwrap_or(&Version::default()), Reason::SelfRolledBack))
        }
        Fate::Unknown => match newest {
            Some(version) if request.for_update_ts == 0 && version.commit_ts > start_ts => {
                Err(refuse(version, Reason::Optimistic))
            }
            // A pessimistic transaction looks at what came after its last lock.
            Some(version)
                if version.commit_ts > request.for_update_ts
                    && version.kind() != Kind::Rollback
                    && request.for_update_ts > 0 =>
            {
                Err(refuse(version, Reason::LazyUniquenessCheck))
            }
            _ => Ok(None),
        },
    }
}

/// Copies key and value: slices of a request would keep the whole request in memory.
fn new_lock(request: &PrewriteRequest, mutation: &Mutation) -> Lock {
    let primary = mutation.key == request.primary_lock;
    let info = LockInfo {
        primary_lock: Bytes::copy_from_slice(&request.primary_lock),
        lock_version: request.start_version,
        key: Bytes::copy_from_slice(&mutation.key),
        lock_ttl: request.lock_ttl,
        txn_size: request.txn_size,
        lock_type: mutation.op,
        lock_for_update_ts: request.for_update_ts,
        use_async_commit: request.use_async_commit,
        min_commit_ts: request.min_commit_ts,
        secondaries: if primary && request.use_async_commit {
            copies(&request.secondaries)
        } else {
            Vec::new()
        },
        ..Default::default()
    };
    Lock {
        info,
        value: Bytes::copy_from_slice(&mutation.value),
    }
}

fn copies(keys: &[Bytes]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::copy_from_slice(key)).collect()
}
