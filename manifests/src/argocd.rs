//! The patch of Argo CD's configuration. Its scripts have their source in Argo CD's own layout, `resource_customizations`.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::Files;
use crate::source::{DERIVED_HEADER, read};

const APPLICATION_DIR: &str = "argocd/resource_customizations/argoproj.io/Application";
const CLUSTER_DIR: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainCluster";
const BACKUP_DIR: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainBackup";
const SCHEDULE_DIR: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainBackupSchedule";

/// Returns the patch for `kubectl --namespace argocd patch configmap argocd-cm --patch-file …`.
///
/// # Errors
/// A script is missing.
pub(crate) fn files(directory: &Path) -> anyhow::Result<Files> {
    let definitions: Vec<Value> = actions(directory)?
        .iter()
        .map(|name| {
            let lua = read(directory, &format!("{CLUSTER_DIR}/actions/{name}/action.lua"))?;
            Ok(json!({"name": name, "action.lua": lua}))
        })
        .collect::<anyhow::Result<_>>()?;
    let discovery = read(directory, &format!("{CLUSTER_DIR}/actions/discovery.lua"))?;
    let actions = serde_yaml::to_string(&json!({"discovery.lua": discovery, "definitions": definitions}))
        .context("serialise the actions")?;
    let patch = json!({"data": {
        "resource.customizations.actions.kubebrain.io_KubeBrainCluster": actions,
        "resource.customizations.health.kubebrain.io_KubeBrainBackup": read(directory, &format!("{BACKUP_DIR}/health.lua"))?,
        "resource.customizations.health.kubebrain.io_KubeBrainBackupSchedule": read(directory, &format!("{SCHEDULE_DIR}/health.lua"))?,
        "resource.customizations.health.kubebrain.io_KubeBrainCluster": read(directory, &format!("{CLUSTER_DIR}/health.lua"))?,
        "resource.customizations.health.argoproj.io_Application": read(directory, &format!("{APPLICATION_DIR}/health.lua"))?,
    }});
    let text = format!(
        "{DERIVED_HEADER}# kubectl --namespace argocd patch configmap argocd-cm --patch-file argocd-cm-patch.yaml\n{}",
        serde_yaml::to_string(&patch).context("serialise the patch")?
    );
    Ok(Files::from([("argocd/argocd-cm-patch.yaml".to_owned(), text)]))
}

/// Returns the names of the actions, in order: the directories that have a script.
fn actions(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let path = directory.join(CLUSTER_DIR).join("actions");
    for entry in std::fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
        let entry = entry.with_context(|| format!("list {}", path.display()))?;
        if entry.path().join("action.lua").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
