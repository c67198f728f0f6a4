//! Our own programs: built by Cargo into one directory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The directory that holds `kubebrain`, `kubebrain-operator` and this crate's programs.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// The directory that `$KUBEBRAIN_PROGRAMS` names, else that of the running program, or the one above it for a test.
    ///
    /// # Errors
    ///
    /// The running program's path is unknown.
    pub fn find() -> anyhow::Result<Self> {
        if let Some(dir) = std::env::var_os("KUBEBRAIN_PROGRAMS").filter(|dir| !dir.is_empty()) {
            return Ok(Self(dir.into()));
        }
        let running = std::env::current_exe().context("find the running program")?;
        let mut dir = running
            .parent()
            .context("the running program has no parent directory")?;
        if dir.ends_with("deps") {
            dir = dir.parent().unwrap_or(dir);
        }
        Ok(Self(dir.to_owned()))
    }

    /// The path of one program.
    ///
    /// # Errors
    ///
    /// It is not built.
    pub fn get(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.0.join(name);
        if !path.is_file() {
            bail!("{} is not built: run `make build`", path.display());
        }
        Ok(path)
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.0
    }
}
