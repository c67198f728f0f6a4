//! The supply chain of the programs: crates, their licences and where they come from.
//!
//! It must not depend on a crate of this repository.

pub use graph::{Graph, Package};

#[cfg(feature = "check")]
pub mod check;
mod graph;
pub mod notices;
#[cfg(feature = "sbom")]
pub mod sbom;

/// The target that this was built for. Crates are examined as this target uses them.
pub const TARGET: &str = env!("TARGET");
