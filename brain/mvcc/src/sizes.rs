//! Stored bytes: sums over the log up to a slot, so that all members count the same, independent of the leader.
//!
//! The sums are those of the changes in the log, not of what a flush wrote: a flush may be interrupted and repeated, and it
//! leaves out versions that are compacted already.

use prost::Message;

use super::record::{Change, KeyChange, Record};
use super::row::{INDEX_ROW_BYTES, OBJECT_HEADER_BYTES};
use crate::keys;

/// Bytes of a lease row, about.
const LEASE_ROW_BYTES: i64 = 16;

/// Bytes of a tombstone's value.
const TOMBSTONE_BYTES: usize = 1;

/// See the module. Part of the rows' manifest.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StoredSizes {
    /// Rows that all changes made, less those that they removed themselves.
    #[prost(int64, tag = "1")]
    pub written: i64,
    /// Versions that compaction deleted.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
    /// Records of the log.
    #[prost(int64, tag = "3")]
    pub logged: i64,
    /// Records that are not needed any more.
    #[prost(int64, tag = "4")]
    pub dropped: i64,
    /// Those of the records that no revision made: leases, tokens, users. Rows hold little or nothing of them.
    #[prost(int64, tag = "5")]
    pub unversioned: i64,
    /// Those of them that are not needed any more.
    #[prost(int64, tag = "6")]
    pub unversioned_dropped: i64,
}

impl StoredSizes {
    /// Rows of live and of retained versions, and of leases.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        u64::try_from(self.written - self.deleted).unwrap_or(0)
    }

    /// The same, and the log that is retained.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.in_use() + u64::try_from(self.logged - self.dropped).unwrap_or(0)
    }

    /// The log of leases, tokens and users that is retained.
    #[must_use]
    pub fn unversioned(&self) -> u64 {
        u64::try_from(self.unversioned - self.unversioned_dropped).unwrap_or(0)
    }

    /// Counts a committed record.
    pub fn count(&mut self, record: &Record) {
        self.logged += signed(record.encoded_len());
        self.unversioned += unversioned_in(record);
        for entry in &record.entries {
            self.written += match &entry.change {
                Some(Change::Keys(keys)) => keys.changes.iter().map(written_by).sum(),
                Some(Change::Grant(_)) => LEASE_ROW_BYTES,
                Some(Change::Revoke(_)) => -LEASE_ROW_BYTES,
                // Users and roles are few, and what they replace is not known here.
                Some(
                    Change::Compact(_) | Change::Checkpoint(_) | Change::Alarm(_) | Change::Auth(_) | Change::Token(_),
                )
                | None => 0,
            };
        }
    }
}

/// Bytes of rows that a change makes, less those that it removes.
fn written_by(change: &KeyChange) -> i64 {
    let escaped = keys::escaped_len(&change.key);
    let index = signed(keys::index_len(escaped) + INDEX_ROW_BYTES);
    let attachment = signed(keys::attachment_len(escaped));
    let attached = match (change.prev_lease, change.lease) {
        (old, new) if old == new => 0,
        (0, _) => attachment,
        (_, 0) => -attachment,
        _ => 0,
    };
    let rows = if change.is_delete() {
        signed(keys::object_len(escaped) + TOMBSTONE_BYTES) - index
    } else {
        let object = signed(keys::object_len(escaped) + OBJECT_HEADER_BYTES + change.value.len());
        let is_new = change.prev_mod == 0;
        object + if is_new { index } else { 0 }
    };
    rows + attached
}

/// Bytes of the changes of a record that no revision made.
#[must_use]
pub fn unversioned_in(record: &Record) -> i64 {
    let unversioned = record
        .entries
        .iter()
        .filter(|entry| !matches!(entry.change, Some(Change::Keys(_))));
    unversioned.map(|entry| signed(entry.encoded_len())).sum()
}

/// Bytes of the versions that compaction deletes because of a change.
#[must_use]
pub fn superseded_by(change: &KeyChange) -> i64 {
    let object = keys::object_len(keys::escaped_len(&change.key));
    let mut bytes = 0;
    if change.prev_mod > 0 {
        bytes += object + OBJECT_HEADER_BYTES + change.prev_size as usize;
    }
    if change.is_delete() {
        bytes += object + TOMBSTONE_BYTES;
    }
    signed(bytes)
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
