//! The plain YAML: Kubernetes' own types, kustomizations, and the file that needs none.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::{
    apps::v1 as apps, core::v1 as core, networking::v1 as networking, policy::v1 as policy, rbac::v1 as rbac,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::files::{below, objects, objects_below, path, strings};

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
    let roots = ["yaml", "argocd/apps", "argocd/tenant"];
    let root = objects("argocd/app-of-apps.yaml").into_iter();
    let root = root.map(|object| ("argocd/app-of-apps.yaml".to_owned(), object));
    for (name, object) in roots.into_iter().flat_map(objects_below).chain(root) {
        match object["kind"].as_str().unwrap() {
            "ClusterRole" => check::<rbac::ClusterRole>(&name, &object),
            "ClusterRoleBinding" => check::<rbac::ClusterRoleBinding>(&name, &object),
            "ConfigMap" => check::<core::ConfigMap>(&name, &object),
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
            "Secret" => check::<core::Secret>(&name, &object),
            "KubeBrainBackup" | "KubeBrainBackupSchedule" | "KubeBrainCluster" => {}
            kind => assert!(FOREIGN.contains(&kind), "{name}: unexpected {kind}"),
        }
    }
}

/// Returns the files and kustomizations that a kustomization names, by their paths.
#[track_caller]
fn resources(kustomization: &str) -> Vec<String> {
    let (directory, _) = kustomization.rsplit_once('/').unwrap();
    let object = &objects(kustomization)[0];
    let resolve = |resource: &str| {
        let whole = match resource.strip_prefix("../") {
            Some(sibling) => format!("{}/{sibling}", directory.rsplit_once('/').unwrap().0),
            None => format!("{directory}/{resource}"),
        };
        if path(&whole).is_dir() {
            format!("{whole}/kustomization.yaml")
        } else {
            whole
        }
    };
    strings(&object["resources"]).into_iter().map(resolve).collect()
}

fn kustomizations() -> Vec<String> {
    let mut names = below("yaml");
    names.retain(|name| name.ends_with("/kustomization.yaml"));
    names
}

#[test]
fn every_kustomization_names_what_is_there() {
    for name in kustomizations() {
        let resources = resources(&name);
        assert!(!resources.is_empty(), "{name}");
        for resource in resources {
            assert!(path(&resource).is_file(), "{name}: {resource}");
        }
    }
}

#[test]
fn every_file_is_in_a_kustomization() {
    let mut named: BTreeSet<String> = kustomizations().iter().flat_map(|name| resources(name)).collect();
    named.extend(kustomizations());
    for name in below("yaml") {
        let is_alone = name == "yaml/install.yaml" || name.starts_with("yaml/samples/");
        assert!(is_alone || named.contains(&name), "no kustomization names {name}");
    }
}

/// Returns the objects of a kustomization and of those that it names.
fn built(kustomization: &str) -> Vec<Value> {
    let parts = resources(kustomization).into_iter().map(|resource| {
        if resource.ends_with("/kustomization.yaml") {
            built(&resource)
        } else {
            objects(&resource)
        }
    });
    parts.flatten().collect()
}

#[test]
fn install_yaml_has_the_objects_of_the_root_kustomization() {
    let sorted = |mut all: Vec<Value>| {
        all.sort_by_key(ToString::to_string);
        all
    };
    assert_eq!(
        sorted(objects("yaml/install.yaml")),
        sorted(built("yaml/kustomization.yaml"))
    );
}
