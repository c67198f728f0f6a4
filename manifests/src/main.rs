//! Writes the parts of the install files that are derived: from Rust types, or from other files that kustomize, Helm and Argo CD cannot
//! include.
//!
//! Everything else below `yaml`, `helm`, `argocd` and `monitoring` is written by hand. A test fails when a committed file differs from what
//! this program writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;

mod alerts;
mod argocd;
mod definition;
mod install;
mod rights;
mod source;

/// Writes the derived install files.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Directory with yaml, helm, argocd and monitoring, to read from and to write to
    #[arg(long, default_value = env!("CARGO_MANIFEST_DIR"))]
    directory: PathBuf,
}

/// Contents of derived files by their paths.
type Files = BTreeMap<String, String>;

fn main() -> anyhow::Result<()> {
    let directory = Flags::parse().directory;
    for (name, text) in derived(&directory)? {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Returns every derived file.
///
/// # Errors
/// A file that another is derived from is missing or malformed.
fn derived(directory: &Path) -> anyhow::Result<Files> {
    let mut files = definition::files()?;
    files.extend(install::files(directory)?);
    files.extend(rights::files(directory)?);
    files.extend(alerts::files(directory)?);
    files.extend(argocd::files(directory)?);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_what_would_be_written() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (name, written) in derived(directory).unwrap() {
            let committed = std::fs::read_to_string(directory.join(&name)).unwrap_or_default();
            let mut lines = committed.lines().zip(written.lines());
            let difference = lines.find(|(committed, written)| committed != written);
            assert!(
                committed == written,
                "{name} is out of date, run `make manifests`: {difference:?}"
            );
        }
    }
}
