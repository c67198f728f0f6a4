//! Plain YAML and its kustomizations for all namespaces, one or several, with optional parts as components.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::install::{Install, NAME, namespace};
use crate::render::documents;
use crate::samples::BRAINS;
use crate::{admission, deployment, monitoring, network, rbac, samples};

/// Returns every file by its path below the output directory.
///
/// # Errors
/// An object fails to serialise.
pub(crate) fn files(crd: &Value) -> anyhow::Result<BTreeMap<String, String>> {
    let install = Install::plain();
    let mut all = BTreeMap::new();
    let mut put = |path: &str, objects: Vec<Value>| -> anyhow::Result<()> {
        let text = documents(&objects).with_context(|| format!("render {path}"))?;
        all.insert(format!("yaml/{path}"), text);
        Ok(())
    };
    put("kustomization.yaml", vec![kustomization(&["crd", "cluster-wide"])])?;
    put("crd/kustomization.yaml", vec![kustomization(&["crd.yaml"])])?;
    put("crd/crd.yaml", vec![crd.clone()])?;
    put(
        "operator/kustomization.yaml",
        vec![kustomization(&["namespace.yaml", "rbac.yaml", "operator.yaml"])],
    )?;
    put("operator/namespace.yaml", vec![namespace()])?;
    put("operator/rbac.yaml", rbac::own(&install))?;
    put("operator/operator.yaml", operator(&install))?;
    put(
        "cluster-wide/kustomization.yaml",
        vec![kustomization(&["../operator", "rbac.yaml", "roles.yaml"])],
    )?;
    put("cluster-wide/rbac.yaml", rbac::cluster_wide(&install))?;
    put("cluster-wide/roles.yaml", rbac::aggregated(&install))?;
    for (directory, spaces) in [
        ("one-namespace", &[BRAINS][..]),
        ("several-namespaces", &["brains-a", "brains-b"]),
    ] {
        put(&format!("{directory}/kustomization.yaml"), vec![watching(spaces)])?;
        let objects = spaces.iter().flat_map(|space| {
            let mut objects = vec![samples::namespace(space)];
            objects.extend(rbac::in_namespace(&install, space));
            objects
        });
        put(&format!("{directory}/rbac.yaml"), objects.collect())?;
    }
    for (directory, objects) in [
        (
            "monitoring",
            vec![monitoring::pod_monitor(&install), monitoring::rule(&install)],
        ),
        ("network-policy", vec![network::policy(&install)]),
        (
            "admission-policies",
            [admission::children(&install), admission::pod_templates(&install)].concat(),
        ),
    ] {
        put(&format!("components/{directory}/kustomization.yaml"), vec![component()])?;
        put(&format!("components/{directory}/objects.yaml"), objects)?;
    }
    put("install.yaml", everything(crd, &install))?;
    for (name, objects) in samples::all() {
        let text = documents(&objects).with_context(|| format!("render the sample {name}"))?;
        all.insert(format!("yaml/samples/{name}.yaml"), samples::with_comments(&text));
    }
    Ok(all)
}

/// Returns the operator's Deployment and PodDisruptionBudget.
fn operator(install: &Install) -> Vec<Value> {
    vec![deployment::object(install), deployment::disruption_budget(install)]
}

/// Returns the objects of the root kustomization, for `kubectl apply` without kustomize.
pub(crate) fn everything(crd: &Value, install: &Install) -> Vec<Value> {
    let mut all = vec![crd.clone(), namespace()];
    all.extend(rbac::own(install));
    all.extend(rbac::cluster_wide(install));
    all.extend(rbac::aggregated(install));
    all.extend(operator(install));
    all
}

fn kustomization(resources: &[&str]) -> Value {
    json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources})
}

fn component() -> Value {
    json!({"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "resources": ["objects.yaml"]})
}

/// Returns the patch that limits the operator to these namespaces.
fn watching(namespaces: &[&str]) -> Value {
    let add = json!([{
        "op": "add",
        "path": "/spec/template/spec/containers/0/args/-",
        "value": format!("--namespace={}", namespaces.join(",")),
    }]);
    let mut kustomization = kustomization(&["../crd", "../operator", "rbac.yaml"]);
    kustomization["patches"] = json!([{"target": {"kind": "Deployment", "name": NAME}, "patch": add.to_string()}]);
    kustomization
}
