//! The Helm chart, from the same objects as the plain YAML.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::install::{Install, VERSION};
use crate::render::HEADER;
use crate::{admission, deployment, monitoring, network, rbac};

pub(crate) mod template;
mod values;

/// The chart's directory below the output directory.
const DIRECTORY: &str = "helm/kubebrain-operator";

/// Returns every file of the chart.
///
/// # Errors
/// An object fails to serialise.
pub(crate) fn files(crd: &Value) -> anyhow::Result<BTreeMap<String, String>> {
    let install = Install::chart();
    let schema = serde_json::to_string_pretty(&values::schema()).context("serialise the schema")? + "\n";
    let about = serde_yaml::to_string(&about()).context("serialise Chart.yaml")?;
    let plain = |objects: Vec<Value>| template::documents(&objects);
    let when = |condition: &str, objects: Vec<Value>| -> anyhow::Result<String> {
        Ok(format!(
            "{{{{- if $.Values.{condition} }}}}\n{}{{{{- end }}}}\n",
            template::documents(&objects)?
        ))
    };
    let files = [
        ("Chart.yaml", format!("{HEADER}{about}")),
        ("values.yaml", format!("{HEADER}{}", values::defaults()?)),
        ("values.schema.json", schema),
        ("templates/_helpers.tpl", include_str!("chart/helpers.tpl").to_owned()),
        ("templates/NOTES.txt", include_str!("chart/notes.txt").to_owned()),
        ("templates/crd.yaml", definition(crd)?),
        (
            "templates/rbac.yaml",
            format!("{}{}", plain(rbac::own(&install))?, scope(&install)?),
        ),
        (
            "templates/roles.yaml",
            when("aggregatedRoles.create", rbac::aggregated(&install))?,
        ),
        ("templates/deployment.yaml", plain(vec![deployment::object(&install)])?),
        (
            "templates/poddisruptionbudget.yaml",
            when(
                "podDisruptionBudget.enabled",
                vec![deployment::disruption_budget(&install)],
            )?,
        ),
        (
            "templates/networkpolicy.yaml",
            when("networkPolicy.enabled", vec![network::policy(&install)])?,
        ),
        (
            "templates/podmonitor.yaml",
            when("podMonitor.enabled", vec![monitoring::pod_monitor(&install)])?,
        ),
        (
            "templates/prometheusrule.yaml",
            when("prometheusRule.enabled", vec![monitoring::rule(&install)])?,
        ),
        (
            "templates/admission-children.yaml",
            when("admissionPolicies.children.enabled", admission::children(&install))?,
        ),
        (
            "templates/admission-pod-templates.yaml",
            when(
                "admissionPolicies.podTemplates.enabled",
                admission::pod_templates(&install),
            )?,
        ),
    ];
    Ok(files
        .into_iter()
        .map(|(name, text)| (format!("{DIRECTORY}/{name}"), text))
        .collect())
}

fn about() -> Value {
    json!({
        "apiVersion": "v2",
        "name": "kubebrain-operator",
        "description": "The operator of KubeBrain, an etcd v3-compatible server for Kubernetes",
        "type": "application",
        "version": VERSION,
        "appVersion": VERSION,
        "kubeVersion": ">=1.30.0-0",
        "keywords": ["etcd", "kube-apiserver", "tikv", "operator"],
    })
}

/// Returns the CRD. A release upgrades it, but an uninstall keeps it, because its deletion would delete all clusters.
fn definition(crd: &Value) -> anyhow::Result<String> {
    let mut crd = crd.clone();
    crd["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    let text = template::documents(&[crd])?;
    ensure!(!text.contains("{{"), "the definition must not look like a template");
    Ok(format!("{{{{- if $.Values.crds.install }}}}\n{text}{{{{- end }}}}\n"))
}

/// Returns a Role in each watched namespace, or a ClusterRole.
fn scope(install: &Install) -> anyhow::Result<String> {
    let each = template::documents(&rbac::in_namespace(install, "{{ $namespace }}"))?;
    let all = template::documents(&rbac::cluster_wide(install))?;
    Ok(format!(
        "{{{{- range $namespace := $.Values.watchNamespaces }}}}\n{each}{{{{- end }}}}\n\
         {{{{- if not $.Values.watchNamespaces }}}}\n{all}{{{{- end }}}}\n"
    ))
}
