//! Resources that cannot work: refused by the API server or stalled with a reason, never a crash loop.

use e2e_cluster::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::harness::shared_blocking;

const NAMESPACE: &str = "refused";
const MANIFESTS: &str = "bad-manifests";

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

/// `object` with `value` put at each path; null removes.
fn with(mut object: Value, changes: &Value) -> Value {
    for (path, value) in changes.as_object().into_iter().flatten() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let mut at = &mut object;
        for part in parent.split('/').skip(1) {
            at = at.as_object_mut().unwrap().entry(part).or_insert_with(|| json!({}));
        }
        let fields = at.as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(field);
        } else {
            fields.insert(field.to_owned(), value.clone());
        }
    }
    object
}

/// The API server refuses every manifest that the tests of the definitions know to be bad, and says why.
#[test]
fn bad_manifests_are_refused() {
    let it = shared_blocking();
    let kubectl = it.cluster.kubectl();
    it.operator();
    kubectl.run(["create", "namespace", MANIFESTS]).unwrap();
    let files = [
        (
            "KubeBrainCluster",
            include_str!("../../../../crds/bad-manifests.json"),
            60,
        ),
        ("KubeBrainBackup", include_str!("../../../../crds/bad-backups.json"), 40),
        (
            "KubeBrainBackupSchedule",
            include_str!("../../../../crds/bad-schedules.json"),
            20,
        ),
    ];
    for (kind, file, least) in files {
        let file: Value = serde_json::from_str(file).unwrap();
        assert!(file["manifests"].as_array().unwrap().len() >= least, "{kind}");
        refuses(kubectl, kind, &file);
    }
    let delete = [
        "--namespace",
        MANIFESTS,
        "delete",
        "kubebrainclusters,kubebrainbackupschedules,kubebrainbackups",
        "--all",
    ];
    kubectl.run(delete).unwrap();
}

/// Applies the manifests of a file. Each is refused with its message.
fn refuses(kubectl: &Kubectl, kind: &str, file: &Value) {
    for (index, bad) in file["manifests"].as_array().unwrap().iter().enumerate() {
        let base = bad["base"].as_str().unwrap();
        let object = json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": format!("{base}-{index}"), "namespace": MANIFESTS},
            "spec": file["bases"][base],
        });
        let object = if bad["change"].is_object() {
            let before = with(object, &bad["from"]);
            kubectl.apply(&before.to_string()).unwrap();
            with(before, &bad["change"])
        } else {
            with(object, &bad["set"])
        };
        let error = format!("{:#}", kubectl.apply(&object.to_string()).unwrap_err());
        let message = bad["message"].as_str().unwrap();
        assert!(error.contains(message), "{bad}: {error}");
    }
}

#[test]
fn clusters_that_cannot_work_stall() {
    let it = shared_blocking();
    let kubectl = it.cluster.kubectl();
    it.operator();
    kubectl.run(["create", "namespace", NAMESPACE]).unwrap();

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
