//! `deny.toml`: what is allowed, and what is excepted until when.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use toml_edit::{DocumentMut, Item, Value};

use crate::Graph;

/// The policy. Every exception has a reason that includes its end.
#[derive(Debug, Default)]
pub struct DependencyPolicy {
    /// Licences, as SPDX writes them.
    pub licences: BTreeSet<String>,
    /// Registries that crates may come from.
    pub registries: Vec<String>,
    /// Crates, in one version each, that are permitted beside another version of the same crate.
    pub skipped: BTreeSet<String>,
    /// Advisories that do not concern us.
    pub ignored: BTreeSet<String>,
}

impl DependencyPolicy {
    /// # Errors
    /// It is no TOML, lacks a list, or has an exception without a reason or an end.
    pub fn parse(text: &str) -> anyhow::Result<DependencyPolicy> {
        let document: DocumentMut = text.parse().context("read the policy as TOML")?;
        let list = |section: &str, name: &str| -> anyhow::Result<Vec<Value>> {
            let found = document.get(section).and_then(|section| section.get(name));
            let found = found.and_then(Item::as_array);
            let found = found.with_context(|| format!("[{section}] has no list {name}"))?;
            Ok(found.iter().cloned().collect())
        };
        let texts = |section: &str, name: &str| -> anyhow::Result<Vec<String>> {
            let texts = list(section, name)?.into_iter();
            texts
                .map(|text| {
                    let text = text.as_str().map(str::to_owned);
                    text.with_context(|| format!("{name} in [{section}] holds values that are not strings"))
                })
                .collect()
        };
        let exceptions = |section: &str, name: &str, field: &str| -> anyhow::Result<BTreeSet<String>> {
            let entries = list(section, name)?.into_iter();
            entries
                .map(|entry| {
                    let text = |field: &str| entry.as_inline_table()?.get(field)?.as_str().map(str::to_owned);
                    let what =
                        text(field).with_context(|| format!("an entry of {name} in [{section}] has no {field}"))?;
                    let reason = text("reason").unwrap_or_default();
                    ensure!(reason.contains("until"), "the exception for {what} has no end date");
                    Ok(what)
                })
                .collect()
        };
        Ok(DependencyPolicy {
            licences: texts("licenses", "allow")?.into_iter().collect(),
            registries: texts("sources", "allow-registry")?,
            skipped: exceptions("bans", "skip", "crate")?,
            ignored: exceptions("advisories", "ignore", "id")?,
        })
    }

    /// Of each crate all versions but one are excepted, and nothing else is.
    pub(crate) fn duplicates(&self, graph: &Graph) -> Vec<String> {
        let mut found = Vec::new();
        let mut used = BTreeSet::new();
        let duplicates: BTreeMap<&str, Vec<&str>> = graph.duplicates();
        for (name, versions) in duplicates {
            let (skipped, rest): (Vec<String>, Vec<String>) = versions
                .iter()
                .map(|version| format!("{name}@{version}"))
                .partition(|id| self.skipped.contains(id));
            if rest.len() != 1 {
                found.push(format!("{name} exists in the versions {}", versions.join(", ")));
            }
            used.extend(skipped);
        }
        let unused = self.skipped.difference(&used);
        found.extend(unused.map(|id| format!("the exception for {id} has ended: nothing needs it")));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::licences::tests::package;

    const POLICY: &str = r#"
[advisories]
ignore = []
[licenses]
allow = ["MIT"]
[bans]
skip = [{ crate = "a@1.0.0", reason = "b needs it, until b 2" }]
[sources]
allow-registry = ["https://github.com/rust-lang/crates.io-index"]
"#;

    #[test]
    fn an_exception_needs_an_end() {
        assert_eq!(DependencyPolicy::parse(POLICY).unwrap().skipped.len(), 1);
        let refused = DependencyPolicy::parse(&POLICY.replace(", until b 2", "")).unwrap_err();
        assert_eq!(refused.to_string(), "the exception for a@1.0.0 has no end date");
    }

    #[test]
    fn a_second_version_needs_an_exception_and_an_exception_a_second_version() {
        let policy = DependencyPolicy::parse(POLICY).unwrap();
        let graph = |versions: &[&str]| Graph::of(versions.iter().map(|version| package("a", version, "MIT")));
        assert!(policy.duplicates(&graph(&["1.0.0", "2.0.0"])).is_empty());
        assert_eq!(
            policy.duplicates(&graph(&["2.0.0", "3.0.0"])),
            [
                "a exists in the versions 2.0.0, 3.0.0",
                "the exception for a@1.0.0 has ended: nothing needs it"
            ]
        );
    }

    #[test]
    fn a_crate_from_elsewhere_is_found() {
        let policy = DependencyPolicy::parse(POLICY).unwrap();
        let mut foreign = package("a", "1.0.0", "MIT");
        foreign.source = Some("git+https://example.org/a".into());
        let found = Graph::of([foreign, package("b", "1.0.0", "MIT")]).foreign_sources(&policy.registries);
        assert_eq!(
            found,
            ["a@1.0.0 comes from git+https://example.org/a, which is not an allowed source"]
        );
    }
}
