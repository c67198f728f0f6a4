//! The memory of the machine, or of the cgroup that limits this process.

use std::fs;

/// The limits of cgroups of version 2 and 1, as a container sees its own.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Returns the bytes of memory that this process may use.
#[must_use]
pub fn available() -> u64 {
    let system = rustix::system::sysinfo();
    let physical = system.totalram.saturating_mul(system.mem_unit.into());
    LIMITS
        .iter()
        .filter_map(|path| limit(&fs::read_to_string(path).ok()?))
        .fold(physical, u64::min)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(available() > 64 << 20);
    }
}
