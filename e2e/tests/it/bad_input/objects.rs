//! `KubeBrainCluster`s that cannot work: refused by the API server or stalled with a reason, never a crash loop.

use e2e::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::harness::shared_blocking;

const NAMESPACE: &str = "refused";

fn cluster(name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    })
    .to_string()
}

fn embedded(more: Value) -> Value {
    let mut spec = json!({
        "version": "0.1.0",
        "replicas": 1,
        "storage": {"type": "Embedded", "embedded": {"size": "1Gi"}},
    });
    let Value::Object(more) = more else {
        panic!("fields, not {more}")
    };
    spec.as_object_mut().unwrap().extend(more);
    spec
}

fn refused(kubectl: &Kubectl, name: &str, spec: &Value, because: &str) {
    let error = format!("{:#}", kubectl.apply(&cluster(name, spec)).unwrap_err());
    assert!(error.contains(because), "{name} {spec}: {error}");
}

/// The condition `Stalled` becomes true, for this reason.
fn stalls(kubectl: &Kubectl, name: &str, spec: &Value, reason: &str) {
    kubectl.apply(&cluster(name, spec)).unwrap();
    let object = format!("kubebraincluster/{name}");
    let run = |args: &[&str]| {
        let args = ["--namespace", NAMESPACE].iter().chain(args);
        kubectl.run(args).unwrap()
    };
    run(&["wait", "--for=condition=Stalled", &object, "--timeout=60s"]);
    let path = "jsonpath={.status.conditions[?(@.type==\"Stalled\")].reason}";
    assert_eq!(run(&["get", &object, "--output", path]), reason);
}

#[test]
fn clusters_that_cannot_work_are_refused_or_stall() {
    let it = shared_blocking();
    let kubectl = it.cluster.kubectl();
    it.operator();
    kubectl.run(["create", "namespace", NAMESPACE]).unwrap();

    let good = embedded(json!({"replicas": 0}));
    refused(kubectl, &"a".repeat(46), &good, "at most 45 characters");
    refused(kubectl, "0-a", &good, "must start with a letter");
    refused(kubectl, "a", &embedded(json!({"replicas": 3})), "single-member");
    let both = json!({"type": "Embedded", "embedded": {"size": "1Gi"}, "tikv": {"pdEndpoints": ["pd:2379"]}});
    refused(
        kubectl,
        "a",
        &embedded(json!({"storage": both})),
        "storage.tikv is required when",
    );
    let neither = json!({"type": "TiKV"});
    refused(
        kubectl,
        "a",
        &embedded(json!({"storage": neither})),
        "storage.tikv is required when",
    );
    let short = json!({"validity": "1h", "renewBefore": "2h"});
    refused(
        kubectl,
        "a",
        &embedded(json!({"tls": short})),
        "renewBefore must be shorter",
    );
    refused(kubectl, "a", &embedded(json!({"replica": 1})), "unknown field");

    kubectl.apply(&cluster("good", &good)).unwrap();
    let tiny = json!({"type": "Embedded", "embedded": {"size": "1Mi"}});
    refused(
        kubectl,
        "good",
        &embedded(json!({"replicas": 0, "storage": tiny})),
        "at least 64Mi",
    );
    refused(
        kubectl,
        "flag",
        &embedded(json!({"flags": {"data-dir": "/"}})),
        "the operator itself sets this flag",
    );
    refused(
        kubectl,
        "flag",
        &embedded(json!({"flags": {"log-level": "debug"}})),
        "this flag has a field of its own",
    );

    let misspelt = json!({"spec": {"nodeSelektor": {"disk": "fast"}}});
    stalls(
        kubectl,
        "pod",
        &embedded(json!({"podTemplate": misspelt})),
        "InvalidSpec",
    );

    let pods = ["--namespace", NAMESPACE, "get", "pods", "--output", "name"];
    assert_eq!(kubectl.run(pods).unwrap(), "", "a pod was made of what cannot work");
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let operators = kubectl.run(["--namespace", "kubebrain-system", "get", "pods", "--output", restarts]);
    let operators = operators.unwrap();
    assert!(
        operators.split_whitespace().all(|count| count == "0"),
        "restarts: {operators}"
    );
    let delete = ["--namespace", NAMESPACE, "delete", "kubebrainclusters", "--all"];
    kubectl.run(delete).unwrap();
    it.watch_agrees_with_list();
}
