//! Metrics of the process, read from the kernel at each scrape.

use std::fs;

use prometheus::{Counter, Gauge, IntCounter};
use rustix::process::{Resource, getrlimit};
use tokio::runtime::Handle;

use super::Registrar;

/// The metrics that every Prometheus exporter has. A value that cannot be read keeps its last one.
#[derive(Debug)]
pub struct ProcessMetrics {
    cpu: Counter,
    resident: Gauge,
    memory: Gauge,
    max_memory: Gauge,
    threads: Gauge,
    tasks: Gauge,
    started: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    os_fd_used: Gauge,
    os_fd_limit: Gauge,
    received: IntCounter,
    sent: IntCounter,
}

impl ProcessMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        let gauge = |name: &str, help: &str| r.add(Gauge::new(name, help));
        Self {
            cpu: r.add(Counter::new(
                "process_cpu_seconds_total",
                "CPU time spent by the process, in seconds.",
            )),
            resident: gauge(
                "process_resident_memory_bytes",
                "Resident memory of the process in bytes.",
            ),
            memory: gauge("process_virtual_memory_bytes", "Address space of the process in bytes."),
            max_memory: gauge(
                "process_virtual_memory_max_bytes",
                "Maximum address space of the process in bytes.",
            ),
            threads: gauge("go_threads", "Threads of the process, under the name of etcd's metric."),
            tasks: gauge(
                "go_goroutines",
                "Live tasks, under the name of etcd's metric of goroutines.",
            ),
            started: gauge("process_start_time_seconds", "Unix time at which the process started."),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge("process_max_fds", "Maximum number of open file descriptors."),
            os_fd_used: gauge("os_fd_used", "Open file descriptors."),
            os_fd_limit: gauge("os_fd_limit", "Maximum number of open file descriptors."),
            received: r.counter(
                "process_network_receive_bytes_total",
                "Bytes that the network namespace of the process has received.",
            ),
            sent: r.counter(
                "process_network_transmit_bytes_total",
                "Bytes that the network namespace of the process has sent.",
            ),
        }
    }

    /// Reads all values.
    pub(super) fn refresh(&self) {
        if let Some(stat) = fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(ProcStat::parse)
        {
            #[allow(clippy::cast_precision_loss, reason = "2^53 ticks are never reached")]
            let ticks = rustix::param::clock_ticks_per_second() as f64;
            #[allow(clippy::cast_precision_loss, reason = "a page is small")]
            let page = rustix::param::page_size() as f64;
            self.cpu.reset();
            self.cpu.inc_by(stat.cpu_ticks / ticks);
            self.memory.set(stat.memory_bytes);
            self.resident.set(stat.resident_pages * page);
            self.threads.set(stat.threads);
            if let Some(boot) = boot_time() {
                self.started.set(boot + stat.start_ticks / ticks);
            }
        }
        if let Ok(fds) = fs::read_dir("/proc/self/fd") {
            // The directory that is read is one of them.
            let open = u32::try_from(fds.count().saturating_sub(1)).unwrap_or(u32::MAX).into();
            self.open_fds.set(open);
            self.os_fd_used.set(open);
        }
        if let Some((received, sent)) = fs::read_to_string("/proc/self/net/netstat")
            .ok()
            .as_deref()
            .and_then(octets)
        {
            self.received.reset();
            self.received.inc_by(received);
            self.sent.reset();
            self.sent.inc_by(sent);
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            #[allow(clippy::cast_precision_loss, reason = "2^53 files are never reached")]
            let limit = limit as f64;
            self.max_fds.set(limit);
            self.os_fd_limit.set(limit);
        }
        #[allow(clippy::cast_precision_loss, reason = "the last bytes of a limit do not matter")]
        let max_memory = getrlimit(Resource::As).current.unwrap_or(u64::MAX) as f64;
        self.max_memory.set(max_memory);
        if let Ok(runtime) = Handle::try_current() {
            let tasks = u32::try_from(runtime.metrics().num_alive_tasks()).unwrap_or(u32::MAX);
            self.tasks.set(tasks.into());
        }
    }
}

/// The fields of `/proc/self/stat`.
struct ProcStat {
    cpu_ticks: f64,
    threads: f64,
    start_ticks: f64,
    memory_bytes: f64,
    resident_pages: f64,
}

impl ProcStat {
    fn parse(text: &str) -> Option<ProcStat> {
        // The second field is the program's name in parentheses, and may contain anything.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(ProcStat {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            memory_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the bytes received and sent, from the text of `/proc/self/net/netstat`.
fn octets(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let named = |wanted: &str| {
        let mut fields = names.split(' ').zip(values.split(' '));
        fields.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some((named("InOctets")?, named("OutOctets")?))
}

/// Returns when the machine booted, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}
