//! A kube-apiserver that stores its data in a cluster of brains.

use serde_json::{Value, json};

use super::BRAINS;

const IMAGE: &str = "registry.k8s.io/kube-apiserver:v1.34.4";
const PORT: i32 = 6443;

/// Source of the API server's own certificate and keys.
pub(crate) enum Pki {
    /// From the Secret `tenant-pki` with ca.crt, apiserver.crt, apiserver.key, sa.pub and sa.key.
    Secret,
    /// From Secrets that cert-manager creates.
    CertManager,
}

/// Returns the Deployment of an API server for the cluster `name`, which has one member.
pub(crate) fn deployment(name: &str, pki: &Pki) -> Value {
    let url = format!("https://{name}-0.{name}-headless.{BRAINS}.svc:2379");
    let pod = pod(container(&url), volumes(name, pki));
    workload(
        "Deployment",
        &format!("{name}-apiserver"),
        &json!({"replicas": 1}),
        &pod,
    )
}

/// Returns the Service of such an API server.
pub(crate) fn service(name: &str) -> Value {
    let app = format!("{name}-apiserver");
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": app, "namespace": BRAINS},
        "spec": {"selector": {"app": app}, "ports": [{"name": "https", "port": 443, "targetPort": "https"}]},
    })
}

/// Returns a Deployment or StatefulSet of such pods. `more` are additional fields of its spec.
pub(super) fn workload(kind: &str, name: &str, more: &Value, pod: &Value) -> Value {
    let mut spec = more.clone();
    spec["selector"] = json!({"matchLabels": {"app": name}});
    spec["template"] = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": BRAINS, "labels": {"app": name}},
        "spec": spec,
    })
}

/// Returns the pod with only this container.
pub(super) fn pod(container: Value, volumes: Vec<Value>) -> Value {
    json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    })
}

/// Returns the API server's container; `store` is the URL of its store.
pub(super) fn container(store: &str) -> Value {
    json!({
        "name": "kube-apiserver",
        "image": IMAGE,
        "command": ["kube-apiserver"],
        "args": [
            format!("--etcd-servers={store}"),
            "--etcd-cafile=/store-ca/ca.crt",
            "--etcd-certfile=/store-client/tls.crt",
            "--etcd-keyfile=/store-client/tls.key",
            "--service-cluster-ip-range=10.97.0.0/16",
            format!("--secure-port={PORT}"),
            "--authorization-mode=RBAC",
            "--client-ca-file=/pki/ca.crt",
            "--tls-cert-file=/pki/apiserver.crt",
            "--tls-private-key-file=/pki/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=/pki/sa.pub",
            "--service-account-signing-key-file=/pki/sa.key",
            "--endpoint-reconciler-type=none",
            // Wait until no Service routes to it any more.
            "--shutdown-delay-duration=10s",
        ],
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": probe("/livez", 120),
        "livenessProbe": probe("/livez", 8),
        "readinessProbe": probe("/readyz", 3),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "pki", "mountPath": "/pki", "readOnly": true},
            {"name": "store-ca", "mountPath": "/store-ca", "readOnly": true},
            {"name": "store-client", "mountPath": "/store-client", "readOnly": true},
        ],
    })
}

/// Returns the security context of a container under the restricted pod security standard.
pub(super) fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    })
}

fn probe(path: &str, failures: i32) -> Value {
    json!({
        "httpGet": {"path": path, "port": "https", "scheme": "HTTPS"},
        "periodSeconds": 2,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    })
}

/// Returns the volumes with the API server's own certificates, and with those that the operator issued to clients of the cluster `name`.
pub(super) fn volumes(name: &str, pki: &Pki) -> Vec<Value> {
    let own = match pki {
        Pki::Secret => json!({"name": "pki", "secret": {"secretName": format!("{name}-pki"), "defaultMode": 0o440}}),
        Pki::CertManager => {
            let item = |key: &str, path: &str| json!({"key": key, "path": path});
            json!({"name": "pki", "projected": {"defaultMode": 0o440, "sources": [
                {"secret": {"name": format!("{name}-apiserver-tls"), "items": [
                    item("tls.crt", "apiserver.crt"), item("tls.key", "apiserver.key"), item("ca.crt", "ca.crt"),
                ]}},
                {"secret": {"name": format!("{name}-service-accounts"), "items": [
                    item("tls.crt", "sa.pub"), item("tls.key", "sa.key"),
                ]}},
            ]}})
        }
    };
    vec![
        own,
        json!({"name": "store-ca", "configMap": {"name": format!("{name}-ca-bundle")}}),
        json!({
            "name": "store-client",
            "secret": {"secretName": format!("{name}-apiserver-client-tls"), "defaultMode": 0o440},
        }),
    ]
}
