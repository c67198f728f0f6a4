//! The buckets of etcd's database, and their keys and values.

use bytes::Bytes;
use prost::Message;

use super::FileError;
use etcd_types::types::{LeaseId, Revision};

/// Versions of keys, by revision.
pub(super) const KEY: &[u8] = b"key";
/// Leases, by id.
pub(super) const LEASE: &[u8] = b"lease";
/// Positions and versions.
pub(super) const META: &[u8] = b"meta";
/// Raised alarms.
pub(super) const ALARM: &[u8] = b"alarm";
/// True if users are needed, and the revision of users and roles.
pub(super) const AUTH: &[u8] = b"auth";
/// Users.
pub(super) const AUTH_USERS: &[u8] = b"authUsers";
/// Roles.
pub(super) const AUTH_ROLES: &[u8] = b"authRoles";
/// The version of the cluster.
pub(super) const CLUSTER: &[u8] = b"cluster";
/// Members.
pub(super) const MEMBERS: &[u8] = b"members";
/// Members that were removed.
pub(super) const MEMBERS_REMOVED: &[u8] = b"members_removed";

/// In [`AUTH`]: a byte that is 1 if users are needed.
pub(super) const AUTH_ENABLED: &[u8] = b"authEnabled";
/// In [`AUTH`]: the revision of users and roles, eight bytes.
pub(super) const AUTH_REVISION: &[u8] = b"authRevision";
/// In [`CLUSTER`].
pub(super) const CLUSTER_VERSION: &[u8] = b"clusterVersion";
/// In [`META`]: the index of raft's log that is in the database.
pub(super) const CONSISTENT_INDEX: &[u8] = b"consistent_index";
/// In [`META`]: the term of that entry.
pub(super) const TERM: &[u8] = b"term";
/// In [`META`]: the voters, in JSON.
pub(super) const CONF_STATE: &[u8] = b"confState";
/// In [`META`]: the version of this format.
pub(super) const STORAGE_VERSION: &[u8] = b"storageVersion";
/// In [`META`]: the revision up to which compaction began.
pub(super) const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
/// In [`META`]: the revision up to which compaction has ended.
pub(super) const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";

/// The version of this format that is written.
pub(super) const FORMAT_VERSION: &str = "3.6.0";

const REVISION_KEY_BYTES: usize = 17;
const REVISION_SEPARATOR: u8 = b'_';
const TOMBSTONE_MARK: u8 = b't';

/// The key of a version in [`KEY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VersionKey {
    pub(super) revision: Revision,
    /// The operation within the revision.
    pub(super) sub: i64,
    pub(super) is_tombstone: bool,
}

impl VersionKey {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut key = encode_revision(self.revision, self.sub).to_vec();
        if self.is_tombstone {
            key.push(TOMBSTONE_MARK);
        }
        key
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FileError> {
        let (revision, is_tombstone) = match bytes.split_at_checked(REVISION_KEY_BYTES) {
            Some((revision, [])) => (revision, false),
            Some((revision, [TOMBSTONE_MARK])) => (revision, true),
            _ => return Err(content("a key of the bucket \"key\" is not a revision")),
        };
        let (revision, sub) = decode_revision(revision)?;
        Ok(Self {
            revision,
            sub,
            is_tombstone,
        })
    }
}

/// Encodes a revision as a value of [`META`].
pub(super) fn encode_revision(revision: Revision, sub: i64) -> [u8; REVISION_KEY_BYTES] {
    let mut bytes = [REVISION_SEPARATOR; REVISION_KEY_BYTES];
    bytes[..8].copy_from_slice(&revision.to_be_bytes());
    bytes[9..].copy_from_slice(&sub.to_be_bytes());
    bytes
}

/// Decodes a revision.
pub(super) fn decode_revision(bytes: &[u8]) -> Result<(Revision, i64), FileError> {
    let bytes: &[u8; REVISION_KEY_BYTES] = bytes.try_into().map_err(|_| content("a revision of another length"))?;
    let number = |at: usize| bytes[at..].first_chunk().map(|bytes| i64::from_be_bytes(*bytes));
    match (number(0), number(9)) {
        (Some(revision), Some(sub))
            if bytes[8] == REVISION_SEPARATOR && (0..=MAX_REVISION).contains(&revision) && sub >= 0 =>
        {
            Ok((revision, sub))
        }
        _ => Err(content("a revision is malformed")),
    }
}

/// The value of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseValue {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
    /// Time to live, in seconds.
    #[prost(int64, tag = "2")]
    pub(super) ttl: i64,
    /// Remaining time as of the last checkpoint, in seconds; 0 means the whole time to live.
    #[prost(int64, tag = "3")]
    pub(super) remaining: i64,
}

impl LeaseValue {
    pub(super) fn decode_pair(key: &[u8], value: Bytes) -> Result<Self, FileError> {
        let lease = Self::decode(value).map_err(|error| content(format!("a lease does not decode: {error}")))?;
        if lease.id.to_be_bytes() != key || lease.id == LeaseId::NONE.0 {
            return Err(content(format!("the lease {:x} is stored under another id", lease.id)));
        }
        Ok(lease)
    }
}

/// The largest revision or version of a snapshot: a store continues from there.
pub(super) const MAX_REVISION: Revision = Revision::MAX / 2;

pub(super) fn content(what: impl Into<String>) -> FileError {
    FileError::Content(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_versions_survive_the_round_trip_in_order() {
        let key = |revision, sub, is_tombstone| VersionKey {
            revision,
            sub,
            is_tombstone,
        };
        let keys = [
            key(1, 0, false),
            key(1, 1, true),
            key(2, 0, true),
            key(MAX_REVISION, 0, false),
        ];
        let encoded = keys.map(VersionKey::encode);
        assert!(encoded.is_sorted());
        for (key, encoded) in keys.iter().zip(&encoded) {
            assert_eq!(VersionKey::decode(encoded).unwrap(), *key);
        }
        for bytes in [
            &b""[..],
            &[b'_'; 16],
            &[0xff; 17],
            &encode_revision(MAX_REVISION + 1, 0),
            &[0; 17],
            &[b'_'; 19],
        ] {
            VersionKey::decode(bytes).unwrap_err();
        }
    }
}
