//! `check` holds the locked crates against `deny.toml`; `notices PROGRAM` prints the licences of third parties in a program, and
//! `sbom PROGRAM` its bill of materials.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use supply_chain::check::{DependencyPolicy, findings};
use supply_chain::{Graph, TARGET, notices, sbom};

/// Names a copy of RustSec's advisory database.
const DATABASE: &str = "ADVISORY_DB";

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the crate is not in a workspace")?;
    let graph = || Graph::of_workspace(workspace, TARGET);
    let mut out = std::io::stdout().lock();
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("check"), None) => {
            let path = workspace.join("deny.toml");
            let policy = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let (policy, graph) = (DependencyPolicy::parse(&policy)?, graph()?);
            let database = std::env::var_os(DATABASE).map(PathBuf::from);
            let found = findings(&policy, &graph, database.as_deref())?;
            for finding in &found {
                writeln!(out, "{finding}")?;
            }
            let number = graph.packages().count();
            match &database {
                Some(database) => writeln!(out, "{number} crates checked; advisories from {}", database.display())?,
                None => writeln!(
                    out,
                    "{number} crates checked; no advisories: {DATABASE} is not set to a copy of them"
                )?,
            }
            if !found.is_empty() {
                bail!("{} findings against deny.toml", found.len());
            }
            Ok(())
        }
        (Some("notices"), Some(program)) => {
            let text = notices::render(&graph()?, &program)?;
            Ok(out.write_all(text.as_bytes())?)
        }
        (Some("sbom"), Some(program)) => {
            let text = sbom::of_workspace(&graph()?, workspace, &program)?;
            Ok(out.write_all(text.as_bytes())?)
        }
        _ => bail!("usage: supply-chain check | notices PROGRAM | sbom PROGRAM"),
    }
}
