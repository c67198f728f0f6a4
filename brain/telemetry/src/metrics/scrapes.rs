//! Requests for the metrics themselves, and series of etcd that never change here.

use prometheus::{IntCounterVec, IntGauge};

use super::Registrar;

/// Requests for the metrics.
#[derive(Debug, Clone)]
pub struct ScrapeMetrics {
    /// Requests that are being answered.
    in_flight: IntGauge,
    /// Answered ones, by `code`.
    requests: IntCounterVec,
}

impl ScrapeMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        let requests = r.counters(
            "promhttp_metric_handler_requests_total",
            "Requests for the metrics, by the code of their answer.",
            &["code"],
        );
        for code in ["200", "500", "503"] {
            requests.with_label_values(&[code]).reset();
        }
        Self {
            in_flight: r.gauge(
                "promhttp_metric_handler_requests_in_flight",
                "Requests for the metrics that are being answered.",
            ),
            requests,
        }
    }

    /// Counts a request until the guard is dropped.
    #[must_use]
    pub fn begin(&self) -> Scrape {
        self.in_flight.inc();
        Scrape(self.clone())
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Scrape(ScrapeMetrics);

impl Scrape {
    /// Counts its answer.
    pub fn answered(&self, code: http::StatusCode) {
        self.0.requests.with_label_values(&[code.as_str()]).inc();
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

/// Registers metrics that are always 0: those of etcd's v2 store, which is not used any more, and of snapshots between members.
pub(super) fn register_constants(r: &Registrar) {
    for (name, help) in [
        (
            "etcd_debugging_store_expires_total",
            "Expired keys of the v2 store. Always 0: there is none.",
        ),
        (
            "etcd_debugging_store_watch_requests_total",
            "Watches of the v2 store. Always 0: there is none.",
        ),
    ] {
        r.counter(name, help).reset();
    }
    for (name, help) in [
        (
            "etcd_debugging_store_watchers",
            "Watchers of the v2 store. Always 0: there is none.",
        ),
        (
            "etcd_server_snapshot_apply_in_progress_total",
            "Snapshots of a leader that are being applied. Always 0: members do not send each other snapshots.",
        ),
    ] {
        r.gauge(name, help).set(0);
    }
}
