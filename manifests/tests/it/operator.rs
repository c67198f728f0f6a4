//! The operator's own objects: labels, selectors, ports, flags.

use serde_json::{Value, json};

use crate::files::{objects_below, only, strings, text};

const OPERATOR: &str = "yaml/operator/operator.yaml";
const POLICY: &str = "yaml/components/network-policy/objects.yaml";

fn deployment() -> Value {
    only(OPERATOR, "Deployment")
}

fn container() -> Value {
    deployment()["spec"]["template"]["spec"]["containers"][0].clone()
}

#[test]
fn the_pod_of_the_operator_is_restricted() {
    let container = container();
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    let namespace = only("yaml/operator/namespace.yaml", "Namespace");
    for mode in ["enforce", "warn", "audit"] {
        let label = format!("pod-security.kubernetes.io/{mode}");
        assert_eq!(namespace["metadata"]["labels"][label], "restricted", "{mode}");
    }
}

#[test]
fn every_object_of_the_operator_has_its_labels_and_is_in_its_namespace() {
    let labels = json!({
        "app.kubernetes.io/component": "operator",
        "app.kubernetes.io/name": "kubebrain-operator",
        "app.kubernetes.io/part-of": "kubebrain",
    });
    let mut checked = 0;
    for (name, object) in [
        "operator",
        "cluster-wide",
        "components",
        "one-namespace",
        "several-namespaces",
    ]
    .into_iter()
    .flat_map(|directory| objects_below(&format!("yaml/{directory}")))
    {
        let (kind, metadata) = (object["kind"].as_str().unwrap(), &object["metadata"]);
        let is_of_brains = kind == "Namespace" && name != "yaml/operator/namespace.yaml";
        if ["Kustomization", "Component"].contains(&kind) || is_of_brains {
            continue;
        }
        for (label, value) in labels.as_object().unwrap() {
            assert_eq!(&metadata["labels"][label], value, "{name}, {kind}: {label}");
        }
        let whole = metadata["name"].as_str().unwrap();
        let own = ["kubebrain-operator", "kubebrain-system"];
        assert!(own.iter().any(|own| whole.starts_with(own)), "{name}: {whole}");
        if !name.contains("-namespace") && metadata["namespace"] != Value::Null {
            assert_eq!(metadata["namespace"], "kubebrain-system", "{name}, {kind}");
        }
        checked += 1;
    }
    assert!(checked >= 19, "{checked}");
    assert_eq!(deployment()["spec"]["template"]["metadata"]["labels"], labels);
}

#[test]
fn everything_selects_the_pods_of_the_operator() {
    let selector = json!({"matchLabels": {"app.kubernetes.io/name": "kubebrain-operator"}});
    let deployment = deployment();
    assert_eq!(deployment["spec"]["selector"], selector);
    let spread = &deployment["spec"]["template"]["spec"]["topologySpreadConstraints"][0];
    assert_eq!(spread["labelSelector"], selector);
    assert_eq!(only(OPERATOR, "PodDisruptionBudget")["spec"]["selector"], selector);
    assert_eq!(only(POLICY, "NetworkPolicy")["spec"]["podSelector"], selector);
    let monitor = only("yaml/components/monitoring/objects.yaml", "PodMonitor");
    assert_eq!(monitor["spec"]["selector"], selector);
}

#[test]
fn probes_scrapes_and_policy_use_the_port_that_the_operator_listens_on() {
    let container = container();
    let port = &container["ports"][0];
    let listen = format!("--listen=[::]:{}", port["containerPort"]);
    assert!(strings(&container["args"]).contains(&listen.as_str()));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], port["name"], "{probe}");
    }
    let monitor = only("yaml/components/monitoring/objects.yaml", "PodMonitor");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], port["name"]);
    let ingress = &only(POLICY, "NetworkPolicy")["spec"]["ingress"][0];
    assert_eq!(
        ingress["ports"],
        json!([{"port": port["containerPort"], "protocol": "TCP"}])
    );
}

#[test]
fn the_operator_reaches_ports_of_brains_and_of_api_servers() {
    let policy = only(POLICY, "NetworkPolicy");
    let ports = |at: usize| -> Vec<u64> {
        let ports = policy["spec"]["egress"][at]["ports"].as_array().unwrap();
        ports.iter().map(|port| port["port"].as_u64().unwrap()).collect()
    };
    assert_eq!(ports(0), [53, 53]);
    assert_eq!(ports(1), [443, 6443]);
    // The client port, and the port of metrics and probes, as the operator gives them to a brain.
    let brain = only("../operator/plan/fixtures/epoch-2/minimal.yaml", "StatefulSet");
    let brain = &brain["spec"]["template"]["spec"]["containers"][0]["args"];
    for (flag, port) in [("--listen-client-urls", 0), ("--listen-metrics-urls", 1)] {
        let port = ports(2)[port];
        let listens = |argument: &&str| argument.starts_with(flag) && argument.ends_with(&format!(":{port}"));
        assert!(strings(brain).iter().any(listens), "{flag}, {port}");
    }
}

#[test]
fn the_operator_knows_every_flag_that_it_is_given() {
    let source = text("../operator/src/flags.rs");
    let chart = text("helm/kubebrain-operator/templates/deployment.yaml");
    let mut flags = 0;
    for line in chart.lines().chain(text(OPERATOR).lines()) {
        let Some(flag) = line.trim_start().strip_prefix("- --") else {
            continue;
        };
        let flag = flag.split('=').next().unwrap();
        let field = format!("    pub(crate) {}: ", flag.replace('-', "_"));
        assert!(source.contains(&field), "the operator has no flag {flag}");
        flags += 1;
    }
    assert_eq!(flags, 14);
}
