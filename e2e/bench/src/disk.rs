//! The place of data directories.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// A directory for one server, removed with it.
#[derive(Debug)]
pub(crate) struct ServerDir(TempDir);

impl ServerDir {
    /// A new one below `parent`.
    pub(crate) fn new(parent: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(parent);
        Ok(Self(dir.with_context(|| {
            format!("make a directory in {}", parent.display())
        })?))
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    /// A file beside the data.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A sync to memory costs nothing: numbers from there would say nothing.
pub(crate) fn refuse_memory(dir: &Path) -> anyhow::Result<()> {
    let magic = rustix::fs::statfs(dir)
        .with_context(|| format!("look at the file system of {}", dir.display()))?
        .f_type;
    match u64::try_from(magic).unwrap_or_default() {
        TMPFS_MAGIC | RAMFS_MAGIC => bail!("{} is in memory: set --dir to a directory on a disk", dir.display()),
        _ => Ok(()),
    }
}
