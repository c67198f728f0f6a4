//! Brains on a TiKV cluster that the TiDB operator (version 2) creates, named by reference.

use serde_json::{Value, json};

use super::{BRAINS, cluster, namespace};

const TIKV: &str = "tikv-a";
const TIKV_VERSION: &str = "v8.5.2";

/// Returns PD and TiKV, and the cluster on them.
pub(super) fn objects() -> Vec<Value> {
    let spec = json!({
        "replicas": 3,
        "storage": {
            "type": "TiKV",
            "tikv": {
                "clusterRef": {"group": "core.pingcap.com", "kind": "Cluster", "name": TIKV},
                // No TiDB runs here that could advance the safe point.
                "gc": {"owner": "Brain"},
            },
        },
    });
    vec![
        namespace(BRAINS),
        object("Cluster", TIKV, &json!({})),
        object("PDGroup", &format!("{TIKV}-pd"), &group("20Gi")),
        object("TiKVGroup", &format!("{TIKV}-tikv"), &group("100Gi")),
        cluster("beside-tikv", spec),
    ]
}

fn group(storage: &str) -> Value {
    json!({
        "cluster": {"name": TIKV},
        "replicas": 3,
        "template": {"spec": {
            "version": TIKV_VERSION,
            "volumes": [{"name": "data", "mounts": [{"type": "data"}], "storage": storage}],
        }},
    })
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "core.pingcap.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": BRAINS},
        "spec": spec,
    })
}
