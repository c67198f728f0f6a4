//! The types that all modules share: revisions, leases, keys with their values, and events.

use std::sync::Arc;

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
    /// The key; never empty.
    pub key: Bytes,
    /// The value; empty for a deletion, and if it was not read.
    pub value: Bytes,
    /// The length of the value in bytes, also if it was not read.
    pub size: u32,
    /// The revision of the put that created the key; 0 for a deletion.
    pub create_revision: Revision,
    /// The revision of the request that wrote this version.
    pub mod_revision: Revision,
    /// The number of puts since the key was created, this one included; 0 for a deletion.
    pub version: i64,
    /// The lease the key is attached to.
    pub lease: LeaseId,
}

/// Converts a pair to its wire format.
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
    /// There was none, or it is unknown.
    #[default]
    Nothing,
    /// It was this one.
    Version(KeyValue),
    /// There was one, but its value was not read: a watcher that needs it reads it from history.
    Unread,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of the change.
    pub kind: EventKind,
    /// The key afterwards. A deletion has only `key` and `mod_revision`.
    pub kv: KeyValue,
    /// The key before; `None` if it did not exist, or if compaction has already removed that version.
    pub prev_kv: Option<KeyValue>,
    /// True if it existed, but its value was not read: `prev_kv` is only in history, or, in an event from there, too large to be read.
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

/// The user that a request was identified as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// The auth revision at which it was identified.
    pub revision: u64,
}

/// On whose behalf a request is executed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Caller {
    /// A client that is not identified. It may do everything while permissions are not checked, and then nothing.
    #[default]
    Anonymous,
    /// A client that is identified as a user.
    User(Arc<Identity>),
    /// This server: expired leases, compaction and the like.
    Server,
}
