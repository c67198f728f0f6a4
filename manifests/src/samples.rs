//! Examples to start from. They are not part of the installation.

use serde_json::{Value, json};

use crate::deployment::VERSION;

/// A single brain on a volume of its own, and its namespace.
pub(crate) fn embedded() -> Vec<Value> {
    vec![
        namespace(),
        json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": "KubeBrainCluster",
            "metadata": {"name": "dev", "namespace": "brains"},
            "spec": {
                "replicas": 1,
                "version": VERSION,
                "storage": {"type": "Embedded", "embedded": {"size": "10Gi", "whenDeleted": "Retain"}},
                "podDisruptionBudget": {"enabled": false},
                "autoCompaction": {"retention": "5m"},
            },
        }),
    ]
}

/// Three brains over TiKV: accepted, and reported as Stalled until that storage is supported.
pub(crate) fn tikv() -> Vec<Value> {
    vec![
        namespace(),
        json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": "KubeBrainCluster",
            "metadata": {"name": "tenant-a", "namespace": "brains"},
            "spec": {
                "replicas": 3,
                "version": VERSION,
                "storage": {
                    "type": "TiKV",
                    "tikv": {
                        "clusterRef": {"group": "core.pingcap.com", "kind": "Cluster", "name": "tikv-a"},
                        "keyPrefix": "/registry-tenant-a",
                        "tls": {
                            "caSecretRef": {"name": "tikv-a-ca", "key": "ca.crt"},
                            "clientSecretRef": {"name": "tenant-a-tikv-client"},
                        },
                    },
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
                    "resources": {
                        "requests": {"cpu": "2", "memory": "4Gi"},
                        "limits": {"memory": "4Gi"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "ScheduleAnyway",
                    }],
                    "priorityClassName": "system-cluster-critical",
                },
                "podTemplate": {
                    "spec": {"containers": [{"name": "brain", "env": [{"name": "RUST_LOG", "value": "info"}]}]},
                },
                "logLevel": "Info",
                "autoCompaction": {"retention": "5m"},
            },
        }),
    ]
}

fn namespace() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "brains", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    })
}
