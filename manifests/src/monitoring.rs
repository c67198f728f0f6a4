//! PodMonitor of the operator, alerts on the operator and on brains, and the dashboard of brains.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::chart::template;
use crate::install::Install;
use crate::render::HEADER;

mod brains;
mod dashboard;

/// Returns every file for a Prometheus and a Grafana without the Prometheus operator, by its path below the output directory.
///
/// # Errors
/// A file fails to serialise.
pub(crate) fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let rules = serde_yaml::to_string(&json!({"groups": groups()})).context("serialise the rules")?;
    let dashboard = serde_json::to_string_pretty(&dashboard::dashboard()).context("serialise the dashboard")?;
    Ok(BTreeMap::from([
        ("monitoring/rules.yaml".to_owned(), format!("{HEADER}{rules}")),
        ("monitoring/dashboard.json".to_owned(), dashboard + "\n"),
    ]))
}

/// Returns the PodMonitor.
pub(crate) fn pod_monitor(install: &Install) -> Value {
    // The namespace label of a metric is that of a cluster, not that of the operator.
    let endpoint = json!({
        "port": "http",
        "path": "/metrics",
        "interval": install.monitoring.interval,
        "honorLabels": true,
    });
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(install, install.monitoring.pod_monitor_labels.as_deref()),
        "spec": {"selector": {"matchLabels": install.selector()}, "podMetricsEndpoints": [endpoint]},
    })
}

/// Returns the PrometheusRule.
pub(crate) fn rule(install: &Install) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(install, install.monitoring.rule_labels.as_deref()),
        "spec": {"groups": groups()},
    })
}

fn metadata(install: &Install, labels: Option<&str>) -> Value {
    let mut metadata = install.metadata(&install.name, Some(&install.namespace));
    if let Some(labels) = labels {
        metadata["labels"][template::MERGED] = json!(labels);
    }
    metadata
}

/// Returns the groups of alerts on the operator and on brains.
fn groups() -> [Value; 2] {
    [
        json!({"name": "kubebrain-operator", "rules": operator()}),
        json!({"name": "kubebrain", "rules": brains::alerts()}),
    ]
}

fn operator() -> Vec<Value> {
    vec![
        alert(
            "KubeBrainOperatorWithoutLeader",
            "absent(kubebrain_operator_leader == 1)",
            "5m",
            "critical",
            "No replica of the KubeBrain operator leads: clusters are not managed and certificates are not renewed.",
        ),
        alert(
            "KubeBrainOperatorPassesFail",
            r#"sum(increase(kubebrain_operator_reconcile_total{result="Failed"}[10m])) > 5"#,
            "10m",
            "warning",
            "Reconciles of KubeBrainClusters keep failing: read the conditions of the clusters and the operator's log.",
        ),
        alert(
            "KubeBrainOperatorPanicked",
            "sum(increase(kubebrain_operator_reconcile_panics_total[1h])) > 0",
            "0m",
            "warning",
            "A reconcile of the KubeBrain operator panicked: please report its log.",
        ),
        alert(
            "KubeBrainClusterNotReady",
            // A cluster without members is suspended, which is no fault.
            r#"max by (namespace, name) (kubebrain_cluster_condition{type="Ready"}) == 0 unless on (namespace, name) (kubebrain_cluster_spec_replicas == 0 and on (namespace, name) kubebrain_cluster_condition{type="Degraded"} == 0)"#,
            "15m",
            "warning",
            "KubeBrainCluster {{ $labels.namespace }}/{{ $labels.name }} is not Ready: its conditions say why.",
        ),
        alert(
            "KubeBrainCertificateExpires",
            // Certificates of a short validity always expire within a week. That is no fault while their renewal is still ahead.
            "min by (namespace, name, secret) (kubebrain_certificate_expiry_timestamp_seconds) - time() < 7 * 24 * 3600 \
             unless on (namespace, name, secret) kubebrain_certificate_renewal_timestamp_seconds > time()",
            "1h",
            "warning",
            "The certificate in Secret {{ $labels.secret }} of KubeBrainCluster {{ $labels.namespace }}/{{ $labels.name }} expires within a week and was not renewed.",
        ),
        alert(
            "KubeBrainCertificateAuthorityExpires",
            "min by (namespace, name) (kubebrain_certificate_authority_expiry_timestamp_seconds) - time() < 30 * 24 * 3600",
            "1h",
            "warning",
            "The certificate authority of KubeBrainCluster {{ $labels.namespace }}/{{ $labels.name }} expires within 30 days, and every certificate with it. Its issuer must renew it.",
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

#[cfg(test)]
mod tests;
