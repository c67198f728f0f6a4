//! The quota of the rows: sizes that follow from it, and when merges are due because of it. Pure.
//!
//! Merges by shape know the disk alone: their tables are garbage and rows in a proportion that they do not look at. Where a quota ends
//! long before the disk does, merges must give space back before the quota is used up.

/// The memtables that a quota has room for: those in memory, those of level 0 and the results of their merges are only a part of it.
const MEMTABLES_PER_QUOTA: u64 = 64;

/// The smallest share of the quota, as a divisor, that must be above the last level before all is merged because of the quota: each such
/// merge writes all rows again.
const MIN_MERGE_DIVISOR: u64 = 32;

/// The share of the quota, as a divisor, that is left when the space is about to run out.
const NEARLY_FULL_DIVISOR: u64 = 8;

/// Bytes that the rows may occupy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowsQuota(pub(super) u64);

/// The space that rows occupy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowsUsage {
    /// Bytes of all tables and of those that are in memory yet.
    pub(super) bytes: u64,
    /// Bytes of the tables above the last level.
    pub(super) above: u64,
    /// Bytes of the tables of the last level.
    pub(super) last: u64,
    /// Deletions above the last level: each ends a row there or in the last level.
    pub(super) deleted: u64,
    /// Deletions in the last level, which go with their rows when it is written again and no view needs them.
    pub(super) last_deleted: u64,
}

impl RowsQuota {
    /// Returns the bytes at which a memtable becomes a table. Without a quota that is at `bytes`.
    pub(super) fn memtable_bytes(self, bytes: u64) -> u64 {
        bytes.min(self.0 / MEMTABLES_PER_QUOTA)
    }

    /// Returns true if tables must be merged to the last level: much of what is above it may be garbage, or the quota is used up and
    /// anything is. `are_views_younger` is true if no view keeps what the last level has deleted.
    pub(super) fn is_merge_due(self, usage: RowsUsage, are_views_younger: impl FnOnce() -> bool) -> bool {
        let is_exceeded = usage.bytes > self.0;
        let due = (self.0.saturating_sub(usage.last) / 2).max(self.0 / MIN_MERGE_DIVISOR);
        if usage.deleted > 0 && (is_exceeded || usage.above >= due) {
            return true;
        }
        is_exceeded && usage.last_deleted > 0 && are_views_younger()
    }

    /// Returns true if the quota is used up, or nearly.
    pub(super) fn is_nearly_used(self, bytes: u64) -> bool {
        bytes >= self.0 - self.0 / NEARLY_FULL_DIVISOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_merged_when_half_of_the_remaining_quota_may_be_garbage() {
        let (quota, due) = (RowsQuota(64), |usage| RowsQuota(64).is_merge_due(usage, || false));
        let churn = |last, above| RowsUsage {
            bytes: last + above,
            above,
            last,
            deleted: 1,
            last_deleted: 0,
        };
        assert!(!due(churn(32, 15)) && due(churn(32, 16)));
        assert!(!due(churn(0, 31)) && due(churn(0, 32)));
        assert!(!due(churn(62, 1)) && due(churn(62, 2)), "a merge needs something to do");
        let kept = RowsUsage {
            deleted: 0,
            ..churn(32, 40)
        };
        assert!(!due(kept), "nothing was deleted");
        // Too little above the last level, but no space.
        assert!(due(churn(64, 1)));
        let pinned = RowsUsage {
            last_deleted: 1,
            ..churn(65, 0)
        };
        let pinned = RowsUsage { deleted: 0, ..pinned };
        assert!(!due(pinned), "views keep it, and the next merge would, too");
        assert!(quota.is_merge_due(pinned, || true));
        assert!(!quota.is_nearly_used(55) && quota.is_nearly_used(56));
    }

    #[test]
    fn memtables_are_a_small_part_of_a_quota() {
        let bytes = |quota| RowsQuota(quota).memtable_bytes(16 << 20);
        assert_eq!((bytes(2 << 30), bytes(64 << 20), bytes(0)), (16 << 20, 1 << 20, 0));
    }
}
