//! A NetworkPolicy for the brains of one cluster.

use serde_json::{Value, json};

use super::BRAINS;
use crate::install::{NAME, NAMESPACE, port};

/// Returns the policy for the cluster `tenant-a` of the sample `tikv`.
pub(super) fn objects() -> Vec<Value> {
    let brains = json!({"podSelector": {"matchLabels": {
        "app.kubernetes.io/component": "brain",
        "kubebrain.io/cluster": "tenant-a",
    }}});
    let operator = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
    });
    let prometheus = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}});
    let tikv = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tikv"}}});
    vec![json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "tenant-a-brains", "namespace": BRAINS},
        "spec": {
            "podSelector": brains["podSelector"],
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                // Clients: the API servers of this namespace.
                {"from": [{"podSelector": {"matchLabels": {"app": "tenant-a-apiserver"}}}], "ports": [port(2379)]},
                {"from": [operator], "ports": [port(2379), port(2381)]},
                {"from": [brains], "ports": [port(2379), port(2380)]},
                {"from": [prometheus], "ports": [port(2381)]},
            ],
            "egress": [
                {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
                {"to": [brains], "ports": [port(2380)]},
                {"to": [tikv], "ports": [port(2379), port(20160)]},
            ],
        },
    })]
}
