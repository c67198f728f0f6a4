//! Metrics of requests to TiKV.

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, exponential_buckets};

/// Metrics of requests to TiKV.
#[derive(Debug, Clone)]
pub struct TikvMetrics {
    /// One attempt, in seconds, by `op`.
    pub requests: HistogramVec,
    /// Attempts that failed, by `op` and `reason`.
    pub failures: IntCounterVec,
    /// Clients that were stuck and were replaced.
    pub replaced: IntCounter,
}

impl TikvMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// The registry has some of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let buckets = exponential_buckets(0.0005, 2.0, 16)?;
        let metrics = Self {
            requests: HistogramVec::new(
                HistogramOpts::new(
                    "kubebrain_tikv_request_duration_seconds",
                    "Durations of requests to TiKV, by attempt.",
                )
                .buckets(buckets),
                &["op"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "kubebrain_tikv_request_failures_total",
                    "Requests to TiKV that failed, by attempt.",
                ),
                &["op", "reason"],
            )?,
            replaced: IntCounter::new(
                "kubebrain_tikv_clients_replaced_total",
                "Clients of TiKV that were replaced.",
            )?,
        };
        for collector in metrics.collectors() {
            registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Returns each metric with its name, labels and help.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![
            Box::new(self.requests.clone()),
            Box::new(self.failures.clone()),
            Box::new(self.replaced.clone()),
        ]
    }
}

impl Default for TikvMetrics {
    /// Creates metrics that are not exported.
    fn default() -> Self {
        Self::register(&Registry::new()).expect("an empty registry takes them")
    }
}
