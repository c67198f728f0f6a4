//! The Helm chart, by the real Helm: it has the objects that kustomize makes of the plain YAML, and refuses values that mean nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use programs::progress::Progress;
use programs::tools::cache::ToolCache;
use programs::tools::go;
use serde::Deserialize as _;
use serde_json::Value;

/// Objects by kind, namespace and name.
type Objects = BTreeMap<(String, String, String), Value>;

pub(crate) fn manifests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests").join(path)
}

/// Helm with these values.
pub(crate) fn helm(arguments: &[&str], values: &Value) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    helm_alone(&[arguments, &["--values", file.to_str().unwrap()]].concat())
}

/// Helm without values.
pub(crate) fn helm_alone(arguments: &[&str]) -> Output {
    let programs = go::HELM
        .build(&ToolCache::open().unwrap(), &Progress::stderr())
        .unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new(programs.join("helm"));
    helm.args(arguments).env_clear().env("HOME", home.path());
    helm.output().unwrap()
}

/// Standard output of what must succeed.
#[track_caller]
pub(crate) fn said(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn lint(values: &Value) {
    let chart = manifests("helm/kubebrain-operator");
    said(helm(&["lint", "--strict", chart.to_str().unwrap()], values));
}

fn template(release: &str, values: &Value) -> Output {
    let chart = manifests("helm/kubebrain-operator");
    let chart = chart.to_str().unwrap();
    helm(&["template", release, chart, "--namespace", "kubebrain-system"], values)
}

#[track_caller]
fn rendered(values: &Value) -> Objects {
    objects(&said(template("kubebrain-operator", values)))
}

fn plain(path: &str) -> Objects {
    objects(&std::fs::read_to_string(manifests(path)).unwrap())
}

#[track_caller]
fn kustomized(path: &str) -> Objects {
    let programs = go::KUBERNETES
        .build(&ToolCache::open().unwrap(), &Progress::stderr())
        .unwrap();
    let mut kubectl = Command::new(programs.join("kubectl"));
    objects(&said(kubectl.arg("kustomize").arg(manifests(path)).output().unwrap()))
}

fn objects(text: &str) -> Objects {
    let mut all = Objects::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document).unwrap();
        // A file whose condition does not hold, and what Helm makes by a flag of its own.
        if object.is_null() || object["kind"] == "Namespace" {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let key = (
            text(&object["kind"]),
            text(&metadata["namespace"]),
            text(&metadata["name"]),
        );
        assert!(all.insert(key.clone(), object).is_none(), "{key:?} is there twice");
    }
    all
}

/// Without what keeps the definition when a release is uninstalled.
fn unkept(mut objects: Objects) -> Objects {
    for ((kind, ..), object) in &mut objects {
        if kind == "CustomResourceDefinition" {
            let metadata = object["metadata"].as_object_mut().unwrap();
            let annotations = metadata.remove("annotations").unwrap();
            assert_eq!(annotations, serde_json::json!({"helm.sh/resource-policy": "keep"}));
        }
    }
    objects
}

#[track_caller]
fn same(rendered: &Objects, expected: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(rendered), names(expected));
    for (key, object) in rendered {
        assert_eq!(difference(object, &expected[key], ""), None, "{key:?}");
    }
}

/// Path of the first difference. Kustomize writes 1.0 as 1.
fn difference(a: &Value, b: &Value, path: &str) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let other = a
                .keys()
                .chain(b.keys())
                .find(|key| !a.contains_key(*key) || !b.contains_key(*key));
            let inside = || {
                a.iter()
                    .find_map(|(key, value)| difference(value, &b[key], &format!("{path}/{key}")))
            };
            other.map(|key| format!("{path}/{key}")).or_else(inside)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(i, (a, b))| difference(a, b, &format!("{path}/{i}")))
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        (a, b) => (a != b).then(|| format!("{path}: {a} and {b}")),
    }
}

fn everything() -> Value {
    serde_json::json!({
        "admissionPolicies": {"children": {"enabled": true}, "podTemplates": {"enabled": true}},
        "networkPolicy": {"enabled": true},
        "podMonitor": {"enabled": true},
        "prometheusRule": {"enabled": true},
    })
}

