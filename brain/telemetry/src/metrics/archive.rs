//! Metrics of `kubebrain backup archive`. They have a registry of their own: a server has none of them, and an archive none of a server's.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntGauge, Registry};
use tokio::time::Instant;

use super::Registrar;
use super::process_registry::ProcessRegistry;

/// The time for which one text says why something is not stored. The operator writes each text into a status.
const TEXT_LIFETIME: Duration = Duration::from_secs(60);

/// The handles.
pub struct ArchiveMetrics {
    registry: ProcessRegistry,
    /// Unix time in milliseconds up to which everything is stored; 0 if it is not known.
    stored_until: Mutex<i64>,
    lag: IntGauge,
    failing: IntGauge,
    backup_failing: IntGauge,
    /// Why changes are not stored.
    store_failure: Mutex<Option<String>>,
    /// Why the backup is not made that the archive begins with.
    backup_failure: Mutex<Option<String>>,
    /// The reason that was returned last, and when it was new.
    shown: Mutex<Option<(Instant, String)>>,
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
            failing: r.gauge(
                "kubebrain_archive_failing",
                "1 while requests to the destination fail, or changes cannot be stored; /readyz says why.",
            ),
            backup_failing: r.gauge(
                "kubebrain_archive_backup_failing",
                "1 while the backup cannot be made that the archive begins with; /readyz says why.",
            ),
            store_failure: Mutex::default(),
            backup_failure: Mutex::default(),
            shown: Mutex::default(),
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

    /// Sets why changes are not stored; `None` once they are.
    pub fn set_store_failure(&self, failure: Option<String>) {
        *self.store_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Sets why the backup is not made that the archive begins with; `None` once it is.
    pub fn set_backup_failure(&self, failure: Option<String>) {
        *self.backup_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Returns why something is not stored, given the failure of requests to the destination. Each attempt has another text, so a text is
    /// returned for a minute.
    pub fn failing(&self, of_requests: Option<String>) -> Option<String> {
        let get = |failure: &Mutex<Option<String>>| failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of_store = get(&self.store_failure).or(of_requests);
        let of_backup = get(&self.backup_failure);
        let is_same = self.failing.get() == i64::from(of_store.is_some());
        self.failing.set(of_store.is_some().into());
        self.backup_failing.set(of_backup.is_some().into());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = shown.take().filter(|(at, _)| is_same && at.elapsed() < TEXT_LIFETIME);
        *shown = of_store
            .or(of_backup)
            .map(|text| kept.unwrap_or_else(|| (Instant::now(), text)));
        shown.as_ref().map(|(_, text)| text.clone())
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

    #[tokio::test(start_paused = true)]
    async fn failure_is_returned_until_something_is_stored_and_its_text_for_a_minute() {
        let metrics = ArchiveMetrics::default();
        let text = |text: &str| Some(text.to_owned());
        let gauges = || {
            let page = String::from_utf8(metrics.render().unwrap()).unwrap();
            let is_set = |name: &str| page.contains(&format!("\n{name} 1\n"));
            (
                is_set("kubebrain_archive_failing"),
                is_set("kubebrain_archive_backup_failing"),
            )
        };
        assert_eq!(metrics.failing(None), None);
        assert_eq!(metrics.failing(text("refused in 1 s")), text("refused in 1 s"));
        metrics.set_store_failure(text("no segment"));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(metrics.failing(None), text("refused in 1 s"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(metrics.failing(None), text("no segment"));
        assert_eq!(gauges(), (true, false));
        // One failure is not described by the text of another one.
        metrics.set_backup_failure(text("no backup"));
        metrics.set_store_failure(None);
        assert_eq!(metrics.failing(None), text("no backup"));
        assert_eq!(gauges(), (false, true));
        metrics.set_backup_failure(None);
        assert_eq!(metrics.failing(None), None);
        assert_eq!(gauges(), (false, false));
    }

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
