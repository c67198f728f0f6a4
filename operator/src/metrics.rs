//! What the operator counts. Labels are few and fixed: never names of objects.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::plan::Step;

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    /// All steps were carried out.
    Done,
    /// A step or a look failed; it will be tried again.
    Failed,
    /// The spec cannot be acted on.
    Stalled,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum StepKind {
    Authority,
    Certificate,
    Bundle,
    Apply,
    Delete,
    Claim,
    Label,
    Replace,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStep {
    step: StepKind,
}

/// Whether clusters are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Readiness {
    True,
    False,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReadiness {
    ready: Readiness,
}

/// The operator's metrics.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    reconciles: Family<ByOutcome, Counter>,
    steps: Family<ByStep, Counter>,
    panics: Counter,
    duration: Histogram,
    leading: Gauge,
    clusters: Family<ByReadiness, Gauge>,
    expiry: Gauge<f64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("kubebrain_operator");
        let metrics = Self {
            reconciles: Family::default(),
            steps: Family::default(),
            panics: Counter::default(),
            duration: Histogram::new(exponential_buckets(0.005, 2.0, 13)),
            leading: Gauge::default(),
            clusters: Family::default(),
            expiry: Gauge::default(),
        };
        registry.register("reconcile", "Passes over a cluster", metrics.reconciles.clone());
        registry.register("steps", "Writes that passes carried out", metrics.steps.clone());
        registry.register("reconcile_panics", "Passes that panicked", metrics.panics.clone());
        registry.register(
            "reconcile_duration_seconds",
            "Duration of a pass",
            metrics.duration.clone(),
        );
        registry.register("leader", "1 if this replica leads, else 0", metrics.leading.clone());
        registry.register("clusters", "Clusters by readiness", metrics.clusters.clone());
        let help = "Unix time at which the first of all certificates ends; 0 if there is none";
        registry.register("certificate_expiry_timestamp_seconds", help, metrics.expiry.clone());
        metrics
    }

    pub(crate) fn reconciled(&self, outcome: Outcome, took: Duration) {
        self.reconciles.get_or_create(&ByOutcome { outcome }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn step(&self, step: &Step) {
        let step = match step {
            Step::CreateAuthority | Step::RenewAuthority { .. } => StepKind::Authority,
            Step::PublishBundle { .. } => StepKind::Bundle,
            Step::Issue { .. } => StepKind::Certificate,
            Step::Apply { .. } => StepKind::Apply,
            Step::Delete { .. } => StepKind::Delete,
            Step::ChangeClaim { .. } => StepKind::Claim,
            Step::Label { .. } => StepKind::Label,
            Step::Replace { .. } => StepKind::Replace,
        };
        self.steps.get_or_create(&ByStep { step }).inc();
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    pub(crate) fn lead(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// How many clusters there are, by readiness, and when the first certificate ends.
    pub(crate) fn survey(&self, readiness: impl Iterator<Item = Readiness>, expiry: Option<i64>) {
        let mut counts = [(Readiness::True, 0), (Readiness::False, 0), (Readiness::Unknown, 0)];
        for ready in readiness {
            for (each, count) in &mut counts {
                *count += i64::from(*each == ready);
            }
        }
        for (ready, count) in counts {
            self.clusters.get_or_create(&ByReadiness { ready }).set(count);
        }
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in 53 bits")]
        self.expiry.set(expiry.unwrap_or_default() as f64);
    }
}

/// A registry that the HTTP server can read while metrics change.
pub(crate) type Shared = Arc<Registry>;
