//! Advisories of RustSec, from a copy of its database: a directory of Markdown files that begin with TOML.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use semver::{Version, VersionReq};
use toml_edit::{DocumentMut, Item};

use super::DependencyPolicy;
use crate::Graph;

/// One advisory.
#[derive(Debug)]
struct Advisory {
    id: String,
    package: String,
    title: String,
    /// Versions that are not affected.
    good: Vec<VersionReq>,
}

/// Crates that an advisory concerns, and exceptions that concern none.
pub(crate) fn findings(policy: &DependencyPolicy, graph: &Graph, database: &Path) -> anyhow::Result<Vec<String>> {
    let names: BTreeSet<&str> = graph.packages().map(|package| package.name.as_str()).collect();
    let crates = database.join("crates");
    ensure!(crates.is_dir(), "{} is not a directory", crates.display());
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    for name in names {
        for advisory in of_crate(&crates.join(name))? {
            for package in graph.packages().filter(|package| package.name == advisory.package) {
                let version: Version = package.version.parse()?;
                if advisory.good.iter().any(|good| good.matches(&version)) {
                    continue;
                }
                if policy.ignored.contains(&advisory.id) {
                    used.insert(advisory.id.clone());
                } else {
                    found.push(format!("{package}: {} {}", advisory.id, advisory.title));
                }
            }
        }
    }
    let unused = policy.ignored.difference(&used);
    found.extend(unused.map(|id| format!("the exception for {id} has ended: it concerns no crate")));
    Ok(found)
}

/// None where the directory is not there.
fn of_crate(directory: &Path) -> anyhow::Result<Vec<Advisory>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        found.extend(parse(&text).with_context(|| format!("read {}", path.display()))?);
    }
    Ok(found)
}

/// `None` of one that was withdrawn.
fn parse(text: &str) -> anyhow::Result<Option<Advisory>> {
    let Some((_, rest)) = text.split_once("```toml") else {
        bail!("it does not begin with TOML")
    };
    let (front, body) = rest.split_once("```").context("its TOML has no end")?;
    let front: DocumentMut = front.parse()?;
    let field = |name: &str| front["advisory"].get(name).and_then(Item::as_str);
    if front["advisory"].get("withdrawn").is_some() {
        return Ok(None);
    }
    let versions = |name: &str| -> anyhow::Result<Vec<VersionReq>> {
        let listed = front.get("versions").and_then(|versions| versions.get(name));
        let listed = listed.and_then(Item::as_array).into_iter().flatten();
        listed
            .map(|version| Ok(version.as_str().context("a version that is not a string")?.parse()?))
            .collect()
    };
    let mut good = versions("patched")?;
    good.extend(versions("unaffected")?);
    let title = body
        .lines()
        .find_map(|line| line.strip_prefix("# "))
        .unwrap_or_default();
    Ok(Some(Advisory {
        id: field("id").context("it has no id")?.to_owned(),
        package: field("package").context("it names no package")?.to_owned(),
        title: title.to_owned(),
        good,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::licences::tests::package;

    const ADVISORY: &str = r#"```toml
[advisory]
id = "RUSTSEC-2099-0001"
package = "a"
date = "2099-01-01"

[versions]
patched = [">= 1.2.0", "^1.1.5"]
unaffected = ["< 0.9"]
```

# Reads what it should not

Details.
"#;

    fn found(versions: &[&str], ignored: &[&str], advisory: &str) -> Vec<String> {
        let database = tempfile::tempdir().unwrap();
        let directory = database.path().join("crates/a");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("RUSTSEC-2099-0001.md"), advisory).unwrap();
        let policy = DependencyPolicy {
            ignored: ignored.iter().map(|&id| id.to_owned()).collect(),
            ..DependencyPolicy::default()
        };
        let graph = Graph::of(versions.iter().map(|version| package("a", version, "MIT")));
        findings(&policy, &graph, database.path()).unwrap()
    }

    #[test]
    fn an_affected_version_is_found() {
        let versions = ["0.8.0", "1.0.0", "1.1.5", "1.2.0", "2.0.0"];
        assert_eq!(
            found(&versions, &[], ADVISORY),
            ["a@1.0.0: RUSTSEC-2099-0001 Reads what it should not"]
        );
        assert!(found(&versions, &["RUSTSEC-2099-0001"], ADVISORY).is_empty());
        let withdrawn = ADVISORY.replace("date =", "withdrawn =");
        assert!(found(&versions, &[], &withdrawn).is_empty());
    }

    #[test]
    fn an_exception_that_concerns_no_crate_is_found() {
        assert_eq!(
            found(&["2.0.0"], &["RUSTSEC-2099-0001"], ADVISORY),
            ["the exception for RUSTSEC-2099-0001 has ended: it concerns no crate"]
        );
    }

    #[test]
    fn a_directory_that_is_no_database_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let refused = findings(&DependencyPolicy::default(), &Graph::default(), empty.path()).unwrap_err();
        assert!(refused.to_string().ends_with("/crates is not a directory"), "{refused}");
    }
}
