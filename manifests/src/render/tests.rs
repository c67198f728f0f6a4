use std::path::Path;

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::{
    apps::v1 as apps, core::v1 as core, networking::v1 as networking, policy::v1 as policy, rbac::v1 as rbac,
};
use serde::{Deserialize as _, Serialize, de::DeserializeOwned};
use serde_json::json;

use super::*;
use crate::install::Install;
use crate::{deployment, samples};

fn directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_committed_files_are_what_would_be_rendered() {
    for (name, rendered) in files().unwrap() {
        let committed = std::fs::read_to_string(directory().join(&name)).unwrap_or_default();
        assert!(committed == rendered, "{name} is out of date: run `make manifests`");
    }
}

#[test]
fn samples_that_own_garbage_collection_exclude_tidb() {
    let all = files().unwrap();
    let samples = all.iter().filter(|(name, _)| name.starts_with("yaml/samples/"));
    let owners: Vec<&str> = samples
        .flat_map(|(_, text)| text.lines())
        .filter(|line| line.trim().starts_with("owner: Brain"))
        .collect();
    assert!(!owners.is_empty());
    for line in owners {
        assert!(line.contains("# Only without TiDB"), "{line}");
    }
}

#[test]
fn no_committed_file_is_left_over() {
    let rendered = files().unwrap();
    let mut directories: Vec<_> = ROOTS.map(|root| directory().join(root)).to_vec();
    while let Some(inside) = directories.pop() {
        for entry in std::fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.strip_prefix(directory()).unwrap().to_str().unwrap();
            assert!(rendered.contains_key(name), "nothing renders {name}");
        }
    }
}

/// Returns every object in the files below `root`, with the file's name.
fn objects(root: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (name, text) in files().unwrap() {
        if name.starts_with(root) && name.ends_with(".yaml") {
            for document in serde_yaml::Deserializer::from_str(&text) {
                all.push((name.clone(), Value::deserialize(document).unwrap()));
            }
        }
    }
    all
}

/// Converts an object to Kubernetes' own type and back: a misspelt field would get lost.
#[track_caller]
fn check<T: DeserializeOwned + Serialize>(name: &str, object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(&serde_json::to_value(typed).unwrap(), object, "{name}");
}

/// Kinds that are not Kubernetes' own and have no type here.
const FOREIGN: &[&str] = &[
    "Application",
    "Certificate",
    "Cluster",
    "Component",
    "CustomResourceDefinition",
    "Issuer",
    "Kustomization",
    "PDGroup",
    "PodMonitor",
    "PrometheusRule",
    "TiKVGroup",
];

#[test]
fn kubernetes_knows_every_field() {
    let roots = ["yaml/", "argocd/apps/", "argocd/tenant/", "argocd/app-of-apps"];
    for (name, object) in roots.iter().flat_map(|root| objects(root)) {
        match object["kind"].as_str().unwrap() {
            "ClusterRole" => check::<rbac::ClusterRole>(&name, &object),
            "ClusterRoleBinding" => check::<rbac::ClusterRoleBinding>(&name, &object),
            "Deployment" => check::<apps::Deployment>(&name, &object),
            "Namespace" => check::<core::Namespace>(&name, &object),
            "NetworkPolicy" => check::<networking::NetworkPolicy>(&name, &object),
            "PersistentVolumeClaim" => check::<core::PersistentVolumeClaim>(&name, &object),
            "PodDisruptionBudget" => check::<policy::PodDisruptionBudget>(&name, &object),
            "Role" => check::<rbac::Role>(&name, &object),
            "RoleBinding" => check::<rbac::RoleBinding>(&name, &object),
            "Service" => check::<core::Service>(&name, &object),
            "ServiceAccount" => check::<core::ServiceAccount>(&name, &object),
            "StatefulSet" => check::<apps::StatefulSet>(&name, &object),
            "ValidatingAdmissionPolicy" => check::<admission::ValidatingAdmissionPolicy>(&name, &object),
            "ValidatingAdmissionPolicyBinding" => check::<admission::ValidatingAdmissionPolicyBinding>(&name, &object),
            "KubeBrainCluster" => {}
            kind => assert!(FOREIGN.contains(&kind), "{name}: unexpected {kind}"),
        }
    }
}

