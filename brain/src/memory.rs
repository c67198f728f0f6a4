//! How much memory this process may use.

use std::fs;

/// Where the limit of the control group stands, by version.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Bytes of memory of the machine, or of the control group where that is less; 0 when neither can be read.
#[must_use]
pub fn available() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(total);
    let group = LIMITS
        .iter()
        .find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    machine.into_iter().chain(group).min().unwrap_or(0)
}

/// The bytes that `/proc/meminfo` has under `MemTotal`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_machine_is_read() {
        assert_eq!(
            total("MemTotal:       24646528 kB\nMemFree: 1 kB\n"),
            Some(24_646_528 << 10)
        );
        assert_eq!((total(""), total("MemTotal: much\n")), (None, None));
        assert!(available() > 1 << 20);
    }
}
