//! The second phase: commit, and its opposite.

use super::errors::{abort, retryable};
use super::tables::Fate;
use super::{Decision, Tables};
use crate::change::ChangeContent;
use crate::proto::kvrpcpb::{
    BatchRollbackRequest, BatchRollbackResponse, CommitRequest, CommitResponse, CommitTsExpired, KeyError,
};

/// Commits every key, or none. A key that is committed already is fine.
pub(crate) fn commit(tables: &Tables, request: &CommitRequest) -> Decision<CommitResponse> {
    let (start_ts, commit_ts) = (request.start_version, request.commit_version);
    let mut changes = Vec::with_capacity(request.keys.len() * 2);
    for key in &request.keys {
        let Some(lock) = tables.lock_of(key, start_ts) else {
            if matches!(tables.fate(key, start_ts), Fate::Committed(_)) {
                continue;
            }
            return refused(retryable(format!("transaction {start_ts} has no lock on the key")));
        };
        let min_commit_ts = lock.info.min_commit_ts;
        if commit_ts < min_commit_ts {
            let expired = CommitTsExpired {
                start_ts,
                attempted_commit_ts: commit_ts,
                key: key.clone(),
                min_commit_ts,
            };
            return refused(Box::new(KeyError {
                commit_ts_expired: Some(expired),
                ..Default::default()
            }));
        }
        changes.push(ChangeContent::Unlock(lock.info.key.clone()));
        changes.push(tables.committed(lock, commit_ts));
    }
    Decision::new(
        CommitResponse {
            commit_version: commit_ts,
            ..Default::default()
        },
        changes,
    )
}

fn refused(error: Box<KeyError>) -> Decision<CommitResponse> {
    Decision::unchanged(CommitResponse {
        error: Some(*error),
        ..Default::default()
    })
}

/// Sees to it that the transaction never commits on these keys; refuses when it has.
pub(crate) fn batch_rollback(tables: &Tables, request: &BatchRollbackRequest) -> Decision<BatchRollbackResponse> {
    let start_ts = request.start_version;
    let mut changes = Vec::new();
    for key in &request.keys {
        if let Fate::Committed(commit_ts) = tables.fate(key, start_ts) {
            let error = abort(format!(
                "Txn(Mvcc(Committed {{ start_ts: {start_ts}, commit_ts: {commit_ts} }}))"
            ));
            return Decision::unchanged(BatchRollbackResponse {
                error: Some(*error),
                ..Default::default()
            });
        }
        changes.extend(tables.rollback(&bytes::Bytes::copy_from_slice(key), start_ts));
    }
    Decision::new(BatchRollbackResponse::default(), changes)
}
