//! Inspects a directory before lsm-tree opens it, because lsm-tree would trust its files, or delete them.

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use xxhash_rust::xxh3::xxh3_128;

use super::RowsOpenError;
use super::guard::io;
use engine::rows::RowsError;

pub(super) const LOCK_FILE: &str = "lock";
/// The directory of the tree.
pub(super) const TREE_DIR: &str = "tree";
const CURRENT_FILE: &str = "current";
/// The directory of tables below that of a tree.
pub(super) const TABLES_DIR: &str = "tables";

/// The prefix of files that lsm-tree renames once they are whole.
const TEMPORARY_PREFIX: &str = ".tmp";

/// The lock of a directory of rows.
///
/// It is given back when this is dropped, and not when the last descriptor of the file is closed: a child that this process has just forked
/// has one until it executes another program.
pub(super) struct RowsLock(File);

impl Drop for RowsLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "cannot unlock the rows: the kernel does when the file is closed");
        }
    }
}

/// Locks the directory of rows.
pub(super) fn lock(dir: &Path) -> Result<RowsLock, RowsOpenError> {
    let path = dir.join(LOCK_FILE);
    let lock = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => damaged(&path, "is missing"),
            _ => named(&path, error),
        })?;
    match lock.try_lock() {
        Ok(()) => Ok(RowsLock(lock)),
        Err(TryLockError::WouldBlock) => Err(RowsOpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(named(&path, error).into()),
    }
}

/// Checks that every file that a tree needs exists, and that its manifest is as it was written.
pub(super) fn tree(tree: &Path) -> Result<(), RowsError> {
    require(tree)?;
    require(&tree.join(TABLES_DIR))?;
    manifest(tree)
}

/// The number of the version that the pointer to the manifest names.
pub(super) fn current_version(tree: &Path) -> Result<u64, RowsError> {
    let current = tree.join(CURRENT_FILE);
    let bytes = read(&current)?;
    let number = bytes.first_chunk::<8>();
    let number = number.ok_or_else(|| damaged(&current, "is not the pointer to a manifest"))?;
    Ok(u64::from_le_bytes(*number))
}

/// `current` names a manifest `vN` and its checksum: number (8 bytes), xxh3-128 (16), kind (1), little endian.
fn manifest(tree: &Path) -> Result<(), RowsError> {
    let current = tree.join(CURRENT_FILE);
    let bytes = read(&current)?;
    let parsed = bytes
        .split_first_chunk::<8>()
        .and_then(|(number, rest)| rest.split_first_chunk::<16>().map(|(sum, kind)| (number, sum, kind)));
    let Some((number, sum, [0])) = parsed else {
        return Err(damaged(&current, "is not the pointer to a manifest"));
    };
    let manifest = tree.join(format!("v{}", u64::from_le_bytes(*number)));
    if is_gone(&manifest) {
        let what = format!("names the manifest {}, which is missing", manifest.display());
        return Err(damaged(&current, &what));
    }
    if xxh3_128(&read(&manifest)?) != u128::from_le_bytes(*sum) {
        let what = format!("is not the manifest that {} names", current.display());
        return Err(damaged(&manifest, &what));
    }
    Ok(())
}

/// Removes files that lsm-tree began and never finished. Returns an error that names any other file that is no table: lsm-tree's does
/// not.
pub(super) fn sweep(tree: &Path) -> Result<(), RowsError> {
    let tables = list(&tree.join(TABLES_DIR))?;
    for path in list(tree)?.iter().chain(&tables) {
        if name(path).starts_with(TEMPORARY_PREFIX) && path.is_file() {
            fs::remove_file(path).map_err(|error| named(path, error))?;
        }
    }
    for path in &tables {
        let name = name(path);
        let is_ignored = name.starts_with(TEMPORARY_PREFIX) || name.starts_with("._") || name == ".DS_Store";
        if !is_ignored && (name.parse::<u64>().is_err() || path.is_dir()) {
            return Err(damaged(path, "is not a table: move it away"));
        }
    }
    Ok(())
}

/// Returns true if no file has the name `path`; a link that leads nowhere is a file.
pub(super) fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Bytes of all table files of a tree, including those of compacted tables.
pub(super) fn table_bytes(tree: &Path) -> Result<u64, RowsError> {
    let tables = list(&tree.join(TABLES_DIR))?;
    // A file may have been removed since it was listed.
    Ok(tables
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|metadata| metadata.len())
        .sum())
}

/// An error unless `bytes` are free on the medium.
pub(super) fn require_space(dir: &Path, bytes: u64) -> Result<(), RowsError> {
    let medium = rustix::fs::statvfs(dir).map_err(|error| io(error.into()))?;
    let free = medium.f_bavail.saturating_mul(medium.f_frsize);
    if free < bytes {
        return Err(RowsError::Full(anyhow!(
            "{free} bytes are free in {}, {} more bytes are needed",
            dir.display(),
            bytes - free
        )));
    }
    Ok(())
}

/// Returns true if `dir` is empty or does not exist.
pub(super) fn is_vacant(dir: &Path) -> Result<bool, RowsError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(named(dir, error)),
    }
}

/// Syncs a directory.
pub(super) fn sync_dir(dir: &Path) -> Result<(), RowsError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| named(dir, error))
}

pub(super) fn damaged(path: &Path, what: &str) -> RowsError {
    RowsError::Corrupt(format!("{} {what}", path.display()))
}

/// The reaction to an error of the file system, which says the path.
pub(super) fn named(path: &Path, error: std::io::Error) -> RowsError {
    match io(error) {
        RowsError::Corrupt(text) => RowsError::Corrupt(format!("{}: {text}", path.display())),
        RowsError::Failed(error) => RowsError::Failed(error.context(path.display().to_string())),
        other => other,
    }
}

pub(super) fn require(path: &Path) -> Result<(), RowsError> {
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(path, "is missing")),
        Err(error) => Err(named(path, error)),
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, RowsError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| named(path, error))?;
    Ok(bytes)
}

pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, RowsError> {
    fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(|error| named(dir, error))
}

pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_given_back_though_a_child_has_a_descriptor_of_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK_FILE), "").unwrap();
        let first = lock(dir.path()).unwrap();
        // As a fork copies it.
        let _copied = first.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(RowsOpenError::InUse(_))));
        drop(first);
        lock(dir.path()).unwrap();
    }
}
