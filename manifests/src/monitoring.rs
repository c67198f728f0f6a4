//! What the Prometheus operator needs to scrape the operator, and alerts on what it reports.

use serde_json::{Value, json};

use crate::chart::template;
use crate::install::Install;

/// The PodMonitor.
pub(crate) fn pod_monitor(install: &Install) -> Value {
    let mut endpoint = json!({"port": "http", "path": "/metrics"});
    if let Some(interval) = &install.monitoring.interval {
        endpoint["interval"] = interval.clone();
    }
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(install, install.monitoring.pod_monitor_labels.as_deref()),
        "spec": {"selector": {"matchLabels": install.selector()}, "podMetricsEndpoints": [endpoint]},
    })
}

/// The PrometheusRule.
pub(crate) fn rule(install: &Install) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(install, install.monitoring.rule_labels.as_deref()),
        "spec": {"groups": [{"name": "kubebrain-operator", "rules": alerts()}]},
    })
}

fn metadata(install: &Install, labels: Option<&str>) -> Value {
    let mut metadata = install.metadata(&install.name, Some(&install.namespace));
    if let Some(labels) = labels {
        metadata["labels"][template::MERGED] = json!(labels);
    }
    metadata
}

fn alerts() -> Vec<Value> {
    vec![
        alert(
            "KubeBrainOperatorWithoutLeader",
            "absent(kubebrain_operator_leader == 1)",
            "5m",
            "critical",
            "No replica of the KubeBrain operator leads: clusters are not looked after, and certificates not renewed.",
        ),
        alert(
            "KubeBrainOperatorPassesFail",
            r#"sum(increase(kubebrain_operator_reconcile_total{outcome="Failed"}[10m])) > 5"#,
            "10m",
            "warning",
            "Passes over KubeBrainClusters keep failing: read the conditions of the clusters and the operator's log.",
        ),
        alert(
            "KubeBrainOperatorPanicked",
            "sum(increase(kubebrain_operator_reconcile_panics_total[1h])) > 0",
            "0m",
            "warning",
            "A pass of the KubeBrain operator panicked: please report its log.",
        ),
        alert(
            "KubeBrainClusterNotReady",
            r#"max(kubebrain_operator_clusters{ready="False"}) > 0"#,
            "15m",
            "warning",
            "A KubeBrainCluster is not Ready: kubectl get kubebrainclusters --all-namespaces --output wide says which and why.",
        ),
        alert(
            "KubeBrainCertificateExpires",
            "min(kubebrain_operator_certificate_expiry_timestamp_seconds > 0) - time() < 7 * 24 * 3600",
            "1h",
            "warning",
            "A certificate of a KubeBrainCluster ends within a week and was not renewed: read status.certificates.",
        ),
    ]
}

fn alert(name: &str, expression: &str, pending: &str, severity: &str, summary: &str) -> Value {
    json!({
        "alert": name,
        "expr": expression,
        "for": pending,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    })
}
