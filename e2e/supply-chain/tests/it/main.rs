//! Checks of the repository as a whole.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::fs;
use std::path::{Path, PathBuf};

mod architecture;
mod docs;
mod makefile;
mod words;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Adds the files below a folder that end so; not those of the vendored client, nor what was built.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "tikv-client" {
            files(&path, end, found);
        } else if path.extension().is_some_and(|own| own == end) {
            found.push(path);
        }
    }
}
