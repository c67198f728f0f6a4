//! The rules of the operator's Role. Their source is the ClusterRole of `cluster-wide`; every other Role of the operator has a copy.

use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::Files;
use crate::source::{read, without_comments};

const RULES_SOURCE: &str = "yaml/cluster-wide/rbac.yaml";
const RULES_COPIES: [&str; 3] = [
    "yaml/one-namespace/rbac.yaml",
    "yaml/several-namespaces/rbac.yaml",
    "helm/kubebrain-operator/templates/rbac.yaml",
];
/// Lines with the name of a Role that has the rules. The Role of the leader election has a longer name.
const ROLE_NAMES: [&str; 2] = [
    "  name: kubebrain-operator\n",
    "  name: '{{ include \"kubebrain-operator.fullname\" $ }}'\n",
];

/// Returns the files that have a copy.
///
/// # Errors
/// The source or a copy is missing or has no rules.
pub(crate) fn files(directory: &Path) -> anyhow::Result<Files> {
    let source = without_comments(&read(directory, RULES_SOURCE)?).context(RULES_SOURCE)?;
    let (_, rules) = source
        .split_once("\nrules:\n")
        .context("the ClusterRole has no rules")?;
    let rules: String = rules.split_inclusive('\n').take_while(|line| is_rule(line)).collect();
    let copy = |name: &&str| -> anyhow::Result<(String, String)> {
        let text = with_rules(&read(directory, name)?, &rules);
        ensure!(text.contains(&rules), "{name} has no Role of the operator");
        Ok(((*name).to_owned(), text))
    };
    RULES_COPIES.iter().map(copy).collect()
}

/// Replaces the rules of the operator's Roles.
fn with_rules(text: &str, rules: &str) -> String {
    let mut all = String::new();
    let (mut is_operator, mut is_replaced) = (false, false);
    for line in text.split_inclusive('\n') {
        is_replaced &= is_rule(line);
        if is_replaced {
            continue;
        }
        all.push_str(line);
        match line {
            "---\n" => is_operator = false,
            "rules:\n" if is_operator => {
                all.push_str(rules);
                is_replaced = true;
            }
            name => is_operator |= ROLE_NAMES.contains(&name),
        }
    }
    all
}

fn is_rule(line: &str) -> bool {
    line.starts_with("- ") || line.starts_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_of_the_operator_are_replaced() {
        let role = |name: &str, rules: &str| format!("---\nmetadata:\n  name: {name}\nrules:\n{rules}");
        let election = role("kubebrain-operator-leader-election", "- election\n");
        let text = |rules: &str| format!("{election}{}---\nroleRef: x\n", role("kubebrain-operator", rules));
        assert_eq!(with_rules(&text("- old:\n  - a\n- b\n"), "- new\n"), text("- new\n"));
    }
}
