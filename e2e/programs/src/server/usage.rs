//! The resource usage of a process, as the kernel counts it.

use std::time::Duration;

use anyhow::Context as _;

/// Counted since the process started.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    /// User and system time of all its threads.
    pub cpu: Duration,
    /// Bytes in memory at the peak.
    pub peak_rss: u64,
    /// Bytes in memory now.
    pub rss: u64,
    /// The part of that which is read from files, such as the program itself. How much of a program the kernel maps depends on how its
    /// file came into the page cache.
    pub file_rss: u64,
}

impl ProcessUsage {
    /// That of this process.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let (stat, status) = (read("stat")?, read("status")?);
        Ok(Self {
            cpu: ticks(&stat).map(of_ticks).context("times in /proc/<pid>/stat")?,
            peak_rss: kib(&status, "VmHWM:").context("VmHWM in /proc/<pid>/status")? * 1024,
            rss: kib(&status, "VmRSS:").context("VmRSS in /proc/<pid>/status")? * 1024,
            file_rss: kib(&status, "RssFile:").context("RssFile in /proc/<pid>/status")? * 1024,
        })
    }
}

/// utime and stime, the 14th and 15th field; the second one, in brackets, may hold spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Linux counts in /proc in hundredths of a second, whatever its own tick is.
fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 10)
}

fn kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(400));
        assert_eq!(kib("Name:\tx\nVmHWM:\t  2048 kB\n", "VmHWM:"), Some(2048));
        assert_eq!(kib("VmRSS:\t 1 kB\n", "VmHWM:"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let usage = ProcessUsage::of(std::process::id()).unwrap();
        assert!(usage.peak_rss >= usage.rss && usage.rss > usage.file_rss && usage.file_rss > 0);
        assert!(ProcessUsage::of(u32::MAX).is_err());
    }
}
