//! The CustomResourceDefinition, from the types in `crds`.

use anyhow::{Context as _, ensure};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::Files;
use crate::source::DERIVED_HEADER;

/// The definition for kubectl and kustomize.
pub(crate) const PLAIN_DEFINITION: &str = "yaml/crd/crd.yaml";
/// The definition in the chart.
const CHART_DEFINITION: &str = "helm/kubebrain-operator/templates/crd.yaml";

/// Returns the definition for kustomize and for the chart.
///
/// # Errors
/// The definition fails to serialise, or looks like a template of Helm.
pub(crate) fn files() -> anyhow::Result<Files> {
    Ok(Files::from([
        (PLAIN_DEFINITION.to_owned(), format!("{DERIVED_HEADER}{}", plain()?)),
        (CHART_DEFINITION.to_owned(), chart()?),
    ]))
}

/// Returns the definition as YAML.
///
/// # Errors
/// It fails to serialise.
pub(crate) fn plain() -> anyhow::Result<String> {
    yaml(&definition()?)
}

/// A release upgrades the definition, but an uninstall keeps it, because its deletion would delete all clusters.
fn chart() -> anyhow::Result<String> {
    let mut definition = definition()?;
    definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    let text = yaml(&definition)?;
    ensure!(!text.contains("{{"), "the definition must not look like a template");
    Ok(format!(
        "{{{{- if $.Values.crds.install }}}}\n---\n{text}{{{{- end }}}}\n"
    ))
}

/// Returns the definition with its fields in alphabetical order.
fn definition() -> anyhow::Result<Value> {
    serde_json::to_value(crds::KubeBrainCluster::crd()).context("serialise the definition")
}

fn yaml(definition: &Value) -> anyhow::Result<String> {
    serde_yaml::to_string(definition).context("serialise the definition")
}