#[test]
fn every_sample_has_a_cluster_that_obeys_the_rules() {
    for (name, objects) in samples::all() {
        let mut clusters = 0;
        for object in objects {
            if object["kind"] != "KubeBrainCluster" {
                continue;
            }
            clusters += 1;
            let cluster: crds::KubeBrainCluster = serde_json::from_value(object.clone()).unwrap();
            cluster
                .validate_cel()
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_contains(&serde_json::to_value(&cluster).unwrap(), &object, name);
        }
        assert_eq!(clusters, i32::from(name != "network-policy"), "{name}");
    }
}

/// Checks that `whole` contains `part`. A misspelt field would be missing; added defaults are allowed.
#[track_caller]
fn assert_contains(whole: &Value, part: &Value, at: &str) {
    match part {
        Value::Object(map) => {
            for (key, value) in map {
                assert_contains(&whole[key], value, &format!("{at}.{key}"));
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                assert_contains(&whole[i], value, &format!("{at}[{i}]"));
            }
        }
        part => assert_eq!(whole, part, "{at}"),
    }
}

#[test]
fn every_kustomization_names_what_is_there() {
    let files = files().unwrap();
    for (name, object) in objects("yaml/") {
        if !["Kustomization", "Component"].contains(&object["kind"].as_str().unwrap()) {
            continue;
        }
        let (directory, _) = name.rsplit_once('/').unwrap();
        for resource in object["resources"].as_array().unwrap() {
            let resource = resource.as_str().unwrap();
            let path = match resource.strip_prefix("../") {
                Some(sibling) => format!("{}/{sibling}", directory.rsplit_once('/').unwrap().0),
                None => format!("{directory}/{resource}"),
            };
            assert!(
                files.contains_key(&path) || files.contains_key(&format!("{path}/kustomization.yaml")),
                "{name}: {resource}"
            );
        }
    }
}

#[test]
fn an_operator_of_some_namespaces_has_no_right_elsewhere() {
    for (directory, namespaces) in [
        ("yaml/one-namespace/", &["brains"][..]),
        ("yaml/several-namespaces/", &["brains-a", "brains-b"]),
    ] {
        let all = objects(directory);
        assert!(
            all.iter()
                .all(|(_, object)| !object["kind"].as_str().unwrap().starts_with("Cluster"))
        );
        let roles = all.iter().filter(|(_, object)| object["kind"] == "Role");
        let spaces: Vec<&str> = roles
            .map(|(_, role)| role["metadata"]["namespace"].as_str().unwrap())
            .collect();
        assert_eq!(spaces, namespaces);
        let (_, kustomization) = all
            .iter()
            .find(|(_, object)| object["kind"] == "Kustomization")
            .unwrap();
        let patch = kustomization["patches"][0]["patch"].as_str().unwrap();
        assert!(
            patch.contains(&format!("--namespace={}", namespaces.join(","))),
            "{patch}"
        );
    }
}

#[test]
fn roles_give_no_wildcard_and_no_way_to_more_rights() {
    for (name, object) in objects("yaml/") {
        if !["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap()) {
            continue;
        }
        for rule in object["rules"].as_array().unwrap() {
            let text = rule.to_string();
            for bad in [
                "\"*\"",
                "escalate",
                "bind\"",
                "impersonate",
                "pods/exec",
                "nodes",
                "customresourcedefinitions",
            ] {
                assert!(!text.contains(bad), "{name}: {text}");
            }
        }
    }
}

#[test]
fn the_pod_of_the_operator_is_restricted() {
    let deployment = deployment::object(&Install::plain());
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
}
