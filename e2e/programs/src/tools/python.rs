//! Python programs from pinned packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::cache::{CacheKey, ToolCache};
use super::debian::{self, DebianPackage};
use crate::progress::Progress;

/// The packages that are not on every machine with Debian's Python.
const VENV: &[DebianPackage] = &[
    DebianPackage {
        brings: "python3",
        name: "python3",
    },
    DebianPackage {
        brings: "/usr/share/doc/python3-venv",
        name: "python3-venv",
    },
];

/// A Python with the packages of `clients/python/requirements.txt`.
#[derive(Clone, Debug)]
pub struct Python(PathBuf);

impl Python {
    /// Installs the packages if they are not there yet.
    ///
    /// # Errors
    ///
    /// There is no Python and it cannot be installed, or the packages cannot.
    pub fn prepare(progress: &Progress) -> anyhow::Result<Self> {
        if run(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
            debian::require(VENV, progress)?;
        }
        let requirements = Self::sources().join("requirements.txt");
        let listed = fs::read(&requirements).with_context(|| format!("read {}", requirements.display()))?;
        let version = run(Command::new("python3").arg("--version"))?;
        let key = CacheKey::of([&listed[..], version.as_bytes()]);
        let dir = ToolCache::open()?.once("python", "clients", &key, progress, |dir| {
            progress.during("install Python packages", || {
                run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
                let mut install = Command::new(dir.join("bin/python"));
                install.args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--requirement",
                ]);
                run(install.arg(&requirements)).map(drop)
            })
        })?;
        Ok(Self(dir.join("bin/python")))
    }

    /// Runs a program of `clients/python` and returns what it prints.
    ///
    /// # Errors
    ///
    /// It fails: then with what it printed.
    pub fn output(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        run(Command::new(&self.0).arg(Self::sources().join(program)).args(args))
    }

    fn sources() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python")
    }
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{printed}{}", output.status, error.trim_end());
    }
    Ok(printed)
}
