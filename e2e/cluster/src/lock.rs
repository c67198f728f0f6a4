//! One process at a time runs, or sweeps, a cluster of a name. The lock's file tells which.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;

use anyhow::Context as _;

use crate::cluster_dir::ClusterDir;
use crate::state::ProcessId;

/// Held until dropped; the kernel lets go of it when its holder ends in whatever way.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl FileLock {
    /// Takes it; nothing if another process holds it.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn try_take(home: &ClusterDir) -> anyhow::Result<Option<Self>> {
        let file = open(home)?;
        match file.try_lock() {
            Ok(()) => sign(file, home).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock cluster {}", home.name())),
        }
    }

    /// Takes it, when its holder has ended.
    ///
    /// # Errors
    ///
    /// The file system's.
    pub fn take(home: &ClusterDir) -> anyhow::Result<Self> {
        let file = open(home)?;
        file.lock().with_context(|| format!("lock cluster {}", home.name()))?;
        sign(file, home)
    }

    /// The process that holds it, or held it last.
    pub fn holder(home: &ClusterDir) -> Option<ProcessId> {
        serde_json::from_slice(&fs::read(home.lock()).ok()?).ok()
    }
}

fn open(home: &ClusterDir) -> anyhow::Result<File> {
    let path = home.lock();
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    open.with_context(|| format!("open {}", path.display()))
}

fn sign(mut file: File, home: &ClusterDir) -> anyhow::Result<FileLock> {
    let holder = serde_json::to_vec(&ProcessId::of(std::process::id())?)?;
    file.set_len(0)
        .and_then(|()| file.write_all(&holder))
        .with_context(|| format!("write {}", home.lock().display()))?;
    Ok(FileLock(file))
}