#[test]
fn the_chart_renders_the_plain_yaml() {
    lint(&serde_json::json!({}));
    let expected = kustomized("yaml");
    same(&unkept(rendered(&serde_json::json!({}))), &expected);
    same(&plain("yaml/install.yaml"), &expected);
}

#[test]
fn the_chart_renders_the_components() {
    lint(&everything());
    let mut expected = kustomized("yaml");
    for component in ["admission-policies", "monitoring", "network-policy"] {
        expected.extend(kustomized(&format!("yaml/components/{component}")));
    }
    same(&unkept(rendered(&everything())), &expected);
}

#[test]
fn the_chart_for_some_namespaces_has_roles_there_alone() {
    for (directory, namespaces) in [
        ("yaml/one-namespace", &["brains"][..]),
        ("yaml/several-namespaces", &["brains-a", "brains-b"]),
    ] {
        let values = serde_json::json!({"watchNamespaces": namespaces, "aggregatedRoles": {"create": false}});
        lint(&values);
        same(&unkept(rendered(&values)), &kustomized(directory));
    }
}

#[test]
fn values_reach_the_pod() {
    let values = serde_json::json!({
        "image": {"repository": "registry.example/operator", "digest": format!("sha256:{}", "0".repeat(64))},
        "defaultImage": "registry.example/brain",
        "advisoriesConfigMap": "",
        "imagePullSecrets": [{"name": "pull"}],
        "replicas": 3,
        "extraArgs": ["--log=operator=debug", "--cluster-domain=a.example"],
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "resources": {"limits": {"memory": "1Gi"}},
        "crds": {"install": false},
        "podDisruptionBudget": {"enabled": false},
        "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}, "interval": "1m"},
        "networkPolicy": {"enabled": true, "apiServerPorts": [8443]},
    });
    lint(&values);
    let all = objects(&said(template("mine", &values)));
    let of = |kind: &str| all.values().find(|object| object["kind"] == kind);
    assert!(of("CustomResourceDefinition").is_none() && of("PodDisruptionBudget").is_none());
    let deployment = of("Deployment").unwrap();
    assert_eq!(deployment["metadata"]["name"], "mine-kubebrain-operator");
    assert_eq!(deployment["spec"]["replicas"], 3);
    let pod = &deployment["spec"]["template"]["spec"];
    for (field, value) in [
        ("imagePullSecrets", &values["imagePullSecrets"]),
        ("nodeSelector", &values["nodeSelector"]),
        ("tolerations", &values["tolerations"]),
        ("priorityClassName", &values["priorityClassName"]),
    ] {
        assert_eq!(&pod[field], value, "{field}");
    }
    assert!(pod.get("affinity").is_none(), "an empty value leaves the field out");
    let container = &pod["containers"][0];
    assert_eq!(
        container["image"],
        format!("registry.example/operator@sha256:{}", "0".repeat(64))
    );
    // Helm merges maps: the defaults stay beside what is set.
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    let arguments = container["args"].as_array().unwrap();
    for argument in [
        "--default-image=registry.example/brain",
        "--leader-elect-name=mine-kubebrain-operator",
        "--log=operator=debug",
        "--cluster-domain=a.example",
    ] {
        assert!(
            arguments.iter().any(|each| each == argument),
            "{argument}: {arguments:?}"
        );
    }
    let monitor = of("PodMonitor").unwrap();
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["interval"], "1m");
    assert_eq!(
        of("NetworkPolicy").unwrap()["spec"]["egress"][1]["ports"][0]["port"],
        8443
    );
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    for (values, name) in [
        (serde_json::json!({"replicas": "two"}), "replicas"),
        (serde_json::json!({"replica": 2}), "replica"),
        (serde_json::json!({"watchNamespaces": "brains"}), "watchNamespaces"),
        (serde_json::json!({"watchNamespaces": ["Brains"]}), "watchNamespaces"),
        (serde_json::json!({"image": {"digest": "sha256:1"}}), "digest"),
        (serde_json::json!({"image": {"pullPolicy": "Sometimes"}}), "pullPolicy"),
        (serde_json::json!({"extraArgs": ["log=debug"]}), "extraArgs"),
        (serde_json::json!({"podMonitor": {"interval": "soon"}}), "interval"),
    ] {
        let output = template("kubebrain-operator", &values);
        assert!(!output.status.success(), "{values}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(name), "{values}: {error}");
    }
}
