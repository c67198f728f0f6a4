//! Key errors in the shapes in which TiKV sends them.

use bytes::Bytes;

use crate::proto::kvrpcpb::{self, KeyError, LockInfo, write_conflict};

pub(super) fn locked(info: &LockInfo) -> KeyError {
    KeyError {
        locked: Some(info.clone()),
        ..Default::default()
    }
}

pub(super) fn already_exists(key: &Bytes) -> KeyError {
    KeyError {
        already_exist: Some(kvrpcpb::AlreadyExist { key: key.clone() }),
        ..Default::default()
    }
}

/// The transaction must not go on.
pub(super) fn abort(message: String) -> KeyError {
    KeyError {
        abort: message,
        ..Default::default()
    }
}

/// The transaction may begin again.
pub(super) fn retryable(message: String) -> KeyError {
    KeyError {
        retryable: message,
        ..Default::default()
    }
}

/// What stands in the way of a transaction on a key.
pub(super) struct Conflict<'a> {
    pub(super) start_ts: u64,
    pub(super) key: &'a Bytes,
    pub(super) primary: &'a Bytes,
    /// Of the other transaction.
    pub(super) other: (u64, u64),
    pub(super) reason: write_conflict::Reason,
}

pub(super) fn conflict(of: &Conflict<'_>) -> KeyError {
    let conflict = kvrpcpb::WriteConflict {
        start_ts: of.start_ts,
        conflict_ts: of.other.0,
        conflict_commit_ts: of.other.1,
        key: of.key.clone(),
        primary: of.primary.clone(),
        reason: of.reason.into(),
    };
    // Older clients read the text, newer ones the message: TiKV sends both.
    KeyError {
        retryable: format!("write conflict: {conflict:?}"),
        conflict: Some(conflict),
        ..Default::default()
    }
}
