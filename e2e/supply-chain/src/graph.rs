//! The crates that are locked, and who needs whom.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// A crate in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: Option<String>,
    /// Its origin; `None` for a package of this repository.
    pub source: Option<String>,
    pub authors: Vec<String>,
    /// Directory of its files.
    pub directory: PathBuf,
}

/// All crates that are built on one target.
#[derive(Debug, Default)]
pub struct Graph {
    packages: BTreeMap<String, Package>,
    /// Packages that end up in the program of a crate.
    needs: BTreeMap<String, Vec<String>>,
}

impl Graph {
    /// Asks cargo, which knows everything as soon as the workspace was built once.
    ///
    /// # Errors
    /// Cargo cannot tell, or tells something else.
    pub fn of_workspace(directory: &Path, target: &str) -> anyhow::Result<Graph> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            target,
        ]);
        let output = command.current_dir(directory).output().context("run cargo metadata")?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let listing = serde_json::from_slice(&output.stdout).context("read the output of cargo metadata")?;
        Graph::parse(&listing).context("cargo metadata has an unexpected format")
    }

    fn parse(listing: &Value) -> Option<Graph> {
        let mut graph = Graph::default();
        let mut all = BTreeMap::new();
        for package in listing["packages"].as_array()? {
            let text = |field: &str| package[field].as_str().map(str::to_owned);
            let authors = package["authors"].as_array().into_iter().flatten();
            let found = Package {
                name: text("name")?,
                version: text("version")?,
                licence: text("license"),
                source: text("source"),
                authors: authors.filter_map(Value::as_str).map(str::to_owned).collect(),
                directory: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
            };
            all.insert(text("id")?, found);
        }
        for node in listing["resolve"]["nodes"].as_array()? {
            let id = node["id"].as_str()?.to_owned();
            let mut needs = Vec::new();
            for need in node["deps"].as_array()? {
                // Of no kind is what is neither for builds nor for tests only.
                if need["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null()) {
                    needs.push(need["pkg"].as_str()?.to_owned());
                }
            }
            graph.packages.insert(id.clone(), all.remove(&id)?);
            graph.needs.insert(id, needs);
        }
        Some(graph)
    }

    pub fn packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.values()
    }

    /// A crate and all that ends up in its program.
    #[must_use]
    pub fn closure(&self, name: &str) -> Vec<&Package> {
        let roots = self.packages.iter().filter(|(_, package)| package.name == name);
        let mut pending: Vec<&String> = roots.map(|(id, _)| id).collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = pending.pop() {
            if seen.insert(id) {
                pending.extend(&self.needs[id]);
            }
        }
        let mut found: Vec<&Package> = seen.into_iter().map(|id| &self.packages[id]).collect();
        found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        found
    }

    /// Crates that come from elsewhere than these registries, one line for each.
    pub fn foreign_sources(&self, registries: &[String]) -> Vec<String> {
        let fetched = self
            .packages()
            .filter_map(|package| Some((package, package.source.as_ref()?)));
        fetched
            .filter(|(_, source)| {
                let registry = source.strip_prefix("registry+");
                !registry.is_some_and(|registry| registries.iter().any(|known| known == registry))
            })
            .map(|(package, source)| format!("{package} comes from {source}, which is not an allowed source"))
            .collect()
    }

    /// All versions of each crate that has several.
    #[must_use]
    pub fn duplicates(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in self.packages() {
            versions.entry(&package.name).or_default().push(&package.version);
        }
        versions.retain(|_, versions| versions.len() > 1);
        versions
    }

    /// The packages that a package depends on directly, sorted.
    pub(crate) fn needs_of(&self, package: &Package) -> Vec<&Package> {
        let own = self.packages.iter().find(|(_, known)| *known == package);
        let needs = own.and_then(|(id, _)| self.needs.get(id)).into_iter().flatten();
        let mut found: Vec<&Package> = needs.filter_map(|id| self.packages.get(id)).collect();
        found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        found
    }

    /// For tests: packages without dependencies.
    #[must_use]
    pub fn of(packages: impl IntoIterator<Item = Package>) -> Graph {
        Graph::linked(packages, &[])
    }

    /// For tests: packages, one in each version, and pairs of names: one that depends on another.
    #[must_use]
    pub fn linked(packages: impl IntoIterator<Item = Package>, dependencies: &[(&str, &str)]) -> Graph {
        let packages: BTreeMap<String, Package> = packages
            .into_iter()
            .map(|package| (package.to_string(), package))
            .collect();
        let named = |name: &str| {
            let ids = packages.iter().filter(move |(_, package)| package.name == name);
            ids.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        let needs_of = |package: &Package| {
            let own = dependencies.iter().filter(|(name, _)| *name == package.name);
            own.flat_map(|(_, need)| named(need)).collect()
        };
        let needs = packages
            .iter()
            .map(|(id, package)| (id.clone(), needs_of(package)))
            .collect();
        Graph { packages, needs }
    }
}

impl std::fmt::Display for Package {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}
