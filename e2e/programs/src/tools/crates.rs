//! The tests of a crate, built from its source as Cargo downloads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::cache::{CacheKey, ToolCache};
use super::debian::{self, DebianPackage};
use crate::command::output;
use crate::progress::Progress;

/// The compiler of protocol buffers that the crate's build script starts, and what it includes.
const PROTOC: &[DebianPackage] = &[
    DebianPackage {
        brings: "protoc",
        name: "protobuf-compiler",
    },
    DebianPackage {
        brings: "/usr/include/google/protobuf/descriptor.proto",
        name: "libprotobuf-dev",
    },
];

/// Variables that Cargo reads from its environment and that would change the programs built from the same source.
const NOT_INHERITED: &[&str] = &[
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "RUSTFLAGS",
];

/// The package beside this crate's sources that brings the crate, with a lock file, and the crate's name.
const PACKAGE: &str = "../clients/rust";
const CRATE: &str = "etcd-client";

/// The directory with the test programs of `etcd-client`, each by the name that the crate gives it. They are built now if they were not
/// before.
///
/// # Errors
///
/// `protoc` is missing and cannot be installed, or a download or the build fails.
pub fn etcd_client_tests(cache: &ToolCache, progress: &Progress) -> anyhow::Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join(PACKAGE);
    let files = ["Cargo.toml", "Cargo.lock", "lib.rs"];
    let read = |file: &str| {
        let path = package.join(file);
        fs::read(&path).with_context(|| format!("read {}", path.display()))
    };
    let contents = files.map(read).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let version = output(Command::new("rustc").arg("-vV"))?;
    let key = CacheKey::of(contents.iter().map(Vec::as_slice).chain([version.as_bytes()]));
    debian::require(PROTOC, progress)?;
    cache.once("crates", CRATE, &key, progress, |dir| {
        progress.during(
            format_args!("build the tests of {CRATE} (about 1 min on two cores the first time)"),
            || {
                let build = dir.join("build");
                fs::create_dir(&build)?;
                for (file, content) in files.iter().zip(&contents) {
                    fs::write(build.join(file), content)?;
                }
                copy_tests(&build)?;
                for (name, program) in built(&build)? {
                    fs::copy(&program, dir.join(&name)).with_context(|| format!("copy {}", program.display()))?;
                }
                fs::remove_dir_all(&build).context("remove what the build left")
            },
        )
    })
}

fn cargo(build: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(build).env("CARGO_TARGET_DIR", build.join("target"));
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    cargo
}

/// Copies the crate's tests into the package, so that they are built with what tests need.
fn copy_tests(build: &Path) -> anyhow::Result<()> {
    let described = output(cargo(build).args(["metadata", "--locked", "--format-version", "1"]))?;
    let described: Value = serde_json::from_str(&described).context("read what Cargo knows of packages")?;
    let packages = described["packages"].as_array().context("Cargo names no packages")?;
    let found = packages.iter().find(|package| package["name"] == CRATE);
    let manifest = found.and_then(|package| package["manifest_path"].as_str());
    let source = Path::new(manifest.with_context(|| format!("Cargo knows no {CRATE}"))?).with_file_name("tests");
    let tests = build.join("tests");
    fs::create_dir(&tests)?;
    for entry in fs::read_dir(&source).with_context(|| format!("list {}", source.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), tests.join(entry.file_name()))?;
    }
    Ok(())
}

/// Builds the tests; returns their names and paths.
fn built(build: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let messages = output(cargo(build).args(["test", "--locked", "--no-run", "--message-format=json"]))?;
    let programs: Vec<_> = messages.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "Cargo built no tests of {CRATE}");
    Ok(programs)
}

/// The name and path of the test program that a message of Cargo announces.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let program = message["executable"].as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), program.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_messages() {
        let test =
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"client"},"executable":"/t/client-1"}"#;
        assert_eq!(program(test), Some(("client".to_owned(), "/t/client-1".into())));
        for other in [
            r#"{"reason":"compiler-artifact","target":{"name":"etcd_client"},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "",
        ] {
            assert_eq!(program(other), None, "{other}");
        }
    }
}
