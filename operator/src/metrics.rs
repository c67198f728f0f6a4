//! Metrics. Labels are few and fixed; only gauges that are removed with their cluster carry its name.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crds::{KubeBrainBackup, KubeBrainBackupSchedule, KubeBrainCluster};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use plan::steps::PlanStep;
use prometheus::core::Collector;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, exponential_buckets,
};

use crate::api_error::FailureClass;

/// Maximum number of conditions, and of certificates, that are shown per cluster.
const MAX_CONDITIONS: usize = 32;

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The outcome of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconcileOutcome {
    /// All steps were carried out.
    Done,
    /// A step or a read failed; it will be retried.
    Failed,
    /// The spec cannot be acted on.
    Stalled,
    /// The stores did not show the operator's own writes yet; nothing was observed.
    Behind,
    /// Another installation of the operator manages the cluster.
    Elsewhere,
}

/// Verbs of requests to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestVerb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl RequestVerb {
    const ALL: [Self; 7] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
    ];

    fn label(self) -> &'static str {
        match self {
            RequestVerb::Get => "get",
            RequestVerb::List => "list",
            RequestVerb::Watch => "watch",
            RequestVerb::Create => "create",
            RequestVerb::Update => "update",
            RequestVerb::Patch => "patch",
            RequestVerb::Delete => "delete",
        }
    }
}

impl ReconcileOutcome {
    fn label(self) -> &'static str {
        match self {
            ReconcileOutcome::Done => "Done",
            ReconcileOutcome::Failed => "Failed",
            ReconcileOutcome::Stalled => "Stalled",
            ReconcileOutcome::Behind => "Behind",
            ReconcileOutcome::Elsewhere => "Elsewhere",
        }
    }
}

