//! Examples to start from. They are not part of the installation.

use serde_json::{Value, json};

use crate::install::VERSION;

mod apiserver;
mod cert_manager;
mod network;
mod sidecar;
mod tidb_operator;

pub(crate) use apiserver::{Pki, deployment as apiserver_deployment, service as apiserver_service};
pub(crate) use cert_manager::tenant_pki;

/// Namespace of the samples.
pub(crate) const BRAINS: &str = "brains";

/// Returns every sample by its name.
pub(crate) fn all() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("embedded", embedded()),
        ("tikv", tikv()),
        ("tenant-control-plane", tenant()),
        ("storage-sidecar-embedded", sidecar::embedded()),
        ("storage-sidecar-tikv", sidecar::tikv()),
        ("cert-manager", cert_manager::objects()),
        ("tidb-operator", tidb_operator::objects()),
        ("network-policy", network::objects()),
    ]
}

/// Explains the values of a rendered sample that are wrong for some users.
pub(crate) fn with_comments(text: &str) -> String {
    const OWNER: &str = "owner: Brain";
    let why = "Only without TiDB, and for one cluster on this TiKV; otherwise remove gc.";
    text.replace(&format!("{OWNER}\n"), &format!("{OWNER} # {why}\n"))
}

/// Returns a namespace under the restricted pod security standard.
pub(crate) fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    })
}

/// Returns a cluster of this version in the samples' namespace.
pub(crate) fn cluster(name: &str, mut spec: Value) -> Value {
    spec["version"] = json!(VERSION);
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": name, "namespace": BRAINS},
        "spec": spec,
    })
}

/// Returns a single brain on a volume of its own, and its namespace.
fn embedded() -> Vec<Value> {
    let spec = json!({
        "replicas": 1,
        "storage": {"type": "Embedded", "embedded": {"size": "10Gi", "whenDeleted": "Retain"}},
        "podDisruptionBudget": {"enabled": false},
        "autoCompaction": {"retention": "5m"},
    });
    vec![namespace(BRAINS), cluster("dev", spec)]
}

/// Returns three brains on TiKV.
fn tikv() -> Vec<Value> {
    let spec = json!({
        "replicas": 3,
        "storage": {
            "type": "TiKV",
            "tikv": {"pdEndpoints": ["pd.tikv.svc:2379"], "keyPrefix": "/registry-tenant-a", "gc": {"owner": "Brain"}},
        },
        "tls": {"serverAltNames": ["etcd.tenant-a.example.org"]},
        "leaderElection": {
            "backend": "Storage",
            "leaseDuration": "2s",
            "renewDeadline": "1500ms",
            "retryPeriod": "400ms",
        },
        "services": {"client": {"trafficDistribution": "PreferClose"}},
        "inheritedMetadata": {"labels": {"team": "storage"}},
        "pod": {
            "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
            "topologySpreadConstraints": [{
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
            }],
        },
        "podTemplate": {"spec": {"containers": [{"name": "brain", "env": [{"name": "RUST_LOG", "value": "info"}]}]}},
        "logLevel": "Info",
        "autoCompaction": {"retention": "5m"},
    });
    vec![namespace(BRAINS), cluster("tenant-a", spec)]
}

/// Returns a Kubernetes control plane whose store is a brain. The Secret `tenant-pki` holds the keys that only its owner can create.
fn tenant() -> Vec<Value> {
    vec![
        namespace(BRAINS),
        tenant_cluster(),
        apiserver::deployment("tenant", &Pki::Secret),
        apiserver::service("tenant"),
    ]
}

/// Returns the store of that control plane.
pub(crate) fn tenant_cluster() -> Value {
    cluster(
        "tenant",
        json!({"storage": {"type": "Embedded", "embedded": {"size": "10Gi"}}}),
    )
}
