//! The space of a data directory, sizes of files that fit it, and the metrics of its log.

use std::path::Path;

use anyhow::Context as _;

use engine::log::LogWrite;
use net::http::member::DiskInUse;

use crate::server::quota;
use telemetry::metrics::DiskMetrics;

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

/// Returns the size of the file system of a directory, and how much of it is free; `None` if it cannot be queried. `to_come` are the bytes
/// that rows need for their next merge.
pub fn disk_in_use(path: &Path, to_come: u64) -> Option<DiskInUse> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
    Some(DiskInUse {
        bytes,
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        needed_bytes: quota::needed(quota::reserve(bytes), to_come),
    })
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
