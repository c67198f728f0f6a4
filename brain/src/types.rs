//! Types that all rooms share: revisions, leases, keys with their values, events, and the errors of the store.

use bytes::Bytes;

use crate::pb::mvccpb;

/// A point in the store's history. A fresh store is at 1; each request that changes something takes the next one.
pub type Revision = i64;

/// Identity of a lease; zero means none. Negative ids are legal (etcd: `LeaseGrantRequest.ID`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// No lease.
    pub const NONE: LeaseId = LeaseId(0);
}

/// A key as it was from `mod_revision` on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyValue {
    /// Any bytes but none.
    pub key: Bytes,
    /// Any bytes; empty for a deletion, and where the value was not read.
    pub value: Bytes,
    /// Bytes of the value, also where it was not read.
    pub size: u32,
    /// Revision of the put that brought the key into being; 0 for a deletion.
    pub create_revision: Revision,
    /// Revision of the request that made this version.
    pub mod_revision: Revision,
    /// Puts since the key came into being, this one included; 0 for a deletion.
    pub version: i64,
    /// The lease the key is attached to.
    pub lease: LeaseId,
}

/// The pair as clients and members send it.
impl From<KeyValue> for mvccpb::KeyValue {
    fn from(kv: KeyValue) -> Self {
        Self {
            key: kv.key,
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            value: kv.value,
            lease: kv.lease.0,
        }
    }
}

/// A change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The key was set.
    Put,
    /// The key was deleted, by a request or with its lease.
    Delete,
}

/// The version that a change superseded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Prev {
    /// There was none, or nothing is known of it.
    #[default]
    Nothing,
    /// It was this one.
    Version(KeyValue),
    /// There was one, but nobody has read its value: whoever wants it reads it back from history.
    Unread,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of the change.
    pub kind: EventKind,
    /// The key afterwards. A deletion has only `key` and `mod_revision`.
    pub kv: KeyValue,
    /// The key before; `None` when it did not exist, or when compaction took that version away already.
    pub prev_kv: Option<KeyValue>,
    /// It existed, but its value was not read: `prev_kv` is only in history.
    pub is_prev_unread: bool,
}

/// Everything that one revision changed, in the order of its operations; at least one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The revision.
    pub revision: Revision,
    /// At most one event for each key.
    pub events: Vec<Event>,
}

/// Why a request was refused or failed, one variant for each answer a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The revision was compacted.
    #[error("required revision has been compacted")]
    Compacted,
    /// The revision does not exist yet.
    #[error("required revision is a future revision")]
    FutureRevision,
    /// A put that keeps value or lease of a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The id of a new lease is taken.
    #[error("lease already exists")]
    LeaseExists,
    /// The quota is used up or the disk is full.
    #[error("database space exceeded")]
    NoSpace,
    /// More than can be evaluated in one request.
    #[error("request is too large")]
    TooLarge,
    /// The writer's queue is full.
    #[error("too many requests")]
    TooManyRequests,
    /// The outcome is unknown: wholly there or wholly not.
    #[error("request timed out")]
    Timeout,
    /// This member does not lead; nothing was done.
    #[error("not leader")]
    NotLeader,
    /// The server is stopping; nothing was done.
    #[error("server stopped")]
    Stopped,
    /// Stored data is damaged.
    #[error("corrupt data")]
    Corrupt,
}
