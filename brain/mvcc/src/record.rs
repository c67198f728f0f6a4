//! The records in the log: committed requests, encoded once, as they are kept for watches and sent to followers.
//!
//! The messages are protobuf, so that newer brains can add fields that older data lacks. Field numbers never change.

use bytes::Bytes;
use prost::Message;

use super::auth::AuthChange;
use etcd_types::types::{LeaseId, Revision};

/// A batch of committed requests.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    /// The store's revision before this record.
    #[prost(int64, tag = "1")]
    pub base: Revision,
    /// The committed requests, in order.
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<Entry>,
}

/// The head of a [`Record`]: decoded as this, its entries take no memory.
#[derive(Clone, PartialEq, Message)]
pub struct RecordHead {
    /// As [`Record::base`].
    #[prost(int64, tag = "1")]
    pub base: Revision,
}

/// One committed request.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Its effect.
    #[prost(oneof = "Change", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub change: Option<Change>,
}

/// The effect of a committed request.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Change {
    /// Keys changed, at a revision of their own.
    #[prost(message, tag = "1")]
    Keys(Keys),
    /// History below a revision was given up.
    #[prost(message, tag = "2")]
    Compact(Compact),
    /// A lease was granted.
    #[prost(message, tag = "3")]
    Grant(Grant),
    /// A lease ended. The deletions of its keys precede it, at their own revision.
    #[prost(message, tag = "4")]
    Revoke(Revoke),
    /// The remaining time of a lease was checkpointed, or cleared.
    #[prost(message, tag = "5")]
    Checkpoint(Checkpoint),
    /// An alarm was raised or cleared.
    #[prost(message, tag = "6")]
    Alarm(Alarm),
    /// Users or roles changed.
    #[prost(message, tag = "7")]
    Auth(AuthChange),
    /// A user was given a token.
    #[prost(message, tag = "8")]
    Token(Token),
}

/// Changes of keys in one revision, in the order of their operations.
#[derive(Clone, PartialEq, Message)]
pub struct Keys {
    /// The revision.
    #[prost(int64, tag = "1")]
    pub revision: Revision,
    /// At most one change for each key.
    #[prost(message, repeated, tag = "2")]
    pub changes: Vec<KeyChange>,
}

/// A put, or a deletion: then `version` is 0.
#[derive(Clone, PartialEq, Message)]
pub struct KeyChange {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Its value after a put.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// Revision of the put that brought the key into being; 0 for a deletion.
    #[prost(int64, tag = "3")]
    pub create_revision: Revision,
    /// Puts since then; 0 for a deletion.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The lease of a put key.
    #[prost(int64, tag = "5")]
    pub lease: i64,
    /// The version that this one supersedes; 0 if there was none.
    #[prost(int64, tag = "6")]
    pub prev_mod: Revision,
    /// The lease that the key was attached to before.
    #[prost(int64, tag = "7")]
    pub prev_lease: i64,
    /// Bytes of the value of the version that this one supersedes.
    #[prost(uint32, tag = "8")]
    pub prev_size: u32,
}

impl KeyChange {
    /// The key does not exist any more.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        self.version == 0
    }

    /// The lease of a put key.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        LeaseId(self.lease)
    }

    /// The lease that the key was attached to before.
    #[must_use]
    pub fn prev_lease(&self) -> LeaseId {
        LeaseId(self.prev_lease)
    }
}

/// A compaction.
#[derive(Clone, PartialEq, Message)]
pub struct Compact {
    /// Reads below this revision are refused from now on.
    #[prost(int64, tag = "1")]
    pub revision: Revision,
}

/// A new lease.
#[derive(Clone, PartialEq, Message)]
pub struct Grant {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Its time to live, in seconds.
    #[prost(int64, tag = "2")]
    pub ttl: i64,
}

/// The end of a lease.
#[derive(Clone, PartialEq, Message)]
pub struct Revoke {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The remaining time of a lease.
#[derive(Clone, PartialEq, Message)]
pub struct Checkpoint {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Its remaining time, in seconds; 0 after a keep-alive: its whole time to live.
    #[prost(int64, tag = "2")]
    pub remaining: i64,
}

/// A raised or cleared alarm.
#[derive(Clone, PartialEq, Message)]
pub struct Alarm {
    /// The member it is about.
    #[prost(uint64, tag = "1")]
    pub member: u64,
    /// etcd's number of the alarm: 1 NOSPACE, 2 CORRUPT.
    #[prost(int32, tag = "2")]
    pub kind: i32,
    /// Raised, or cleared.
    #[prost(bool, tag = "3")]
    pub raised: bool,
}

/// A token of a user.
#[derive(Clone, PartialEq, Message)]
pub struct Token {
    /// The user.
    #[prost(string, tag = "1")]
    pub user: String,
    /// The SHA-256 digest of the token.
    #[prost(bytes = "bytes", tag = "2")]
    pub digest: Bytes,
}

impl From<Change> for Entry {
    fn from(change: Change) -> Self {
        Entry { change: Some(change) }
    }
}
