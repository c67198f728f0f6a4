//! Renders every install manifest of KubeBrain into a directory that is committed and never edited by hand.
//!
//! `kubectl apply -k manifests/yaml` installs what this prints; a test fails when the two differ.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

mod deployment;
mod rbac;
mod render;
mod samples;

/// Renders the install manifests.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Directory to write to; it is made if missing.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/yaml"))]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    for (name, text) in render::files()? {
        let path = flags.out.join(name);
        let parent = path.parent().context("a manifest has a parent directory")?;
        std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
