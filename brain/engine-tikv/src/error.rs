//! Errors of calls to TiKV, classified by what to do about them.
//!
//! The client reports a lost reply as undetermined, but an error of another kind may follow a lost reply, too. So only an
//! error that TiKV itself reports for a key is final. After any other error, the call may have had its effect.

use tikv_client::{Error as ClientError, ProtoKeyError};

/// Errors of calls to TiKV, one variant for each reaction.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// TiKV refused: another transaction was faster, or the key exists already. This attempt wrote nothing.
    #[error("another writer won the race")]
    Conflict,
    /// TiKV reported that this very transaction is committed.
    #[error("the transaction is already committed")]
    Committed,
    /// This attempt wrote nothing: there is no space.
    #[error("TiKV has no space left")]
    Full(#[source] anyhow::Error),
    /// The request or the reply exceeds the size limit of a message.
    #[error("too large for one message")]
    TooLarge(#[source] anyhow::Error),
    /// A key has lost its value, as in a range that a server was destroying when it ended. A short value is stored within the key's
    /// record and is never lost alone.
    #[error("a key has lost its value")]
    DefaultNotFound(#[source] anyhow::Error),
    /// A lock blocked the call for longer than a writer takes.
    #[error("locked by another transaction")]
    Locked(#[source] anyhow::Error),
    /// The same call may succeed later. It is unknown whether it had an effect.
    #[error("TiKV cannot be reached")]
    Unreachable(#[source] anyhow::Error),
}

/// The health of the client, by a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientHealth {
    /// Nothing.
    Fine,
    /// It may be stuck: no answer in time.
    Doubtful,
    /// It does not get over this by itself.
    Broken,
}

/// The size class of a message: a long one may be too large for TiKV, or for a proxy before it. If a short one is rejected as too
/// large, it has met another limit: a memory quota, or a connection that must slow down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageSize {
    /// It cannot be too large.
    Short,
    /// It may be too large.
    Long,
}

/// TiKV's error for a key without its value, which has no field of its own: its name, and its text.
const DEFAULT_NOT_FOUND: [&str; 2] = ["DefaultNotFound", "default not found"];

/// The reason of a conflict with no other writer: the transaction was rolled back before. It has no effect; begin another one.
const SELF_ROLLED_BACK: i32 = 3;

/// Bytes from which on a message is a long one.
const LONG_MESSAGE_BYTES: usize = 1 << 20;

/// A kind of call to TiKV.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallKind {
    /// The name under which calls are counted.
    pub(super) op: &'static str,
    /// The size of their messages.
    pub(super) message: MessageSize,
}

impl CallKind {
    pub(super) fn short(op: &'static str) -> CallKind {
        let message = MessageSize::Short;
        CallKind { op, message }
    }

    pub(super) fn long(op: &'static str) -> CallKind {
        let message = MessageSize::Long;
        CallKind { op, message }
    }
}

impl MessageSize {
    /// Returns the class of a message that carries this many bytes.
    pub(super) fn of(bytes: usize) -> MessageSize {
        if bytes < LONG_MESSAGE_BYTES {
            MessageSize::Short
        } else {
            MessageSize::Long
        }
    }
}

impl Error {
    /// Returns the failure of such a message: a short one that is rejected as too large may succeed later.
    pub(super) fn of(self, message: MessageSize) -> Error {
        match (self, message) {
            (Error::TooLarge(source), MessageSize::Short) => Error::Unreachable(source),
            (error, _) => error,
        }
    }

    /// True if the same call may succeed a little later.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Error::Unreachable(_))
    }

    /// The same in one word.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Error::Conflict => "conflict",
            Error::Committed => "committed",
            Error::Full(_) => "full",
            Error::TooLarge(_) => "too_large",
            Error::DefaultNotFound(_) => "default_not_found",
            Error::Locked(_) => "locked",
            Error::Unreachable(_) => "unreachable",
        }
    }

    pub(super) fn unreachable(reason: &'static str) -> Error {
        Error::Unreachable(anyhow::anyhow!(reason))
    }
}

/// True if TiKV itself reported the outcome of the transaction.
pub(super) fn is_final(error: &ClientError) -> bool {
    matches!(
        FailureVerdict::of(error).kind,
        FailureKind::Conflict | FailureKind::Committed
    )
}

/// Classifies failures.
pub(super) fn classify(error: ClientError) -> (Error, ClientHealth) {
    let FailureVerdict { kind, health } = FailureVerdict::of(&error);
    let source = anyhow::Error::new(error);
    let error = match kind {
        FailureKind::Conflict => Error::Conflict,
        FailureKind::Committed => Error::Committed,
        FailureKind::Full => Error::Full(source),
        FailureKind::TooLarge => Error::TooLarge(source),
        FailureKind::DefaultNotFound => Error::DefaultNotFound(source),
        FailureKind::Locked => Error::Locked(source),
        FailureKind::Unreachable => Error::Unreachable(source),
    };
    (error, health)
}

/// In ascending order of what counts when several keys fail in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum FailureKind {
    #[default]
    Unreachable,
    DefaultNotFound,
    Locked,
    TooLarge,
    Full,
    Conflict,
    Committed,
}

#[derive(Debug)]
struct FailureVerdict {
    kind: FailureKind,
    health: ClientHealth,
}

