//! The types that all modules share: revisions, leases, keys with their values, events, and the errors of the store.

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

/// The reason why a request was refused or failed, one variant for each status that a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The revision was compacted.
    #[error("required revision has been compacted")]
    Compacted,
    /// The revision does not exist yet.
    #[error("required revision is a future revision")]
    FutureRevision,
    /// A put keeps the value or lease of a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// There is no such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The id of a new lease is already used.
    #[error("lease already exists")]
    LeaseExists,
    /// The quota is used up or the disk is full.
    #[error("database space exceeded")]
    NoSpace,
    /// The request is larger than one evaluation allows.
    #[error("request is too large")]
    TooLarge,
    /// The writer's queue is full.
    #[error("too many requests")]
    TooManyRequests,
    /// The outcome is unknown: the request has been applied completely or not at all.
    #[error("request timed out")]
    Timeout,
    /// This member does not lead; the request had no effect.
    #[error("not leader")]
    NotLeader,
    /// The server is stopping; the request had no effect.
    #[error("server stopped")]
    Stopped,
    /// Stored data is damaged.
    #[error("corrupt data")]
    Corrupt,
    /// Users and roles do not allow it.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

/// The reason why users and roles do not allow a request, or cannot be changed so. The texts are etcd's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Permissions are checked only if there is a user root.
    #[error("auth: root user does not exist")]
    RootUserNotFound,
    /// The user root needs the role root.
    #[error("auth: root user does not have root role")]
    RootRoleNotGranted,
    /// There is a user of this name.
    #[error("auth: user already exists")]
    UserExists,
    /// A user without a name, or a request without a user.
    #[error("auth: user name is empty")]
    UserEmpty,
    /// There is no such user.
    #[error("auth: user not found")]
    UserNotFound,
    /// There is a role of this name.
    #[error("auth: role already exists")]
    RoleExists,
    /// There is no such role.
    #[error("auth: role not found")]
    RoleNotFound,
    /// A role without a name.
    #[error("auth: role name is empty")]
    RoleEmpty,
    /// A grant without a permission.
    #[error("auth: permission not given")]
    PermissionNotGiven,
    /// The user or the password is wrong.
    #[error("auth: authentication failed, invalid user ID or password")]
    Failed,
    /// A password was given for a user that has none.
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// It is not permitted to the user.
    #[error("auth: permission denied")]
    PermissionDenied,
    /// The user does not have the role.
    #[error("auth: role is not granted to the user")]
    RoleNotGranted,
    /// The role does not have the permission.
    #[error("auth: permission is not granted to the role")]
    PermissionNotGranted,
    /// Permissions are not checked.
    #[error("auth: authentication is not enabled")]
    NotEnabled,
    /// Users or roles changed since the caller was identified.
    #[error("auth: revision in header is old")]
    OldRevision,
    /// The token is unknown or has expired.
    #[error("auth: invalid auth token")]
    InvalidToken,
    /// The user and the role root stay while permissions are checked; a permission needs a range.
    #[error("auth: invalid auth management")]
    InvalidManagement,
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
