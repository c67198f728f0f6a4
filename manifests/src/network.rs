//! The operator's NetworkPolicy. Ingress: anything that scrapes its metrics. Egress: DNS, the API server and the brains.

use serde_json::{Value, json};

use crate::deployment::PORT;
use crate::install::{Install, port};

/// Ports of a brain that the operator connects to: the client port, and the port of metrics and probes.
const BRAIN_PORTS: [i32; 2] = [2379, 2381];

/// Returns the NetworkPolicy. Probes of the kubelet come from the pod's own node, which a NetworkPolicy never blocks.
pub(crate) fn policy(install: &Install) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": install.metadata(&install.name, Some(&install.namespace)),
        "spec": {
            "podSelector": {"matchLabels": install.selector()},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [port(PORT)]}],
            "egress": [
                {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
                {"ports": install.api_server_ports},
                {"to": [{"namespaceSelector": {}}], "ports": BRAIN_PORTS.map(port)},
            ],
        },
    })
}
