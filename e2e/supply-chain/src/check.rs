//! Holds the locked crates against `deny.toml`, the policy, which is in the format of cargo-deny.
//!
//! Only the settings that it contains are read: cargo-deny itself takes longer to build than everything that `make check` does.

use std::path::Path;

use anyhow::Context as _;

use crate::Graph;
pub use policy::DependencyPolicy;

pub mod advisories;
pub mod licences;
mod policy;

/// Returns the breaches of the policy, one line for each; sorted.
///
/// # Errors
/// The advisory database cannot be read.
pub fn findings(policy: &DependencyPolicy, graph: &Graph, advisories: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let mut found = licences::findings(policy, graph);
    found.extend(graph.foreign_sources(&policy.registries));
    found.extend(policy.duplicates(graph));
    if let Some(database) = advisories {
        let known = advisories::findings(policy, graph, database);
        found.extend(known.with_context(|| format!("read the advisories in {}", database.display()))?);
    }
    found.sort();
    Ok(found)
}
