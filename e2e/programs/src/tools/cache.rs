//! Things that are made once and kept outside the checkout, named by what they were made from.
//!
//! Invariant: an entry under its final name is complete. It is made under another name and then renamed, under a lock
//! that other processes wait for.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use crate::progress::Progress;

/// The directory that all checkouts on this machine share.
#[derive(Clone, Debug)]
pub struct ToolCache(PathBuf);

impl ToolCache {
    /// `$KUBEBRAIN_CACHE`, else `/var/cache/kubebrain` for root, else `$XDG_CACHE_HOME/kubebrain` or `~/.cache/kubebrain`.
    ///
    /// # Errors
    ///
    /// None of these is known, or the directory cannot be made.
    pub fn open() -> anyhow::Result<Self> {
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let root = || {
            rustix::process::geteuid()
                .is_root()
                .then(|| PathBuf::from("/var/cache/kubebrain"))
        };
        let dir = set("KUBEBRAIN_CACHE")
            .or_else(root)
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("kubebrain")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/kubebrain")))
            .context("no place for built programs: set KUBEBRAIN_CACHE to a directory")?;
        fs::create_dir_all(&dir).with_context(|| format!("create the cache directory {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// The entry `kind/name-key`, made by `make` in an empty directory if it is not there yet. Older entries of that
    /// name stay for other checkouts, the latest [`KEPT_ENTRIES`] of them.
    ///
    /// # Errors
    ///
    /// Those of `make`, and of the file system. A failed attempt leaves no entry.
    pub fn once(
        &self,
        kind: &str,
        name: &str,
        key: &CacheKey,
        progress: &Progress,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let parent = self.0.join(kind);
        let entry = parent.join(format!("{name}-{}", key.0));
        if entry.exists() {
            return Ok(entry);
        }
        fs::create_dir_all(&parent).with_context(|| format!("create {}", parent.display()))?;
        let _lock = lock(
            &parent.join(format!("{name}.lock")),
            progress,
            &format!("another process makes {name}"),
        )?;
        if entry.exists() {
            return Ok(entry); // made while we waited
        }
        let partial = parent.join(format!("{name}.partial"));
        remove(&partial)?; // left by a killed run: we hold the lock, so no other process uses it
        fs::create_dir(&partial).with_context(|| format!("create {}", partial.display()))?;
        make(&partial)?;
        fs::rename(&partial, &entry).with_context(|| format!("keep {name} as {}", entry.display()))?;
        prune(&parent, name, &entry)?;
        Ok(entry)
    }
}

/// Number of entries of one name that are kept.
pub const KEPT_ENTRIES: usize = 3;

/// Takes the lock on `path`, and reports the wait if it is taken. Dropping the file releases it.
///
/// # Errors
///
/// The file cannot be opened or locked.
pub fn lock(path: &Path, progress: &Progress, holder: &str) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("open the lock {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.during(format_args!("{holder}: waited for it"), || Ok(file.lock()?))?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
    }
    Ok(file)
}

fn remove(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn prune(parent: &Path, name: &str, newest: &Path) -> anyhow::Result<()> {
    let prefix = format!("{name}-");
    let mut older = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let file = entry.file_name();
        let key = file.to_str().and_then(|file| file.strip_prefix(&prefix));
        if key.is_some_and(|key| key.len() == CacheKey::LEN && !key.contains('-')) && entry.path() != newest {
            older.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    older.sort();
    let surplus = (older.len() + 1).saturating_sub(KEPT_ENTRIES);
    older.iter().take(surplus).try_for_each(|(_, path)| remove(path))
}

/// Names what something is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey(String);

impl CacheKey {
    const LEN: usize = 16;

    /// The key of these parts, in this order.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hex: String = hash
            .finalize()
            .iter()
            .take(Self::LEN / 2)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self(hex)
    }
}

impl std::fmt::Display for CacheKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests;
