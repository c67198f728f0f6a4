//! The documentation is whole: its links resolve, the book lists its pages, and its reference names every flag and metric.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::{files, root};

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the pages of the documentation.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    files(&root().join("docs"), "md", &mut pages);
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "operator/README.md",
        "examples/README.md",
    ];
    pages.extend(others.map(|name| root().join(name)));
    pages
}

/// Returns the anchor of a heading, as forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_anchor(page: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(page).unwrap();
    let headings = text.lines().filter_map(|line| {
        line.trim_start_matches('#')
            .strip_prefix(' ')
            .filter(|_| line.starts_with('#'))
    });
    headings.map(anchor).any(|anchor| anchor == wanted)
}

#[test]
fn links_resolve() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for found in link.captures_iter(&text) {
            let target = &found[1];
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            if !path.exists() || (!anchor.is_empty() && !has_anchor(&path, anchor)) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 50, "{seen} links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn book_lists_every_page() {
    let summary = read("docs/SUMMARY.md");
    let mut pages = Vec::new();
    files(&root().join("docs"), "md", &mut pages);
    for page in pages {
        let name = page.strip_prefix(root().join("docs")).unwrap().display().to_string();
        assert!(
            name == "SUMMARY.md" || summary.contains(&format!("({name})")),
            "{name} is not in docs/SUMMARY.md"
        );
    }
}

/// Returns the names in backticks that are the first cells of rows.
fn rows(text: &str, name: &str) -> BTreeSet<String> {
    let row = Regex::new(&format!(r"(?m)^\| `({name})`")).unwrap();
    row.captures_iter(text).map(|row| row[1].to_owned()).collect()
}

#[test]
fn reference_has_every_flag_of_the_brain() {
    let table = read("crds/flags.txt");
    let known: BTreeSet<_> = table
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(|name| format!("--{name}"))
        .collect();
    let text = read("docs/reference/flags.md");
    let missing: Vec<_> = known
        .iter()
        .filter(|flag| !text.contains(&format!("`{flag}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/reference/flags.md: {missing:?}");
    let brain = text
        .split("\n## ")
        .find(|part| part.starts_with("kubebrain\n"))
        .unwrap();
    let unknown: Vec<_> = rows(brain, "--[a-z0-9-]+").difference(&known).cloned().collect();
    assert!(unknown.is_empty(), "the brain has no such flags: {unknown:?}");
}

#[test]
fn reference_has_every_metric() {
    let (mut sources, mut known) = (Vec::new(), BTreeSet::new());
    files(&root().join("brain/telemetry/src/metrics"), "rs", &mut sources);
    let name = Regex::new("\"((?:etcd|kubebrain)_[a-z0-9_]+)\"").unwrap();
    for source in sources.iter().filter(|source| !source.ends_with("tests.rs")) {
        let text = fs::read_to_string(source).unwrap();
        known.extend(name.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    assert!(known.len() > 60, "{} metrics", known.len());
    let page = read("docs/reference/metrics.md");
    let missing: Vec<_> = known
        .iter()
        .filter(|metric| !page.contains(&format!("`{metric}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/reference/metrics.md: {missing:?}");
}
