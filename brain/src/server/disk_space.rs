//! The space of a data directory, and what fits into it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use engine::log::LogWrite;
use engine::rows::Rows;
use store::sequencer::Space;
use telemetry::metrics::DiskMetrics;

/// The space available to a directory.
#[derive(Debug, Clone)]
pub struct DiskSpace {
    path: PathBuf,
    quota: Option<u64>,
    reserve: u64,
}

/// Counts what a log does.
pub fn count_log(done: LogWrite, disk: &DiskMetrics) {
    match done {
        LogWrite::Written(bytes, took) => {
            disk.wal_write.observe(took.as_secs_f64());
            disk.wal_write_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        LogWrite::Synced(took) => disk.wal_fsync.observe(took.as_secs_f64()),
    }
}

/// The free bytes of the medium that only deletions and compaction may use: the minimum, the maximum, and the divisor of its size.
/// This is more than log and rows keep free for themselves; the space that rows need for their next merge is added.
const RESERVE: (u64, u64, u64) = (64 << 20, 256 << 20, 20);

impl DiskSpace {
    /// Returns the space of the file system that holds `path`, limited to `quota` bytes. Fails if the file system cannot be
    /// queried.
    pub fn new(path: &Path, quota: Option<u64>) -> anyhow::Result<Self> {
        let stat =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
        let reserve = (stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE.2).clamp(RESERVE.0, RESERVE.1);
        Ok(Self {
            path: path.to_owned(),
            quota,
            reserve,
        })
    }
}

/// Returns the size of the rows' in-memory table, such that a few tables on disk fit a small medium, too. Fails if the file system
/// cannot be queried.
pub fn memtable_bytes(path: &Path) -> anyhow::Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the size of {}", path.display()))?;
    Ok((stat.f_blocks.saturating_mul(stat.f_frsize) / 256).clamp(1 << 20, 16 << 20))
}

/// Returns the size of a log's segments that fits the medium and the quota: a segment is allocated as a whole, and both must have
/// room for several. Fails if the file system cannot be queried.
pub fn segment_bytes(path: &Path, quota: Option<u64>) -> anyhow::Result<u32> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the size of {}", path.display()))?;
    let share = (stat.f_blocks.saturating_mul(stat.f_frsize) / 32).clamp(4 << 20, 16 << 20);
    let share = quota.map_or(share, |quota| share.min(quota / 16).max(64 << 10));
    Ok(u32::try_from(share).unwrap_or(4 << 20))
}

impl Space for DiskSpace {
    fn exceeded(&mut self, size: impl FnOnce() -> u64, rows: &impl Rows) -> bool {
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
                tracing::warn!(%error, path = %self.path.display(), "cannot ask for the free space");
                false
            }
        };
        full || self.quota.is_some_and(|quota| !is_reclaiming && size() > quota)
    }
}
