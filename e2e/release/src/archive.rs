//! Archives of programs for hosts without containers.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use programs::command::output;

/// Packs the files of a directory. Equal files give an equal archive: owners, times and the order of names are fixed.
///
/// # Errors
/// `tar` fails.
pub(crate) fn pack(directory: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=@0", "--use-compress-program=gzip -n -9", "--file"]);
    tar.arg(archive).arg("--directory").arg(directory).arg(".");
    output(&mut tar).with_context(|| format!("write {}", archive.display()))?;
    Ok(())
}
