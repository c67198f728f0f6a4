//! The files, and the YAML in them.

use std::collections::BTreeMap;

use anyhow::Context;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{deployment, rbac, samples};

/// Namespace, ServiceAccount, Deployment and roles of the operator go by these names.
pub(crate) const NAMESPACE: &str = "kubebrain-system";
pub(crate) const NAME: &str = "kubebrain-operator";

const HEADER: &str = "# Rendered by `make manifests`; do not edit.\n";

/// Every file by its path below the output directory.
///
/// # Errors
/// An object does not serialise.
pub(crate) fn files() -> anyhow::Result<BTreeMap<&'static str, String>> {
    let crd = serde_json::to_value(crds::KubeBrainCluster::crd()).context("serialise the definition")?;
    let parts = [
        ("crd.yaml", vec![crd]),
        ("namespace.yaml", vec![namespace()]),
        ("rbac.yaml", rbac::objects()),
        ("operator.yaml", vec![deployment::object()]),
    ];
    let resources: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    let mut files = BTreeMap::new();
    for (name, objects) in parts {
        files.insert(name, documents(&objects).with_context(|| format!("render {name}"))?);
    }
    files.insert("kustomization.yaml", documents(&[kustomization])?);
    files.insert("samples/embedded.yaml", documents(&samples::embedded())?);
    files.insert("samples/tikv.yaml", documents(&samples::tikv())?);
    Ok(files)
}

/// Labels of everything that belongs to the operator itself.
pub(crate) fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/component": "operator",
        "app.kubernetes.io/part-of": "kubebrain",
    })
}

fn namespace() -> Value {
    let mut labels = labels();
    for mode in ["enforce", "warn", "audit"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = json!("restricted");
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
}

fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let mut text = HEADER.to_owned();
    for (i, object) in objects.iter().enumerate() {
        if i > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_yaml::to_string(object).context("serialise as YAML")?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1, rbac::v1 as roles};
    use serde::{Serialize, de::DeserializeOwned};

    use super::*;

    #[test]
    fn the_committed_files_are_what_would_be_rendered() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
        for (name, rendered) in files().unwrap() {
            let committed = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            assert!(
                committed == rendered,
                "yaml/{name} is out of date: run `make manifests`"
            );
        }
    }

    #[test]
    fn no_committed_file_is_left_over() {
        let rendered = files().unwrap();
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
        for inside in ["", "samples"] {
            for entry in std::fs::read_dir(directory.join(inside)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    let name = path.strip_prefix(&directory).unwrap().to_str().unwrap().to_owned();
                    assert!(rendered.contains_key(name.as_str()), "nothing renders yaml/{name}");
                }
            }
        }
    }

    /// Through Kubernetes' own type and back: a misspelt field would be lost on the way.
    #[track_caller]
    fn check<T: DeserializeOwned + Serialize>(object: &Value) {
        let typed: T = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(&serde_json::to_value(typed).unwrap(), object);
    }

    #[test]
    fn kubernetes_knows_every_field() {
        check::<v1::Namespace>(&namespace());
        check::<Deployment>(&deployment::object());
        for object in rbac::objects() {
            match object["kind"].as_str().unwrap() {
                "ServiceAccount" => check::<v1::ServiceAccount>(&object),
                "ClusterRole" => check::<roles::ClusterRole>(&object),
                "ClusterRoleBinding" => check::<roles::ClusterRoleBinding>(&object),
                "Role" => check::<roles::Role>(&object),
                "RoleBinding" => check::<roles::RoleBinding>(&object),
                kind => panic!("unexpected {kind}"),
            }
        }
    }

    #[test]
    fn the_samples_obey_the_rules() {
        for object in [samples::embedded(), samples::tikv()].concat() {
            if object["kind"] == "KubeBrainCluster" {
                let cluster: crds::KubeBrainCluster = serde_json::from_value(object).unwrap();
                cluster.validate_cel().unwrap();
            }
        }
    }
}
