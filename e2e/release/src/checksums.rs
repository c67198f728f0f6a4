//! `SHA256SUMS`, in the format of sha256sum.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use programs::command::output;

const CHECKSUMS_FILE: &str = "SHA256SUMS";

/// Writes the checksums of all files below a directory, sorted by name. Returns their number.
///
/// # Errors
/// A file cannot be read, or `sha256sum` fails.
pub(crate) fn write(directory: &Path) -> anyhow::Result<usize> {
    let mut names = Vec::new();
    list(directory, Path::new(""), &mut names)?;
    names.sort();
    let mut sha256sum = Command::new("sha256sum");
    sha256sum.arg("--").args(&names).current_dir(directory);
    let sums = output(&mut sha256sum)?;
    fs::write(directory.join(CHECKSUMS_FILE), sums).with_context(|| format!("write {CHECKSUMS_FILE}"))?;
    Ok(names.len())
}

fn list(directory: &Path, below: &Path, names: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let read = directory.join(below);
    for entry in fs::read_dir(&read).with_context(|| format!("list {}", read.display()))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(directory, &name, names)?;
        } else if name != Path::new(CHECKSUMS_FILE) {
            names.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_cover_every_file_but_their_own() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("debug")).unwrap();
        for name in ["b", "debug/a", CHECKSUMS_FILE] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(write(directory.path()).unwrap(), 2);
        let sums = fs::read_to_string(directory.path().join(CHECKSUMS_FILE)).unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sums, format!("{empty}  b\n{empty}  debug/a\n"));
    }
}