/// The operator's metrics. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    steps: IntCounterVec,
    panics: IntCounter,
    requests: IntCounterVec,
    errors: IntCounterVec,
    duration: Histogram,
    leading: IntGauge,
    clusters: IntGaugeVec,
    conditions: IntGaugeVec,
    replicas: IntGaugeVec,
    bootstrap_phases: IntGaugeVec,
    certificates: IntGaugeVec,
    renewals: IntGaugeVec,
    authorities: IntGaugeVec,
    expiry: IntGauge,
    backup_success: IntGaugeVec,
    backup_failure: IntGaugeVec,
    backup_due: IntGaugeVec,
    backup_damaged: IntGaugeVec,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Self::register(&Register::default())
    }

    /// Returns each metric with its name, labels and help.
    pub(crate) fn collectors() -> Vec<Box<dyn Collector>> {
        let r = Register::default();
        Self::register(&r);
        r.collectors.take()
    }

    fn register(r: &Register) -> Metrics {
        let metrics = Metrics {
            reconciles: r.counters(
                "reconcile_total",
                "Reconciles of a cluster, with the result Done, Failed, Stalled, Behind (the stores do not show the operator's own writes \
                 yet) or Elsewhere (another installation manages the cluster).",
                "result",
            ),
            errors: r.counters("reconcile_errors_total", "Failed reconciles.", "kind"),
            panics: r.add(IntCounter::with_opts(opts("reconcile_panics_total", "Reconciles that panicked."))),
            duration: r.add(exponential_buckets(0.005, 2.0, 13).and_then(|buckets| {
                let common_opts = opts("reconcile_duration_seconds", "Durations of reconciles.");
                Histogram::with_opts(HistogramOpts { common_opts, buckets })
            })),
            steps: r.counters("steps_total", "Writes carried out by reconciles.", "step"),
            requests: r.counters(
                "api_requests_total",
                "Requests to the API server, without those of the election.",
                "verb",
            ),
            leading: r.add(IntGauge::with_opts(opts("leader", "1 if this replica leads, else 0."))),
            clusters: r.add(IntGaugeVec::new(opts("clusters", "Clusters by readiness."), &["ready"])),
            expiry: r.add(IntGauge::with_opts(opts(
                "certificate_expiry_timestamp_seconds",
                "Unix time at which the first of all certificates expires; 0 if there is none.",
            ))),
            conditions: r.gauges(
                "kubebrain_cluster_condition",
                "1 if the condition of a cluster is True, else 0.",
                &["namespace", "name", "type"],
            ),
            replicas: r.gauges(
                "kubebrain_cluster_spec_replicas",
                "Number of members in the spec.",
                &["namespace", "name"],
            ),
            bootstrap_phases: r.gauges(
                "kubebrain_cluster_bootstrap_phase",
                "1 for the phase of the first data of a cluster, if it begins with data: that of its status, or CuttingOver.",
                &["namespace", "name", "phase"],
            ),
            certificates: r.gauges(
                "kubebrain_certificate_expiry_timestamp_seconds",
                "Unix time at which a certificate expires.",
                &["namespace", "name", "secret"],
            ),
            renewals: r.gauges(
                "kubebrain_certificate_renewal_timestamp_seconds",
                "Unix time at which the operator renews a certificate, if it does.",
                &["namespace", "name", "secret"],
            ),
            authorities: r.gauges(
                "kubebrain_certificate_authority_expiry_timestamp_seconds",
                "Unix time at which the certificate authority of a cluster expires.",
                &["namespace", "name"],
            ),
            backup_success: r.gauges(
                "kubebrain_backup_schedule_last_success_timestamp_seconds",
                "Unix time at which the last backup of a schedule was complete, if one was.",
                &["namespace", "name"],
            ),
            backup_failure: r.gauges(
                "kubebrain_backup_schedule_last_failure_timestamp_seconds",
                "Unix time at which a backup of a schedule failed last, if one did.",
                &["namespace", "name"],
            ),
            backup_due: r.gauges(
                "kubebrain_backup_schedule_due_timestamp_seconds",
                "Unix time of the first backup of a schedule after its last success, or after its creation; not for a schedule that is \
                 suspended.",
                &["namespace", "name"],
            ),
            backup_damaged: r.gauges(
                "kubebrain_backup_damaged",
                "1 for a KubeBrainBackup whose last verification found that it is damaged or incomplete.",
                &["namespace", "name"],
            ),
            registry: r.registry.clone(),
        };
        for verb in RequestVerb::ALL {
            // A counter at 0 distinguishes an idle operator from one that does not count.
            metrics.requests.with_label_values(&[verb.label()]).inc_by(0);
        }
        for class in FailureClass::ALL {
            metrics.errors.with_label_values(&[kind(class)]).inc_by(0);
        }
        metrics
    }

    /// Returns all metrics in the text format of Prometheus; see [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// The encoder failed.
    pub(crate) fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    pub(crate) fn reconciled(&self, outcome: ReconcileOutcome, took: Duration) {
        self.reconciles.with_label_values(&[outcome.label()]).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn step(&self, step: &PlanStep) {
        let step = match step {
            PlanStep::WriteAuthority { .. } | PlanStep::DiscardAuthority { .. } => "Authority",
            PlanStep::Issue { .. } => "Certificate",
            PlanStep::Apply { .. } | PlanStep::TakeBack { .. } => "Apply",
            PlanStep::Delete { .. } => "Delete",
            PlanStep::ChangeClaim { .. } | PlanStep::RetainClaims { .. } | PlanStep::CreateClaim { .. } => "Claim",
            PlanStep::Bootstrap { .. } | PlanStep::EndBootstrap { .. } | PlanStep::CutOver { .. } => "Bootstrap",
            PlanStep::Scale { .. } => "Scale",
            PlanStep::Try { .. } | PlanStep::EndTrial { .. } => "Trial",
            PlanStep::Label { .. } => "Label",
            PlanStep::Resize { .. } => "Resize",
            PlanStep::HandOver { .. } => "HandOver",
            PlanStep::Replace { .. } => "Replace",
        };
        self.steps.with_label_values(&[step]).inc();
    }

    /// Counts a failed pass.
    pub(crate) fn failed(&self, class: FailureClass) {
        self.errors.with_label_values(&[kind(class)]).inc();
    }

    /// Counts a request to the API server.
    pub(crate) fn requested(&self, verb: RequestVerb) {
        self.requests.with_label_values(&[verb.label()]).inc();
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    pub(crate) fn lead(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// Shows the state of all clusters. Deleted clusters are no longer shown.
    pub(crate) fn survey(&self, clusters: &[Arc<KubeBrainCluster>]) {
        for gauges in [
            &self.conditions,
            &self.replicas,
            &self.bootstrap_phases,
            &self.certificates,
            &self.renewals,
            &self.authorities,
        ] {
            gauges.reset();
        }
        let mut counts = [("True", 0), ("False", 0), ("Unknown", 0)];
        let mut first = None;
        for cluster in clusters {
            let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
            let conditions = cluster
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            let mut ready = "Unknown";
            for condition in conditions.take(MAX_CONDITIONS) {
                let holds = i64::from(condition.status == "True");
                self.conditions
                    .with_label_values(&[namespace.as_str(), &name, &condition.type_])
                    .set(holds);
                if condition.type_ == "Ready" {
                    ready = condition.status.as_str();
                }
            }
            for (each, count) in &mut counts {
                *count += i64::from(*each == ready);
            }
            let place = [namespace.as_str(), &name];
            self.replicas
                .with_label_values(&place)
                .set(i64::from(cluster.spec.replicas));
            let bootstrap = cluster.status.as_ref().and_then(|status| status.bootstrap.as_ref());
            if let Some(bootstrap) = bootstrap {
                // The clients are stopped, which is more than to follow.
                let phase = match is_cutting_over(cluster) {
                    true => "CuttingOver".to_owned(),
                    false => format!("{:?}", bootstrap.phase),
                };
                let of_phase = [namespace.as_str(), &name, &phase];
                self.bootstrap_phases.with_label_values(&of_phase).set(1);
            }
            let authority = cluster.status.as_ref().and_then(|status| status.ca.as_ref());
            if let Some(not_after) = authority.and_then(|authority| authority.not_after.as_ref()) {
                self.authorities.with_label_values(&place).set(not_after.0.as_second());
            }
            let certificates = cluster
                .status
                .iter()
                .flat_map(|status| status.certificates.iter().flatten());
            for certificate in certificates.take(MAX_CONDITIONS) {
                let Some(not_after) = &certificate.not_after else {
                    continue;
                };
                let ends = not_after.0.as_second();
                first = Some(first.map_or(ends, |first: i64| first.min(ends)));
                let place = [namespace.as_str(), &name, &certificate.secret_name];
                self.certificates.with_label_values(&place).set(ends);
                if let Some(renewal) = &certificate.renewal_time {
                    self.renewals.with_label_values(&place).set(renewal.0.as_second());
                }
            }
        }
        for (ready, count) in counts {
            self.clusters.with_label_values(&[ready]).set(count);
        }
        self.expiry.set(first.unwrap_or_default());
    }

    /// Shows a backup as damaged, or no longer.
    pub(crate) fn damaged_backup(&self, backup: &ObjectRef<KubeBrainBackup>, is_damaged: bool) {
        let labels = [backup.namespace.as_deref().unwrap_or_default(), backup.name.as_str()];
        if is_damaged {
            self.backup_damaged.with_label_values(&labels).set(1);
        } else {
            // It fails if the backup is not shown.
            drop(self.backup_damaged.remove_label_values(&labels));
        }
    }

    /// Shows when backups of all schedules were made. Deleted schedules are no longer shown.
    pub(crate) fn survey_schedules(&self, schedules: &[Arc<KubeBrainBackupSchedule>]) {
        let gauges = [&self.backup_success, &self.backup_failure, &self.backup_due];
        gauges.iter().for_each(|gauges| gauges.reset());
        for schedule in schedules {
            let (namespace, name) = (schedule.namespace().unwrap_or_default(), schedule.name_any());
            let status = schedule.status.as_ref();
            let success = status.and_then(|status| status.last_successful_time.as_ref());
            let failure = status.and_then(|status| status.last_failed_time.as_ref());
            let times = [
                success.map(|time| time.0),
                failure.map(|time| time.0),
                plan::backup_schedule::due_after_success(schedule),
            ];
            for (gauges, time) in gauges.into_iter().zip(times) {
                if let Some(time) = time {
                    gauges
                        .with_label_values(&[namespace.as_str(), &name])
                        .set(time.as_second());
                }
            }
        }
    }
}

fn kind(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Conflict => "Conflict",
        FailureClass::Transient => "Transient",
        FailureClass::Denied => "Denied",
        FailureClass::Invalid => "Invalid",
        FailureClass::NamespaceTerminating => "NamespaceTerminating",
        FailureClass::Fenced => "Fenced",
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("kubebrain").subsystem("operator")
}

/// Registers metrics. Each name is registered once, by the code above, so registration cannot fail.
#[derive(Default)]
struct Register {
    registry: Registry,
    collectors: RefCell<Vec<Box<dyn Collector>>>,
}

impl Register {
    fn counters(&self, name: &str, help: &str, label: &str) -> IntCounterVec {
        self.add(IntCounterVec::new(opts(name, help), &[label]))
    }

    /// Registers gauges of single clusters, with their full name.
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect("names, labels and buckets are well formed");
        self.registry
            .register(Box::new(made.clone()))
            .expect("each name is registered once");
        self.collectors.borrow_mut().push(Box::new(made.clone()));
        made
    }
}

/// Returns true if the copy of an etcd is being finished.
fn is_cutting_over(cluster: &KubeBrainCluster) -> bool {
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Bootstrapped" && condition.reason == "CuttingOver")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_types_and_labels_stay() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": plan::testing::BEGIN});
        let status = json!({
            "conditions": [condition("Ready", "True"), condition("Stalled", "False")],
            "ca": {"generation": 1, "phase": "Stable", "notAfter": "2027-01-15T08:00:02Z"},
            "bootstrap": {"phase": "Following"},
            "certificates": [
                {"secretName": "a", "notAfter": "2027-01-15T08:00:00Z", "renewalTime": "2027-01-15T07:59:59Z"},
                {"secretName": "b", "notAfter": "2027-01-15T08:00:01Z"},
            ],
        });
        let metrics = Metrics::new();
        metrics.reconciled(ReconcileOutcome::Done, Duration::from_millis(7));
        metrics.step(&PlanStep::WriteAuthority {
            change: plan::certificates::AuthorityChange::Create { generation: 1 },
            before: None,
            live: None,
        });
        metrics.panicked();
        metrics.lead(true);
        let mut cluster = plan::testing::cluster(json!({}));
        cluster.status = Some(serde_json::from_value(status).unwrap());
        metrics.survey(&[Arc::new(cluster)]);
        let schedule = json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackupSchedule", "metadata": {"name": "dev", "namespace": "brains"},
            "spec": {"schedule": "@hourly", "template": {"spec": {
                "clusterName": "dev", "destination": {"persistentVolumeClaim": {"claimName": "backups"}},
            }}},
            "status": {"lastSuccessfulTime": "2027-01-15T08:00:01Z", "lastFailedTime": "2027-01-15T08:00:02Z"},
        });
        metrics.survey_schedules(&[Arc::new(serde_json::from_value(schedule).unwrap())]);
        let bad = ObjectRef::new("bad").within("brains");
        metrics.damaged_backup(&bad, true);
        let page = String::from_utf8(metrics.render().unwrap()).unwrap();
        for line in [
            "# TYPE kubebrain_operator_reconcile_total counter",
            "kubebrain_operator_reconcile_total{result=\"Done\"} 1",
            "kubebrain_operator_steps_total{step=\"Authority\"} 1",
            "kubebrain_operator_reconcile_panics_total 1",
            "# TYPE kubebrain_operator_reconcile_duration_seconds histogram",
            "kubebrain_operator_reconcile_duration_seconds_bucket{le=\"0.005\"} 0",
            "kubebrain_operator_reconcile_duration_seconds_bucket{le=\"20.48\"} 1",
            "kubebrain_operator_reconcile_duration_seconds_bucket{le=\"+Inf\"} 1",
            "kubebrain_operator_reconcile_duration_seconds_sum 0.007",
            "# TYPE kubebrain_operator_leader gauge",
            "kubebrain_operator_leader 1",
            "kubebrain_operator_clusters{ready=\"True\"} 1",
            "kubebrain_operator_clusters{ready=\"False\"} 0",
            "kubebrain_operator_clusters{ready=\"Unknown\"} 0",
            "kubebrain_operator_certificate_expiry_timestamp_seconds 1800000000",
            "kubebrain_certificate_expiry_timestamp_seconds{name=\"dev\",namespace=\"brains\",secret=\"b\"} 1800000001",
            "kubebrain_certificate_renewal_timestamp_seconds{name=\"dev\",namespace=\"brains\",secret=\"a\"} 1799999999",
            "kubebrain_certificate_authority_expiry_timestamp_seconds{name=\"dev\",namespace=\"brains\"} 1800000002",
            "kubebrain_cluster_spec_replicas{name=\"dev\",namespace=\"brains\"} 1",
            "kubebrain_cluster_bootstrap_phase{name=\"dev\",namespace=\"brains\",phase=\"Following\"} 1",
            "kubebrain_cluster_condition{name=\"dev\",namespace=\"brains\",type=\"Ready\"} 1",
            "kubebrain_cluster_condition{name=\"dev\",namespace=\"brains\",type=\"Stalled\"} 0",
            "kubebrain_backup_schedule_last_success_timestamp_seconds{name=\"dev\",namespace=\"brains\"} 1800000001",
            "kubebrain_backup_schedule_last_failure_timestamp_seconds{name=\"dev\",namespace=\"brains\"} 1800000002",
            "kubebrain_backup_schedule_due_timestamp_seconds{name=\"dev\",namespace=\"brains\"} 1800003600",
            "kubebrain_backup_damaged{name=\"bad\",namespace=\"brains\"} 1",
            "kubebrain_operator_reconcile_errors_total{kind=\"Conflict\"} 0",
            "kubebrain_operator_api_requests_total{verb=\"list\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        metrics.survey(&[]);
        metrics.survey_schedules(&[]);
        metrics.damaged_backup(&bad, false);
        metrics.damaged_backup(&bad, false);
        let page = String::from_utf8(metrics.render().unwrap()).unwrap();
        assert!(!page.contains("\"dev\"") && !page.contains("\"bad\""), "{page}");
    }
}
