//! `install.yaml`: the objects of the root kustomization in one file, for `kubectl apply` without kustomize.

use std::path::Path;

use anyhow::Context as _;

use crate::Files;
use crate::definition;
use crate::source::{DERIVED_HEADER, read, without_comments};

/// Files with the objects, in the order in which they are applied; the definition precedes them.
const INSTALL_SOURCES: [&str; 5] = [
    "operator/namespace.yaml",
    "operator/rbac.yaml",
    "cluster-wide/rbac.yaml",
    "cluster-wide/roles.yaml",
    "operator/operator.yaml",
];

/// Returns the file.
///
/// # Errors
/// A source is missing or malformed.
pub(crate) fn files(directory: &Path) -> anyhow::Result<Files> {
    let mut text = format!("{DERIVED_HEADER}{}", definition::plain()?);
    for name in INSTALL_SOURCES {
        let objects = read(directory, &format!("yaml/{name}"))?;
        text.push_str("---\n");
        text.push_str(&without_comments(&objects).with_context(|| format!("copy {name}"))?);
    }
    Ok(Files::from([("yaml/install.yaml".to_owned(), text)]))
}
