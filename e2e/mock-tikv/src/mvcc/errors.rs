//! Key errors in the shapes in which TiKV sends them.

use bytes::Bytes;

use crate::proto::kvrpcpb::{AlreadyExist, KeyError, LockInfo, WriteConflict, write_conflict};

fn key_error(fill: impl FnOnce(&mut KeyError)) -> Box<KeyError> {
    let mut error = Box::new(KeyError::default());
    fill(&mut error);
    error
}

pub(super) fn locked(info: &LockInfo) -> Box<KeyError> {
    key_error(|error| error.locked = Some(info.clone()))
}

pub(super) fn already_exists(key: &Bytes) -> Box<KeyError> {
    key_error(|error| error.already_exist = Some(AlreadyExist { key: key.clone() }))
}

/// Error that makes the client abort the transaction.
pub(super) fn abort(message: String) -> Box<KeyError> {
    key_error(|error| error.abort = message)
}

/// Error after which the client may retry the transaction.
pub(super) fn retryable(message: String) -> Box<KeyError> {
    key_error(|error| error.retryable = message)
}

/// Obstacle to a transaction on a key.
pub(super) struct Conflict<'a> {
    pub(super) start_ts: u64,
    pub(super) key: &'a Bytes,
    pub(super) primary: &'a Bytes,
    /// Start and commit timestamp of the other transaction.
    pub(super) other: (u64, u64),
    pub(super) reason: write_conflict::Reason,
}

pub(super) fn conflict(of: &Conflict<'_>) -> Box<KeyError> {
    let conflict = WriteConflict {
        start_ts: of.start_ts,
        conflict_ts: of.other.0,
        conflict_commit_ts: of.other.1,
        key: of.key.clone(),
        primary: of.primary.clone(),
        reason: of.reason.into(),
    };
    // Older clients read the text, newer ones the message: TiKV sends both.
    key_error(|error| {
        error.retryable = format!("write conflict: {conflict:?}");
        error.conflict = Some(conflict);
    })
}
