//! All files, and the YAML in them.

use std::collections::BTreeMap;

use anyhow::Context;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{argocd, chart, kustomize, monitoring};

/// First line of every YAML file.
pub(crate) const HEADER: &str = "# Rendered by `make manifests`; do not edit.\n";

/// Directories that hold only rendered files.
pub(crate) const ROOTS: [&str; 4] = ["argocd", "helm", "monitoring", "yaml"];

/// Returns every file by its path below the output directory.
///
/// # Errors
/// An object fails to serialise.
pub(crate) fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let crd = serde_json::to_value(crds::KubeBrainCluster::crd()).context("serialise the definition")?;
    let mut files = kustomize::files(&crd)?;
    files.extend(chart::files(&crd)?);
    files.extend(argocd::files()?);
    files.extend(monitoring::files()?);
    Ok(files)
}

/// Renders the objects as one YAML file.
///
/// # Errors
/// An object fails to serialise.
pub(crate) fn documents(objects: &[Value]) -> anyhow::Result<String> {
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
mod tests;
