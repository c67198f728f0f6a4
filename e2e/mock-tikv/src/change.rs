//! The change that a command makes to the tables, in the form in which it is replicated, kept in the data file and applied.
//!
//! Changes are physical: the same ones in the same order give the same tables.

use bytes::Bytes;

use crate::proto::kvrpcpb::{LockInfo, Op};
use crate::regions::Regions;

/// A lock as TiKV keeps it: the part that readers get, and the value that a commit makes visible.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Lock {
    #[prost(message, required, tag = "1")]
    pub(crate) info: LockInfo,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

impl Lock {
    pub(crate) fn is_pessimistic(&self) -> bool {
        self.info.lock_type() == Op::PessimisticLock
    }
}

/// Content of a version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Put = 0,
    Delete = 1,
    /// Only locked by a transaction that committed: no new value.
    Lock = 2,
    /// The transaction that began at this timestamp can never commit.
    Rollback = 3,
}

/// One version of a key, in its place by `commit_ts`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Version {
    /// For a rollback: the same as `start_ts`.
    #[prost(uint64, tag = "1")]
    pub(crate) commit_ts: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) start_ts: u64,
    #[prost(enumeration = "Kind", tag = "3")]
    pub(crate) kind: i32,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) value: Bytes,
    /// A transaction that began at this very `commit_ts` was rolled back, and the record of that found its place taken.
    #[prost(bool, tag = "5")]
    pub(crate) overlapped_rollback: bool,
}

/// A version and the key it belongs to.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Write {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(message, required, tag = "2")]
    pub(crate) version: Version,
}

/// Keys from `start` up to, not including, `end`; an empty `end` is no bound.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Span {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) start: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) end: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Change {
    #[prost(oneof = "ChangeContent", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub(crate) what: Option<ChangeContent>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ChangeContent {
    #[prost(message, tag = "1")]
    Lock(Lock),
    /// Takes the lock off this key.
    #[prost(bytes = "bytes", tag = "2")]
    Unlock(Bytes),
    /// Puts a version into its place, over what stood there.
    #[prost(message, tag = "3")]
    Write(Write),
    /// Everything in the span goes, locks and all versions.
    #[prost(message, tag = "4")]
    Erase(Span),
    /// Versions that no read at or above the safe point needs go.
    #[prost(message, tag = "5")]
    Collect(Span),
    #[prost(uint64, tag = "6")]
    SafePoint(u64),
    #[prost(message, tag = "7")]
    Regions(Regions),
    /// No timestamp up to this one is given out again, in milliseconds since 1970.
    #[prost(uint64, tag = "8")]
    TimestampWindow(u64),
    /// The cluster id that the data belong to; the first change of all.
    #[prost(uint64, tag = "9")]
    Cluster(u64),
}

impl From<ChangeContent> for Change {
    fn from(what: ChangeContent) -> Self {
        Self { what: Some(what) }
    }
}

/// The changes of one command: applied together or not at all.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Batch {
    #[prost(message, repeated, tag = "1")]
    pub(crate) changes: Vec<Change>,
}

impl Batch {
    pub(crate) fn new(changes: impl IntoIterator<Item = ChangeContent>) -> Self {
        Self {
            changes: changes.into_iter().map(Change::from).collect(),
        }
    }
}
