//! Metrics of `kubebrain backup archive`. They have a registry of their own: a server has none of them, and an archive none of a server's.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntGauge, Registry};

use super::Registrar;
use super::process_registry::ProcessRegistry;

/// The handles.
pub struct ArchiveMetrics {
    registry: ProcessRegistry,
    /// Unix time in milliseconds up to which everything is stored; 0 if it is not known.
    stored_until: Mutex<i64>,
    lag: IntGauge,
    /// The last revision that is stored.
    pub last_revision: IntGauge,
    /// Revisions that were lost to the archive, counted by occasion.
    pub gaps: IntCounter,
    /// Segments that were stored.
    pub segments: IntCounter,
    /// Bytes of them.
    pub bytes: IntCounter,
    /// Attempts to store something that failed.
    pub failures: IntCounter,
}

impl Default for ArchiveMetrics {
    fn default() -> Self {
        let r = Registrar::new(Registry::new());
        Self {
            registry: ProcessRegistry::with_process(&r),
            ..Self::register(&r)
        }
    }
}

impl ArchiveMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            registry: ProcessRegistry::without_process(r),
            stored_until: Mutex::new(0),
            lag: r.gauge(
                "kubebrain_archive_lag_seconds",
                "Seconds since the last time up to which all changes are known to be stored; -1 if there is none.",
            ),
            last_revision: r.gauge(
                "kubebrain_archive_last_revision",
                "The last revision that is stored in the archive.",
            ),
            gaps: r.counter(
                "kubebrain_archive_gaps_total",
                "Gaps: the archive began again because the members had compacted what it lacked.",
            ),
            segments: r.counter("kubebrain_archive_segments_total", "Segments stored by this process."),
            bytes: r.counter(
                "kubebrain_archive_stored_bytes_total",
                "Bytes of segments stored by this process.",
            ),
            failures: r.counter(
                "kubebrain_archive_failures_total",
                "Failed attempts to store a segment, a time or a backup, each after several requests.",
            ),
        }
    }

    /// Sets the time up to which everything is stored, in milliseconds since 1970.
    pub fn set_stored_until(&self, millis: i64) {
        *self.stored_until.lock().unwrap_or_else(PoisonError::into_inner) = millis;
    }

    /// Renders all of them in the text format of Prometheus. Fails if the encoder does.
    pub fn render(&self) -> anyhow::Result<Vec<u8>> {
        let until = *self.stored_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        self.lag.set(if until > 0 { (now - until).max(0) / 1_000 } else { -1 });
        self.registry.render()
    }
}

impl std::fmt::Debug for ArchiveMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArchiveMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_time_since_all_was_stored() {
        let metrics = ArchiveMetrics::default();
        let lag = || {
            let text = String::from_utf8(metrics.render().unwrap()).unwrap();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("kubebrain_archive_lag_seconds "));
            line.unwrap().parse::<i64>().unwrap()
        };
        assert_eq!(lag(), -1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        metrics.set_stored_until(i64::try_from(now).unwrap() - 30_000);
        assert!((30..90).contains(&lag()), "{}", lag());
        metrics.set_stored_until(i64::MAX / 2);
        assert_eq!(lag(), 0);
    }
}
