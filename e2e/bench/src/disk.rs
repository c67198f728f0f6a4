//! The place of data directories.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Number of looks, a second apart, in which the size of a directory must change by less than a hundredth until it counts as settled.
const SETTLED_LOOKS: usize = 5;
/// A directory that does not settle in this time is measured as it is.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

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

/// Bytes of a directory after a server has finished its background work.
pub(crate) async fn settled(dir: &Path) -> anyhow::Result<u64> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut sizes = vec![occupied(dir)?];
    loop {
        sleep(Duration::from_secs(1)).await;
        let now = occupied(dir)?;
        sizes.push(now);
        let last = &sizes[sizes.len().saturating_sub(SETTLED_LOOKS)..];
        let steady = last.iter().all(|size| size.abs_diff(now) < now / 100);
        if last.len() == SETTLED_LOOKS && steady || Instant::now() > deadline {
            return Ok(now);
        }
    }
}

/// Bytes that the files of a directory occupy. A server may remove files while they are listed.
pub(crate) fn occupied(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => occupied(&entry.path())?,
            Ok(metadata) => metadata.blocks() * 512,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("look at {}", entry.path().display())),
        };
    }
    Ok(bytes)
}
