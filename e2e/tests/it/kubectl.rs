//! Objects by kubectl: create, apply, patch, watch, delete.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use e2e_cluster::kubectl::Kubectl;

use crate::harness::shared_blocking;

const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: objects}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: objects, labels: {stage: first}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: kubebrain.io/pod:e2e
    args: [serve]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
";

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: cups.e2e.kubebrain.io}
spec:
  group: e2e.kubebrain.io
  scope: Namespaced
  names: {kind: Cup, plural: cups, singular: cup}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {volume: {type: integer, maximum: 10}}}
          status: {type: object, properties: {full: {type: boolean}}}
";

/// kubectl in a namespace of the test's own.
struct In<'a>(&'a Kubectl, &'a str);

impl In<'_> {
    fn run(&self, args: &[&str]) -> String {
        self.0.run(["--namespace", self.1].iter().chain(args)).unwrap()
    }

    fn fails(&self, args: &[&str], with: &str) {
        let error = self
            .0
            .run(["--namespace", self.1].iter().chain(args))
            .unwrap_err()
            .to_string();
        assert!(error.contains(with), "{args:?}: {error}");
    }
}

#[test]
fn pods_are_created_patched_and_deleted() {
    let it = shared_blocking();
    let kubectl = In(it.cluster.kubectl(), "objects");
    it.cluster.kubectl().apply(PODS).unwrap();
    kubectl.run(&["wait", "--for=condition=Ready", "pod/server", "--timeout=60s"]);
    assert!(kubectl.run(&["logs", "server"]).starts_with("serving on port 8080"));
    kubectl.run(&[
        "patch",
        "pod",
        "server",
        "--patch",
        r#"{"metadata": {"labels": {"stage": "second"}}}"#,
    ]);
    assert_eq!(
        kubectl.run(&["get", "pods", "--selector", "stage=second", "--output", "name"]),
        "pod/server\n"
    );
    assert_eq!(
        kubectl.run(&["get", "pods", "--selector", "stage=first", "--output", "name"]),
        ""
    );
    kubectl.run(&["delete", "pod", "server"]);
    kubectl.fails(&["get", "pod", "server"], "NotFound");
    it.watch_agrees_with_list();
}

#[test]
fn config_maps_are_applied_watched_and_deleted() {
    let it = shared_blocking();
    let kubectl = In(it.cluster.kubectl(), "config-maps");
    it.cluster
        .kubectl()
        .run(["create", "namespace", "config-maps"])
        .unwrap();
    kubectl.run(&["create", "configmap", "a", "--from-literal=n=0"]);
    kubectl.fails(&["create", "configmap", "a"], "already exists");
    let mut watch = it.cluster.kubectl().command();
    watch.args([
        "--namespace",
        "config-maps",
        "get",
        "configmaps",
        "--watch",
        "--output-watch-events",
    ]);
    watch.args([
        "--field-selector=metadata.name=a",
        "--output",
        "jsonpath={.type} {.object.data.n}{\"\\n\"}",
    ]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "ADDED 0");
    for n in 1..=5 {
        kubectl.run(&[
            "patch",
            "configmap",
            "a",
            "--patch",
            &format!(r#"{{"data": {{"n": "{n}"}}}}"#),
        ]);
        assert_eq!(lines.next().unwrap(), format!("MODIFIED {n}"));
    }
    kubectl.run(&["delete", "configmap", "a"]);
    assert_eq!(lines.next().unwrap(), "DELETED 5");
    watch.kill().unwrap();
    watch.wait().unwrap();
    it.watch_agrees_with_list();
}

#[test]
fn custom_resources_are_defined_used_and_forgotten() {
    let it = shared_blocking();
    let kubectl = In(it.cluster.kubectl(), "default");
    it.cluster.kubectl().apply(DEFINITION).unwrap();
    kubectl.run(&[
        "wait",
        "--for=condition=Established",
        "crd/cups.e2e.kubebrain.io",
        "--timeout=60s",
    ]);
    let cup = |volume: u32| {
        format!(
            "{{apiVersion: e2e.kubebrain.io/v1, kind: Cup, metadata: {{name: a, namespace: default}}, spec: {{volume: {volume}}}}}"
        )
    };
    it.cluster.kubectl().apply(&cup(3)).unwrap();
    it.cluster.kubectl().apply(&cup(4)).unwrap();
    let refused = it.cluster.kubectl().apply(&cup(11)).unwrap_err().to_string();
    assert!(refused.contains("should be less than or equal to 10"), "{refused}");
    let status = r#"{"status": {"full": true}}"#;
    kubectl.run(&[
        "patch",
        "cup",
        "a",
        "--subresource=status",
        "--type=merge",
        "--patch",
        status,
    ]);
    let read = kubectl.run(&[
        "get",
        "cup",
        "a",
        "--output",
        "jsonpath={.spec.volume} {.status.full} {.metadata.generation}",
    ]);
    assert_eq!(read, "4 true 2");
    kubectl.run(&["delete", "crd", "cups.e2e.kubebrain.io"]);
    kubectl.fails(&["get", "crd", "cups.e2e.kubebrain.io"], "NotFound");
    it.watch_agrees_with_list();
}
