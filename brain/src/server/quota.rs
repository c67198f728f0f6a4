//! The quota: when a store is full, in a data directory and on TiKV.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use engine::rows::Rows;
use store::sequencer::{SpaceLevel, SpaceQuota};

/// The space available to a directory.
#[derive(Debug, Clone)]
pub(crate) struct DiskSpace {
    path: PathBuf,
    quota: Option<u64>,
    reserve: u64,
}

/// The free bytes of the medium that only deletions and compaction may use, at least and at most. This is more than log and rows keep
/// free for themselves; the space that rows need for their next merge is added.
const MIN_RESERVE_BYTES: u64 = 64 << 20;
const MAX_RESERVE_BYTES: u64 = 256 << 20;

/// The part of the medium that is kept free within these limits, as a divisor.
const RESERVE_DIVISOR: u64 = 20;

/// The last part of a quota in which space is low, as a divisor.
const LOW_DIVISOR: u64 = 10;

impl DiskSpace {
    /// Returns the space of the file system that holds `path`, limited to `quota` bytes. Fails if the file system cannot be
    /// queried.
    pub(crate) fn new(path: &Path, quota: Option<u64>) -> anyhow::Result<Self> {
        let stat =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            quota,
            reserve: reserve(stat.f_blocks.saturating_mul(stat.f_frsize)),
        })
    }
}

/// Returns the bytes of a medium of this size that only deletions and compaction may use.
pub(crate) fn reserve(bytes: u64) -> u64 {
    (bytes / RESERVE_DIVISOR).clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES)
}

/// Returns the bytes below which free space is low. `to_come` are those that rows need for their next merge.
pub(crate) fn needed(reserve: u64, to_come: u64) -> u64 {
    (reserve + reserve / 2).saturating_add(to_come)
}

impl DiskSpace {
    /// Returns the level of the medium: what is free must also hold what rows need for their next merge.
    fn medium(&self, rows: &dyn Rows) -> SpaceLevel {
        let stat = match rustix::fs::statvfs(&self.path) {
            Ok(stat) => stat,
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot read the free space");
                return SpaceLevel::Low;
            }
        };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let to_come = rows.to_come();
        let wanted = self.reserve + to_come;
        if free < self.reserve || (free < wanted && free + rows.left_over() < wanted) {
            SpaceLevel::Exhausted
        } else if free < needed(self.reserve, to_come) {
            SpaceLevel::Low
        } else {
            SpaceLevel::Ample
        }
    }
}

impl SpaceQuota for DiskSpace {
    fn level(&self, size: &dyn Fn() -> u64, rows: &dyn Rows) -> SpaceLevel {
        // Asked before the size: a merge that ends in between has made that smaller.
        let is_reclaiming = rows.is_reclaiming();
        let medium = self.medium(rows);
        let Some(quota) = self.quota.filter(|_| medium != SpaceLevel::Exhausted) else {
            return medium;
        };
        match used(size(), quota) {
            // Merges that are due may give it back.
            SpaceLevel::Exhausted if is_reclaiming => SpaceLevel::Low,
            SpaceLevel::Ample => medium,
            level => level,
        }
    }
}

/// A space check by the quota alone: the medium belongs to TiKV.
#[derive(Debug, Clone)]
pub(crate) struct QuotaSpace(pub(crate) Option<u64>);

impl SpaceQuota for QuotaSpace {
    fn level(&self, size: &dyn Fn() -> u64, _: &dyn Rows) -> SpaceLevel {
        self.0.map_or(SpaceLevel::Ample, |quota| used(size(), quota))
    }
}

/// Returns the level of a quota by the bytes that are used.
fn used(bytes: u64, quota: u64) -> SpaceLevel {
    if bytes > quota {
        SpaceLevel::Exhausted
    } else if bytes >= quota - quota / LOW_DIVISOR {
        SpaceLevel::Low
    } else {
        SpaceLevel::Ample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_tenth_of_quota_is_low() {
        let levels = [0, 89, 90, 100, 101].map(|bytes| used(bytes, 100));
        assert_eq!(
            levels,
            [
                SpaceLevel::Ample,
                SpaceLevel::Ample,
                SpaceLevel::Low,
                SpaceLevel::Low,
                SpaceLevel::Exhausted
            ]
        );
        assert_eq!(used(u64::MAX, u64::MAX), SpaceLevel::Low);
    }
}
