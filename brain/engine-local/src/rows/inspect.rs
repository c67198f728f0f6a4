//! Inspects a directory before fjall opens it, because fjall would trust its files, or delete them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use xxhash_rust::xxh3::xxh3_128;

use super::guard::io;
use engine::rows::RowsError;

pub(super) const LOCK_FILE: &str = "lock";
pub(super) const VERSION_FILE: &str = "version";
const KEYSPACES_DIR: &str = "keyspaces";
const META_KEYSPACE: &str = "0";
const CURRENT_FILE: &str = "current";
pub(super) const TABLES_DIR: &str = "tables";
const JOURNAL_EXTENSION: &str = "jnl";

/// The prefix of files that fjall renames once they are whole.
const TEMPORARY_PREFIX: &str = ".tmp";

/// Checks that every file that fjall needs exists, and that the manifests are as they were written.
pub(super) fn manifests(dir: &Path) -> Result<(), RowsError> {
    for name in [LOCK_FILE, VERSION_FILE, KEYSPACES_DIR] {
        require(&dir.join(name))?;
    }
    let keyspaces = list(&dir.join(KEYSPACES_DIR))?;
    let names: Vec<String> = keyspaces.iter().map(|path| name(path)).collect();
    if names.len() != 2
        || !names.iter().any(|name| name == META_KEYSPACE)
        || names.iter().any(|n| n.parse::<u64>().is_err())
    {
        return Err(RowsError::Corrupt(format!(
            "{} holds {names:?}, expected {META_KEYSPACE:?} and one other number",
            dir.join(KEYSPACES_DIR).display()
        )));
    }
    for keyspace in keyspaces {
        require(&keyspace.join(TABLES_DIR))?;
        manifest(&keyspace)?;
    }
    Ok(())
}

/// `current` names a manifest `vN` and its checksum: number (8 bytes), xxh3-128 (16), kind (1), little endian.
fn manifest(keyspace: &Path) -> Result<(), RowsError> {
    let current = keyspace.join(CURRENT_FILE);
    let bytes = read(&current)?;
    let parsed = bytes
        .split_first_chunk::<8>()
        .and_then(|(number, rest)| rest.split_first_chunk::<16>().map(|(sum, kind)| (number, sum, kind)));
    let Some((number, sum, [0])) = parsed else {
        return Err(damaged(&current, "is not the pointer to a manifest"));
    };
    let manifest = keyspace.join(format!("v{}", u64::from_le_bytes(*number)));
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

/// Removes files that fjall began and never finished. Returns an error that names any other file that is no table: fjall's does not.
pub(super) fn sweep(dir: &Path) -> Result<(), RowsError> {
    for keyspace in list(&dir.join(KEYSPACES_DIR))? {
        let tables = list(&keyspace.join(TABLES_DIR))?;
        for path in list(&keyspace)?.iter().chain(&tables) {
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
    }
    Ok(())
}

/// The journals of a database, oldest first.
pub(super) fn journals(dir: &Path) -> Result<Vec<PathBuf>, RowsError> {
    let journals = in_order(list(dir)?)?;
    if journals.is_empty() {
        return Err(RowsError::Corrupt(format!("no journal is left in {}", dir.display())));
    }
    Ok(journals)
}

/// Those of `paths` that are journals, oldest first. One that fjall's threads removed since they were listed is left out.
fn in_order(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, RowsError> {
    let mut journals = Vec::new();
    for path in paths {
        if !path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case(JOURNAL_EXTENSION))
        {
            continue;
        }
        let number = name(&path)
            .strip_suffix(".jnl")
            .and_then(|number| number.parse::<u64>().ok())
            .filter(|_| path.is_file());
        match number {
            Some(number) => journals.push((number, path)),
            None if is_gone(&path) => {}
            None => return Err(damaged(&path, "is not the name of a journal")),
        }
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// Returns true if no file has the name `path`; a link that leads nowhere is a file.
fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Bytes that journals occupy; their length says less, because fjall makes them longer than they are.
pub(super) fn journal_bytes(dir: &Path) -> u64 {
    journals(dir)
        .unwrap_or_default()
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|metadata| (metadata.blocks() * 512).min(metadata.len()))
        .sum()
}

/// Bytes that the newest journal occupies.
pub(super) fn newest_journal_bytes(dir: &Path) -> Result<u64, RowsError> {
    let journals = journals(dir)?;
    let newest = journals.last().and_then(|path| fs::metadata(path).ok());
    Ok(newest.map_or(0, |metadata| (metadata.blocks() * 512).min(metadata.len())))
}

/// Bytes of all table files of a keyspace, including those of compacted tables.
pub(super) fn table_bytes(keyspace: &Path) -> Result<u64, RowsError> {
    let tables = list(&keyspace.join(TABLES_DIR))?;
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

/// The error of a version file that holds no version.
pub(super) fn no_version(dir: &Path) -> RowsError {
    damaged(&dir.join(VERSION_FILE), "does not hold a version of fjall")
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

fn require(path: &Path) -> Result<(), RowsError> {
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(path, "is missing")),
        Err(error) => Err(named(path, error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RowsError> {
    let mut bytes = Vec::new();
    fs::File::open(path)
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
    fn a_journal_that_was_removed_since_it_was_listed_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["7.jnl", "10.jnl", "9.jnl", "lock"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let listed = list(dir.path()).unwrap();
        fs::remove_file(dir.path().join("7.jnl")).unwrap();
        let journals = in_order(listed).unwrap();
        assert_eq!(
            journals.iter().map(|path| name(path)).collect::<Vec<_>>(),
            ["9.jnl", "10.jnl"]
        );
    }

    #[test]
    fn file_that_only_looks_like_a_journal_is_damage() {
        for make in [
            |path: &Path| fs::create_dir(path.join("8.jnl")),
            |path: &Path| fs::write(path.join("old.jnl"), ""),
            |path: &Path| std::os::unix::fs::symlink("nowhere", path.join("8.jnl")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("7.jnl"), "").unwrap();
            make(dir.path()).unwrap();
            assert!(matches!(journals(dir.path()), Err(RowsError::Corrupt(_))));
        }
    }
}
