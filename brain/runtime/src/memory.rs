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
    fn a_limit_is_a_number() {
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("1073741824\n"), Some(1 << 30));
        assert!(available() > 64 << 20);
    }
}
