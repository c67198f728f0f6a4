//! Health, actions and tests of a KubeBrainCluster for Argo CD, both in the layout of its own `resource_customizations` and as a patch of
//! its configuration; and an app of apps.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::render::{HEADER, documents};

mod apps;
mod cases;
#[cfg(test)]
mod tests;

/// Computes the health of a KubeBrainCluster.
const HEALTH: &str = include_str!("argocd/health.lua");
/// Computes the health of an Application.
const APPLICATION_HEALTH: &str = include_str!("argocd/application-health.lua");
/// Lists the actions available for an object.
const DISCOVERY: &str = include_str!("argocd/actions/discovery.lua");
/// The actions by name.
const ACTIONS: [(&str, &str); 4] = [
    ("pause", include_str!("argocd/actions/pause.lua")),
    ("restart", include_str!("argocd/actions/restart.lua")),
    ("resume", include_str!("argocd/actions/resume.lua")),
    ("transfer-leader", include_str!("argocd/actions/transfer-leader.lua")),
];

/// Returns every file by its path below the output directory.
///
/// # Errors
/// An object fails to serialise.
pub(crate) fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let directory = "argocd/resource_customizations/kubebrain.io/KubeBrainCluster";
    files.insert(format!("{directory}/health.lua"), HEALTH.to_owned());
    files.insert(format!("{directory}/actions/discovery.lua"), DISCOVERY.to_owned());
    for (name, lua) in ACTIONS {
        files.insert(format!("{directory}/actions/{name}/action.lua"), lua.to_owned());
    }
    let health = cases::health();
    let tests: Vec<Value> = health.iter().map(cases::Health::test).collect();
    files.insert(
        format!("{directory}/health_test.yaml"),
        documents(&[json!({"tests": tests})])?,
    );
    for case in &health {
        files.insert(format!("{directory}/{}", case.path()), documents(&[case.object()])?);
    }
    for (path, object) in cases::action_objects() {
        files.insert(format!("{directory}/actions/{path}"), documents(&[object])?);
    }
    files.insert(
        format!("{directory}/actions/action_test.yaml"),
        documents(&[cases::action_tests()])?,
    );
    files.insert("argocd/argocd-cm-patch.yaml".to_owned(), patch()?);
    for (path, objects) in apps::files() {
        files.insert(format!("argocd/{path}"), documents(&objects)?);
    }
    Ok(files)
}

/// Returns the patch for `kubectl --namespace argocd patch configmap argocd-cm --patch-file …`.
fn patch() -> anyhow::Result<String> {
    let definitions: Vec<Value> = ACTIONS
        .iter()
        .map(|(name, lua)| json!({"name": name, "action.lua": lua}))
        .collect();
    let actions = serde_yaml::to_string(&json!({"discovery.lua": DISCOVERY, "definitions": definitions}))
        .context("serialise the actions")?;
    let patch = json!({"data": {
        "resource.customizations.actions.kubebrain.io_KubeBrainCluster": actions,
        "resource.customizations.health.kubebrain.io_KubeBrainCluster": HEALTH,
        "resource.customizations.health.argoproj.io_Application": APPLICATION_HEALTH,
    }});
    Ok(format!(
        "{HEADER}# kubectl --namespace argocd patch configmap argocd-cm --patch-file argocd-cm-patch.yaml\n{}",
        serde_yaml::to_string(&patch).context("serialise the patch")?
    ))
}
