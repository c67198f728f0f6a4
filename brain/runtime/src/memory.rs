//! The memory of the machine, or of the cgroup that limits this process.

use std::fs;
use std::path::{Path, PathBuf};

/// A version of cgroups.
#[derive(Clone, Copy)]
struct CgroupVersion {
    /// The directory of all its cgroups.
    root: &'static str,
    /// The file of a cgroup that has its limit.
    limit_file: &'static str,
}

const CGROUP_V2: CgroupVersion = CgroupVersion {
    root: "/sys/fs/cgroup",
    limit_file: "memory.max",
};
const CGROUP_V1: CgroupVersion = CgroupVersion {
    root: "/sys/fs/cgroup/memory",
    limit_file: "memory.limit_in_bytes",
};

/// Returns the bytes of memory that this process may use: those of the machine, or of the smallest limit of its cgroups.
#[must_use]
pub fn available() -> u64 {
    let system = rustix::system::sysinfo();
    let physical = system.totalram.saturating_mul(system.mem_unit.into());
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(&own)
        .iter()
        .filter_map(|path| limit(&fs::read_to_string(path).ok()?))
        .fold(physical, u64::min)
}

/// The files that may limit a process whose `/proc/self/cgroup` is `own`: of its cgroup and of all above. A container sees its own at the top,
/// whatever it is called outside.
fn limits(own: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [CGROUP_V2, CGROUP_V1]
        .map(|version| Path::new(version.root).join(version.limit_file))
        .into();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let version = match controllers {
            "" => CGROUP_V2,
            _ if controllers.split(',').any(|controller| controller == "memory") => CGROUP_V1,
            _ => continue,
        };
        let Some(path) = path.strip_prefix('/').filter(|path| !path.starts_with("..")) else {
            continue;
        };
        let below = Path::new(path).ancestors().filter(|path| *path != Path::new(""));
        files.extend(below.map(|path| Path::new(version.root).join(path).join(version.limit_file)));
    }
    files
}

/// Parses the limit in the file of a cgroup; `max` is no limit.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns an eighth of `memory`, between 64 MiB and 1 GiB: the memory for cached blocks of the embedded store.
#[must_use]
pub fn cache_share(memory: u64) -> u64 {
    (memory / 8).clamp(64 << 20, 1 << 30)
}

/// Returns a sixteenth of `memory`, between 32 MiB and 1 GiB: the memory for the index of keys.
#[must_use]
pub fn key_index_share(memory: u64) -> u64 {
    (memory / 16).clamp(32 << 20, 1 << 30)
}

/// Returns a quarter of `memory`, 64 MiB at least: the memory for leases and the keys that are attached to them.
#[must_use]
pub fn lease_share(memory: u64) -> u64 {
    (memory / 4).max(64 << 20)
}

/// Returns a sixteenth of `memory`, between 16 MiB and 64 MiB: the memory for versions that are not in rows yet.
#[must_use]
pub fn memtable_share(memory: u64) -> usize {
    usize::try_from(memory / 16)
        .unwrap_or(usize::MAX)
        .clamp(16 << 20, 64 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_cgroups_above_count() {
        let files = |own: &str| {
            limits(own)
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        let top = [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        for own in ["", "0::/\n", "nonsense", "0::/../other\n", "3:cpu:/a\n"] {
            assert_eq!(files(own), top, "{own}");
        }
        let own = "12:cpu,cpuacct:/x\n5:memory:/k/pod\n0::/system.slice/a:b.service\n";
        let below = [
            "/sys/fs/cgroup/memory/k/pod/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/k/memory.limit_in_bytes",
            "/sys/fs/cgroup/system.slice/a:b.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
        ];
        assert_eq!(files(own)[2..], below);
    }

    #[test]
    fn the_cache_is_a_share_of_memory_between_two_bounds() {
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("1073741824\n"), Some(1 << 30));
        assert_eq!(cache_share(256 << 20), 64 << 20);
        assert_eq!(cache_share(4 << 30), 512 << 20);
        assert_eq!(cache_share(1 << 40), 1 << 30);
        assert_eq!(key_index_share(256 << 20), 32 << 20);
        assert_eq!(key_index_share(4 << 30), 256 << 20);
        assert_eq!(lease_share(256 << 20), 64 << 20);
        assert_eq!(lease_share(4 << 30), 1 << 30);
        assert_eq!(memtable_share(0), 16 << 20);
        assert_eq!(memtable_share(512 << 20), 32 << 20);
        assert_eq!(memtable_share(u64::MAX), 64 << 20);
        assert!(available() > 64 << 20);
    }
}
