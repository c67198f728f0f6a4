//! The table of crates in ARCHITECTURE.md is what Cargo holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use toml_edit::DocumentMut;

use crate::root;

fn manifest(dir: &Path) -> DocumentMut {
    let text = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
    text.parse().unwrap()
}

/// Returns the crates that each member of the workspace depends on, by its folder. One without sources has tests, and what these need.
fn by_cargo() -> BTreeMap<String, BTreeSet<String>> {
    let workspace = manifest(&root());
    let folders = workspace["workspace"]["members"].as_array().unwrap();
    let folders: Vec<&str> = folders.iter().map(|folder| folder.as_str().unwrap()).collect();
    let manifests: Vec<_> = folders.iter().map(|folder| manifest(&root().join(folder))).collect();
    let own: BTreeSet<&str> = manifests
        .iter()
        .map(|it| it["package"]["name"].as_str().unwrap())
        .collect();
    let depends = |(folder, it): (&&str, &DocumentMut)| {
        let has_sources = root().join(folder).join("src").is_dir();
        let key = if has_sources {
            "dependencies"
        } else {
            "dev-dependencies"
        };
        let table = it.get(key).and_then(|it| it.as_table());
        let names = table
            .into_iter()
            .flat_map(|table| table.iter().map(|(name, _)| name.to_owned()));
        names.filter(|name| own.contains(name.as_str())).collect()
    };
    let depends = folders.iter().zip(&manifests).map(depends);
    folders.iter().map(|folder| (*folder).to_owned()).zip(depends).collect()
}

/// Returns the same as the table says. The program's row names no crates.
fn by_table() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, rows) = text
        .split_once("| crate | what it is | depends on |\n|---|---|---|\n")
        .unwrap();
    let rows = rows.lines().take_while(|line| line.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), names(cells[2]))
    })
    .collect()
}

#[test]
fn table_of_crates_is_what_cargo_holds() {
    let (mut cargo, mut table) = (by_cargo(), by_table());
    assert_eq!(table.remove("brain"), Some(BTreeSet::from(["brain".to_owned()])));
    assert!(cargo.remove("brain").unwrap().len() > 10);
    assert_eq!(table, cargo);
}
