//! The alerts. Their source is the rule file for any Prometheus; the PrometheusRules for kustomize and Helm have a copy.

use std::path::Path;

use anyhow::Context as _;

use crate::Files;
use crate::source::{read, without_comments};

const ALERTS_SOURCE: &str = "monitoring/rules.yaml";
const ALERTS_COMPONENT: &str = "yaml/components/monitoring/objects.yaml";
const ALERTS_CHART: &str = "helm/kubebrain-operator/templates/prometheusrule.yaml";

/// Returns the files that have a copy.
///
/// # Errors
/// The source or a copy is missing or has no groups.
pub(crate) fn files(directory: &Path) -> anyhow::Result<Files> {
    let source = without_comments(&read(directory, ALERTS_SOURCE)?).context(ALERTS_SOURCE)?;
    let groups = source
        .strip_prefix("groups:\n")
        .context("the rules do not begin with their groups")?;
    let groups: String = groups.split_inclusive('\n').map(|line| format!("  {line}")).collect();
    let copy = |name: &str, groups: &str| -> anyhow::Result<(String, String)> {
        let text = read(directory, name)?;
        let (head, _) = text
            .split_once("\n  groups:\n")
            .with_context(|| format!("{name} has no groups"))?;
        Ok((name.to_owned(), format!("{head}\n  groups:\n{groups}")))
    };
    Ok(Files::from([
        copy(ALERTS_COMPONENT, &groups)?,
        copy(ALERTS_CHART, &(escaped(&groups) + "{{- end }}\n"))?,
    ]))
}

/// Escapes the templates of Prometheus, so that Helm renders them as text.
fn escaped(text: &str) -> String {
    let mut parts = text.split("{{");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inside, rest) = part.split_once("}}").unwrap_or((part, ""));
        all.push_str("{{ `{{");
        all.push_str(inside);
        all.push_str("}}` }}");
        all.push_str(rest);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_prometheus_are_text_to_helm() {
        assert_eq!(
            escaped("{{ $labels.a }} and {{ $value }}."),
            "{{ `{{ $labels.a }}` }} and {{ `{{ $value }}` }}."
        );
    }
}
