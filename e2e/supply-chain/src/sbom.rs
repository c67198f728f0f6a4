//! The bill of materials of a program in the JSON format of CycloneDX 1.6.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::{Graph, Package};

/// Returns the crates of a program: their versions, licences, checksums and dependencies. Equal inputs give equal text, so it has no time.
///
/// # Errors
/// The graph has no such crate, or `Cargo.lock` is no lock file.
pub fn render(graph: &Graph, lock: &str, program: &str) -> anyhow::Result<String> {
    let all = graph.closure(program);
    let root = all.iter().find(|package| package.name == program);
    let root = *root.with_context(|| format!("there is no crate {program}"))?;
    let checksums = LockChecksums::parse(lock)?;
    let libraries: Vec<&Package> = all.iter().copied().filter(|package| *package != root).collect();
    let components: Vec<Value> = libraries
        .iter()
        .map(|package| component(package, "library", checksums.of(package)))
        .collect();
    let dependencies: Vec<Value> = all
        .iter()
        .map(|package| {
            let needs: Vec<String> = graph.needs_of(package).into_iter().map(purl).collect();
            json!({"ref": purl(package), "dependsOn": needs})
        })
        .collect();
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root, "application", None)},
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{bom:#}\n"))
}

fn component(package: &Package, kind: &str, checksum: Option<&str>) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
    });
    if let Some(licence) = &package.licence {
        // The slash is how crates wrote "or" before they used SPDX.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The package URL: <https://github.com/package-url/purl-spec>.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

/// The checksums in `Cargo.lock`, of crates that were fetched.
struct LockChecksums(Vec<(String, String, String)>);

impl LockChecksums {
    fn parse(lock: &str) -> anyhow::Result<Self> {
        let lock: toml_edit::DocumentMut = lock.parse().context("read Cargo.lock")?;
        let packages = lock.get("package").and_then(toml_edit::Item::as_array_of_tables);
        let packages = packages.context("Cargo.lock lists no packages")?;
        let text = |table: &toml_edit::Table, field: &str| Some(table.get(field)?.as_str()?.to_owned());
        let found = packages
            .iter()
            .filter_map(|table| Some((text(table, "name")?, text(table, "version")?, text(table, "checksum")?)));
        let found: Vec<_> = found.collect();
        ensure!(!found.is_empty(), "Cargo.lock has no checksums");
        Ok(Self(found))
    }

    fn of(&self, package: &Package) -> Option<&str> {
        let found = self
            .0
            .iter()
            .find(|(name, version, _)| *name == package.name && *version == package.version);
        found.map(|(_, _, checksum)| checksum.as_str())
    }
}

/// Reads `Cargo.lock` of a workspace and renders the bill of materials of `program`.
///
/// # Errors
/// As [`render`], or the file cannot be read.
pub fn of_workspace(graph: &Graph, workspace: &Path, program: &str) -> anyhow::Result<String> {
    let path = workspace.join("Cargo.lock");
    let lock = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    render(graph, &lock, program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::licences::tests::package;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0+zstd.1\"\nchecksum = \"00ff\"\n";

    #[test]
    fn a_bill_lists_each_crate_of_a_program_with_its_origin() {
        let (a, b) = (
            package("a", "1.0.0", "MIT"),
            package("b", "2.0.0+zstd.1", "MIT/Apache-2.0"),
        );
        let graph = Graph::linked([a, b, package("c", "3.0.0", "ISC")], &[("a", "b")]);
        let bom: Value = serde_json::from_str(&render(&graph, LOCK, "a").unwrap()).unwrap();
        assert_eq!(bom["metadata"]["component"]["purl"], "pkg:cargo/a@1.0.0");
        assert_eq!(bom["metadata"]["component"]["type"], "application");
        let components = bom["components"].as_array().unwrap();
        assert_eq!(components.len(), 1, "{components:?}");
        assert_eq!(components[0]["purl"], "pkg:cargo/b@2.0.0%2Bzstd.1");
        assert_eq!(components[0]["hashes"], json!([{"alg": "SHA-256", "content": "00ff"}]));
        assert_eq!(components[0]["licenses"], json!([{"expression": "MIT OR Apache-2.0"}]));
        let depends = &bom["dependencies"][0];
        assert_eq!(depends["ref"], "pkg:cargo/a@1.0.0");
        assert_eq!(depends["dependsOn"], json!(["pkg:cargo/b@2.0.0%2Bzstd.1"]));
    }

    #[test]
    fn an_unknown_program_and_a_lock_file_without_checksums_are_refused() {
        let graph = Graph::of([package("a", "1.0.0", "MIT")]);
        assert_eq!(
            render(&graph, LOCK, "x").unwrap_err().to_string(),
            "there is no crate x"
        );
        let error = render(&graph, "version = 4", "a").unwrap_err();
        assert_eq!(error.to_string(), "Cargo.lock lists no packages");
    }
}
