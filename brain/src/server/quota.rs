//! The quota: when a store is full, in a data directory and on TiKV.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use engine::rows::Rows;
use store::sequencer::SpaceQuota;

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

impl DiskSpace {
    /// Returns the space of the file system that holds `path`, limited to `quota` bytes. Fails if the file system cannot be
    /// queried.
    pub(crate) fn new(path: &Path, quota: Option<u64>) -> anyhow::Result<Self> {
        let stat =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
        let reserve =
            (stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE_DIVISOR).clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES);
        Ok(Self {
            path: path.to_owned(),
            quota,
            reserve,
        })
    }
}

impl SpaceQuota for DiskSpace {
    fn exceeded(&self, size: &dyn Fn() -> u64, rows: &dyn Rows) -> bool {
        // Asked before the size: a merge that ends in between has made that smaller.
        let is_reclaiming = rows.is_reclaiming();
        let full = match rustix::fs::statvfs(&self.path) {
            Ok(stat) => {
                let (free, wanted) = (
                    stat.f_bavail.saturating_mul(stat.f_frsize),
                    self.reserve + rows.to_come(),
                );
                free < self.reserve || (free < wanted && free + rows.left_over() < wanted)
            }
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot read the free space");
                false
            }
        };
        full || self.quota.is_some_and(|quota| !is_reclaiming && size() > quota)
    }
}

/// A space check by the quota alone: the medium belongs to TiKV.
#[derive(Debug, Clone)]
pub(crate) struct QuotaSpace(pub(crate) Option<u64>);

impl SpaceQuota for QuotaSpace {
    fn exceeded(&self, size: &dyn Fn() -> u64, _: &dyn Rows) -> bool {
        self.0.is_some_and(|quota| size() > quota)
    }
}
