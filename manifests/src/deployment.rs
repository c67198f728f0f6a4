//! The operator's Deployment: two replicas, of which one leads, under the restricted pod security standard.

use serde_json::{Value, json};

use crate::render::{NAME, NAMESPACE, labels};

/// Version of this build; the images carry it as their tag.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Port of /healthz, /readyz and /metrics.
const PORT: i32 = 8080;

pub(crate) fn object() -> Value {
    let selector = json!({"app.kubernetes.io/name": NAME});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels()},
        "spec": {
            "replicas": 2,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": labels(),
                    "annotations": {"kubectl.kubernetes.io/default-container": "operator"},
                },
                "spec": {
                    "serviceAccountName": NAME,
                    "terminationGracePeriodSeconds": 60,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": selector},
                    }],
                    "containers": [container()],
                },
            },
        },
    })
}

fn container() -> Value {
    json!({
        "name": "operator",
        "image": format!("kubebrain.io/kubebrain-operator:{VERSION}"),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--default-image=kubebrain.io/kubebrain",
            format!("--listen=0.0.0.0:{PORT}"),
            "--leader-elect",
            "--log-format=json",
        ],
        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "livenessProbe": probe("/healthz", 20, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "startupProbe": probe("/healthz", 1, 60),
        "resources": {"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn probe(path: &str, period: i32, failures: i32) -> Value {
    json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5})
}
