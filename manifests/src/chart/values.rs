//! The chart's values: one table that generates values.yaml and values.schema.json.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::install::{BRAIN_IMAGE, IMAGE, INTERVAL, api_server_ports, pod_security_context, resources};

/// One value: its path, default, schema and meaning.
struct Field {
    path: &'static str,
    default: Value,
    schema: Value,
    meaning: &'static str,
}

fn field(path: &'static str, default: Value, schema: Value, meaning: &'static str) -> Field {
    Field {
        path,
        default,
        schema,
        meaning,
    }
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn table() -> Vec<Field> {
    let text = || json!({"type": "string"});
    let switch = || json!({"type": "boolean"});
    let any = || json!({"type": "object"});
    let labels = || json!({"type": "object", "additionalProperties": {"type": "string"}});
    let objects = || json!({"type": "array", "items": {"type": "object"}});
    vec![
        field(
            "fullnameOverride",
            json!(""),
            json!({"type": "string", "maxLength": 50}),
            "Name of every object of the operator; derived from the release's name if empty.",
        ),
        field(
            "image.repository",
            json!(IMAGE),
            json!({"type": "string", "minLength": 1}),
            "Repository of the operator's image.",
        ),
        field(
            "image.tag",
            json!(""),
            text(),
            "Its tag; the chart's appVersion if empty.",
        ),
        field(
            "image.digest",
            json!(""),
            json!({"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}),
            "Its digest, such as sha256:…, instead of the tag.",
        ),
        field(
            "image.pullPolicy",
            json!("IfNotPresent"),
            json!({"enum": ["Always", "IfNotPresent", "Never"]}),
            "When it is pulled.",
        ),
        field(
            "imagePullSecrets",
            json!([]),
            objects(),
            "Secrets for the image's repository, as [{name: …}].",
        ),
        field(
            "defaultImage",
            json!(BRAIN_IMAGE),
            json!({"type": "string", "minLength": 1}),
            "Repository of the brain's image for clusters that name none.",
        ),
        field(
            "replicas",
            json!(2),
            json!({"type": "integer", "minimum": 0, "maximum": 10}),
            "Number of operators; one leads, the others take over.",
        ),
        field(
            "watchNamespaces",
            json!([]),
            json!({
                "type": "array",
                "uniqueItems": true,
                "items": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            }),
            "Namespaces whose clusters are managed, with a Role in each; they must exist. If empty: all namespaces, with a ClusterRole.",
        ),
        field(
            "allowedPodMetadata",
            json!([]),
            json!({
                "type": "array",
                "uniqueItems": true,
                "items": {"type": "string", "pattern": "^[-A-Za-z0-9_./]*[-A-Za-z0-9_./*]$"},
            }),
            "Labels and annotations that clusters may give their pods in addition to the known ones, such as example.com/*.",
        ),
        field(
            "extraArgs",
            json!([]),
            json!({"type": "array", "items": {"type": "string", "pattern": "^--"}}),
            "Further flags of the operator, such as --log=debug.",
        ),
        field("resources", resources(), any(), "CPU and memory of the operator."),
        field(
            "podSecurityContext",
            pod_security_context(),
            any(),
            "Security context of the pods. On OpenShift set runAsUser and runAsGroup to null, and pod.runAs of clusters to Platform.",
        ),
        field("nodeSelector", json!({}), labels(), "Labels that a node must have."),
        field(
            "tolerations",
            json!([]),
            objects(),
            "Taints of nodes that the pods tolerate.",
        ),
        field("affinity", json!({}), any(), "Affinity of the pods."),
        field("priorityClassName", json!(""), text(), "Priority class of the pods."),
        field(
            "crds.install",
            json!(true),
            switch(),
            "Makes the definition of KubeBrainCluster part of the release. It is upgraded with the release and kept when that is uninstalled.",
        ),
        field(
            "aggregatedRoles.create",
            json!(true),
            switch(),
            "Gives Kubernetes' roles view, edit and admin rights on KubeBrainClusters.",
        ),
        field(
            "podDisruptionBudget.enabled",
            json!(true),
            switch(),
            "Limits drains to one operator at a time.",
        ),
        field(
            "networkPolicy.enabled",
            json!(false),
            switch(),
            "Limits the operator's connections with a NetworkPolicy.",
        ),
        field(
            "networkPolicy.apiServerPorts",
            json!(api_server_ports()),
            json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1, "maximum": 65535}}),
            "Ports of the API server and of its Service.",
        ),
        field(
            "podMonitor.enabled",
            json!(false),
            switch(),
            "Creates a PodMonitor, so that the Prometheus operator scrapes the operator.",
        ),
        field(
            "podMonitor.labels",
            json!({}),
            labels(),
            "Labels by which a Prometheus selects the PodMonitor.",
        ),
        field(
            "podMonitor.interval",
            json!(INTERVAL),
            json!({"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}),
            "Time between two scrapes.",
        ),
        field(
            "prometheusRule.enabled",
            json!(false),
            switch(),
            "Creates a PrometheusRule with alerts on the metrics of the operator and of brains.",
        ),
        field(
            "prometheusRule.labels",
            json!({}),
            labels(),
            "Labels by which a Prometheus selects the PrometheusRule.",
        ),
        field(
            "admissionPolicies.children.enabled",
            json!(false),
            switch(),
            "Allows only the operator and Kubernetes' controllers to write objects of the operator.",
        ),
        field(
            "admissionPolicies.podTemplates.enabled",
            json!(false),
            switch(),
            "Refuses clusters whose pods would be privileged or would use a node's namespaces and paths, or another service account.",
        ),
    ]
}

/// Returns values.yaml, each value with a comment.
///
/// # Errors
/// A default fails to serialise.
pub(super) fn defaults() -> anyhow::Result<String> {
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    for field in table() {
        let mut path: Vec<&str> = field.path.split('.').collect();
        let leaf = path.pop().context("a value has a name")?;
        let common = open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        for (depth, part) in path.iter().enumerate().skip(common) {
            writeln!(text, "{}{part}:", "  ".repeat(depth))?;
        }
        let indent = "  ".repeat(path.len());
        writeln!(text, "{indent}# {}", field.meaning)?;
        let entry = Value::Object(Map::from_iter([(leaf.to_owned(), field.default)]));
        for line in serde_yaml::to_string(&entry).context("serialise as YAML")?.lines() {
            writeln!(text, "{indent}{line}")?;
        }
        open = path;
    }
    Ok(text)
}

/// Returns values.schema.json, by which `helm install` refuses values.
pub(super) fn schema() -> Value {
    let mut root = json!({"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart kubebrain-operator"});
    // Helm adds this value itself.
    add(&mut root, &["global"], json!({"type": "object"}));
    for field in table() {
        let mut schema = field.schema;
        schema["description"] = json!(field.meaning);
        let path: Vec<&str> = field.path.split('.').collect();
        add(&mut root, &path, schema);
    }
    root
}

fn add(schema: &mut Value, path: &[&str], leaf: Value) {
    schema["type"] = json!("object");
    schema["additionalProperties"] = json!(false);
    match path {
        [] => {}
        [name] => schema["properties"][name] = leaf,
        [name, rest @ ..] => add(&mut schema["properties"][name], rest, leaf),
    }
}