impl FailureVerdict {
    fn of(error: &ClientError) -> FailureVerdict {
        let mut verdict = FailureVerdict {
            kind: FailureKind::default(),
            health: ClientHealth::Fine,
        };
        verdict.read(error);
        verdict
    }

    fn read(&mut self, error: &ClientError) {
        match error {
            ClientError::ExtractedErrors(errors) | ClientError::MultipleKeyErrors(errors) => {
                errors.iter().for_each(|error| self.read(error));
            }
            ClientError::UndeterminedError(inner) => self.read(inner),
            ClientError::KeyError(key) => self.note(of_key(key)),
            // The second: a lock whose transaction has left no trace where it should be. Time decides it, or we do.
            ClientError::ResolveLockError(_) | ClientError::TxnNotFound(_) => self.note(FailureKind::Locked),
            ClientError::RegionError(region) => {
                if region.raft_entry_too_large.is_some() {
                    self.note(FailureKind::TooLarge);
                } else if region.disk_full.is_some() {
                    self.note(FailureKind::Full);
                }
            }
            // Codes of gRPC: TiKV answers 8 if the reply is too long to be sent; the client reports 11 for a reply that is too
            // long to be decoded.
            ClientError::GrpcAPI(status) => match i32::from(status.code()) {
                8 | 11 => self.note(FailureKind::TooLarge),
                _ => self.health = ClientHealth::Doubtful,
            },
            // A connection that was never made is not tried again by this client.
            ClientError::Grpc(_)
            | ClientError::Url(_)
            | ClientError::Channel(_)
            | ClientError::InternalError { .. }
            | ClientError::JoinError(_) => self.health = ClientHealth::Broken,
            _ => {}
        }
    }

    fn note(&mut self, kind: FailureKind) {
        self.kind = self.kind.max(kind);
    }
}

fn of_key(error: &ProtoKeyError) -> FailureKind {
    let rolled_back = error
        .conflict
        .as_ref()
        .is_some_and(|conflict| conflict.reason == SELF_ROLLED_BACK);
    if (error.conflict.is_some() && !rolled_back) || error.already_exist.is_some() {
        FailureKind::Conflict
    } else if error.locked.is_some() || error.txn_not_found.is_some() {
        FailureKind::Locked
    } else if error.abort.contains("ommitted") {
        FailureKind::Committed
    } else if DEFAULT_NOT_FOUND.iter().any(|text| error.abort.contains(*text)) {
        FailureKind::DefaultNotFound
    } else {
        // Rolled back by another client, or refused: begin again with another transaction.
        FailureKind::Unreachable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(change: impl FnOnce(&mut ProtoKeyError)) -> ClientError {
        let mut error = ProtoKeyError::default();
        change(&mut error);
        ClientError::KeyError(Box::new(error))
    }

    #[test]
    fn key_error_of_tikv_counts_wherever_it_stands() {
        let conflict = || key(|error| error.conflict = Some(Default::default()));
        let exists = || key(|error| error.already_exist = Some(Default::default()));
        for error in [
            conflict(),
            exists(),
            ClientError::MultipleKeyErrors(vec![exists()]),
            ClientError::ExtractedErrors(vec![ClientError::MultipleKeyErrors(vec![conflict()])]),
            ClientError::UndeterminedError(Box::new(conflict())),
            ClientError::MultipleKeyErrors(vec![key(|error| error.locked = Some(Default::default())), conflict()]),
        ] {
            let (found, health) = classify(error);
            assert!(matches!(found, Error::Conflict), "{found:?}");
            assert_eq!(health, ClientHealth::Fine);
        }
        let committed = key(|error| error.abort = "Committed { .. }".into());
        assert!(matches!(classify(committed).0, Error::Committed));
    }

    #[test]
    fn lost_replies_are_never_final() {
        for error in [
            ClientError::StringError("anything".into()),
            ClientError::OnePcFailure,
            key(|error| error.abort = "lock not found".into()),
            ClientError::RegionError(Box::default()),
        ] {
            assert!(!is_final(&error), "{error:?}");
            let (found, _) = classify(error);
            assert!(found.is_transient(), "{found:?}");
        }
    }

    #[test]
    fn a_lost_value_is_not_read_again() {
        let lost = key(|error| error.abort = "Error(Txn(Error(Mvcc(Error(DefaultNotFound { key: [1, 2] })))))".into());
        let (found, health) = classify(ClientError::ExtractedErrors(vec![lost]));
        assert!(matches!(found, Error::DefaultNotFound(_)), "{found:?}");
        assert!(!found.is_transient());
        assert_eq!(health, ClientHealth::Fine);
    }

    #[test]
    fn only_long_messages_are_too_large() {
        let too_large = || Error::TooLarge(anyhow::anyhow!("entry too large"));
        for bytes in [0, 10, LONG_MESSAGE_BYTES - 1] {
            assert!(too_large().of(MessageSize::of(bytes)).is_transient(), "{bytes} bytes");
        }
        assert!(matches!(
            too_large().of(MessageSize::of(LONG_MESSAGE_BYTES)),
            Error::TooLarge(_)
        ));
    }

    #[test]
    fn a_client_that_cannot_connect_is_broken() {
        let error = ClientError::InternalError {
            message: "PD cluster failed to respond".into(),
        };
        assert_eq!(classify(error).1, ClientHealth::Broken);
    }
}
