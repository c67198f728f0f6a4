//! The CustomResourceDefinitions, from the types in `crds`.

use anyhow::{Context as _, ensure};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::Files;
use crate::source::DERIVED_HEADER;

/// The definitions for kubectl and kustomize.
pub(crate) const PLAIN_DEFINITION: &str = "yaml/crd/crd.yaml";
/// The definitions in the chart.
const CHART_DEFINITION: &str = "helm/kubebrain-operator/templates/crd.yaml";

/// Returns the definitions for kustomize and for the chart.
///
/// # Errors
/// A definition fails to serialise, or looks like a template of Helm.
pub(crate) fn files() -> anyhow::Result<Files> {
    Ok(Files::from([
        (PLAIN_DEFINITION.to_owned(), format!("{DERIVED_HEADER}{}", plain()?)),
        (CHART_DEFINITION.to_owned(), chart()?),
    ]))
}

/// Returns the definitions as YAML.
///
/// # Errors
/// One fails to serialise.
pub(crate) fn plain() -> anyhow::Result<String> {
    yaml(&definitions()?)
}

/// A release upgrades the definitions, but an uninstall keeps them, because their deletion would delete all clusters and backups.
fn chart() -> anyhow::Result<String> {
    let mut definitions = definitions()?;
    for definition in &mut definitions {
        definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    }
    let text = yaml(&definitions)?;
    ensure!(!text.contains("{{"), "the definitions must not look like a template");
    Ok(format!(
        "{{{{- if $.Values.crds.install }}}}\n---\n{text}{{{{- end }}}}\n"
    ))
}

/// Returns the definitions with their fields in alphabetical order.
fn definitions() -> anyhow::Result<[Value; 3]> {
    let value = |definition| serde_json::to_value(definition).context("serialise a definition");
    Ok([
        value(crds::KubeBrainCluster::crd())?,
        value(crds::KubeBrainBackup::crd())?,
        value(crds::KubeBrainBackupSchedule::crd())?,
    ])
}

fn yaml(definitions: &[Value]) -> anyhow::Result<String> {
    let texts = definitions.iter().map(serde_yaml::to_string);
    let texts = texts.collect::<Result<Vec<_>, _>>().context("serialise a definition")?;
    Ok(texts.join("---\n"))
}
