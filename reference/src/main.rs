//! Writes the pages of `docs/reference` that are derived: flags from the table and the command lines, metrics from what the programs
//! register, fields of the resource from its definition, reasons and alerts from their lists.
//!
//! The prose around them is in `templates`. A test fails when a committed page differs from what this program writes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;

mod commands;
mod flags;
mod markdown;
mod metrics;
mod resource;
mod template;

/// Writes the derived pages of the reference.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Directory to write to
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference"))]
    directory: PathBuf,
}

/// Texts of derived pages by their file names.
type Pages = BTreeMap<&'static str, String>;

fn main() -> anyhow::Result<()> {
    let directory = Flags::parse().directory;
    for (name, text) in pages()? {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Returns every derived page. Fails if a source is malformed, or if a template does not have every part, or others.
fn pages() -> anyhow::Result<Pages> {
    Ok(Pages::from([
        ("backup-resource.md", resource::backup_page()?),
        ("backup-schedule-resource.md", resource::backup_schedule_page()?),
        ("flags.md", flags::page()?),
        ("metrics.md", metrics::page()?),
        ("resource.md", resource::page()?),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_pages_are_what_would_be_written() {
        let directory = Flags::parse_from(["reference"]).directory;
        for (name, written) in pages().unwrap() {
            let committed = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
            let mut lines = committed.lines().zip(written.lines());
            let difference = lines.find(|(committed, written)| committed != written);
            assert!(
                committed == written,
                "{name} is out of date, run `make reference`: {difference:?}"
            );
        }
    }
}
