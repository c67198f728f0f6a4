//! The operator's Deployment with two replicas, one of them the leader, under the restricted pod security standard; and its
//! PodDisruptionBudget.

use serde_json::{Value, json};

use crate::install::Install;

/// Port of /healthz, /readyz and /metrics.
pub(crate) const PORT: i32 = 8080;

/// Returns the Deployment.
pub(crate) fn object(install: &Install) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": install.metadata(&install.name, Some(&install.namespace)),
        "spec": {
            "replicas": install.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": install.selector()},
            "template": {
                "metadata": {
                    "labels": install.labels(),
                    "annotations": {"kubectl.kubernetes.io/default-container": "operator"},
                },
                "spec": pod(install),
            },
        },
    })
}

/// Returns the PodDisruptionBudget. A drain evicts one replica at a time; a replica that is not ready never blocks it.
pub(crate) fn disruption_budget(install: &Install) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": install.metadata(&install.name, Some(&install.namespace)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": install.selector()},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    })
}

fn pod(install: &Install) -> Value {
    let mut pod = json!({
        "serviceAccountName": install.name,
        "terminationGracePeriodSeconds": 60,
        "securityContext": install.pod_security_context,
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": install.selector()},
        }],
        "containers": [container(install)],
    });
    for (field, value) in &install.pod {
        pod[*field] = value.clone();
    }
    pod
}

fn container(install: &Install) -> Value {
    let mut arguments = vec![
        format!("--default-image={}", install.brain_image),
        format!("--listen=[::]:{PORT}"),
        "--leader-elect".to_owned(),
        format!("--leader-elect-name={}", install.name),
        "--log-format=json".to_owned(),
    ];
    arguments.extend(install.arguments.iter().cloned());
    json!({
        "name": "operator",
        "image": install.image,
        "imagePullPolicy": install.pull_policy,
        "args": arguments,
        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "livenessProbe": probe("/healthz", 20, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "startupProbe": probe("/healthz", 1, 60),
        "resources": install.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

fn field(name: &str, path: &str) -> Value {
    // Includes `apiVersion`, which the API server would add: the map is atomic, so another manager that omits it conflicts.
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}

fn probe(path: &str, period: i32, failures: i32) -> Value {
    json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5})
}
