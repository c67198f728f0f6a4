//! The supply chain of the programs: crates, their licences and where they come from.
//!
//! `deny.toml` is the policy, in the format of cargo-deny. This crate reads only the settings that it contains: cargo-deny itself takes
//! longer to build than everything that `make check` does.

use std::path::Path;

use anyhow::Context as _;

pub use graph::{Graph, Package};
pub use policy::Policy;

pub mod advisories;
mod graph;
pub mod licences;
pub mod notices;
mod policy;

/// The target that this was built for. Crates are examined as this target uses them.
pub const TARGET: &str = env!("TARGET");

/// Returns the breaches of the policy, one line for each; sorted.
///
/// # Errors
/// The advisory database cannot be read.
pub fn findings(policy: &Policy, graph: &Graph, advisories: Option<&Path>) -> anyhow::Result<Vec<String>> {
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
