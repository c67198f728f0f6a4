//! The file that marks a directory as a cluster's, so that no directory of another owner is ever emptied or removed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};

use crate::cluster_dir::ClusterName;

const MARKER: &str = ".kubebrain-cluster";

/// Makes a directory the cluster's. If it exists, it must belong to the cluster already, or be empty.
///
/// # Errors
///
/// It belongs to another owner, or the file system refuses.
pub fn claim(dir: &Path, name: &ClusterName) -> anyhow::Result<()> {
    /// Several programs start at the same time and have their logs there: none may see a half-written marker.
    static CLAIMS: Mutex<()> = Mutex::new(());
    let _claim = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    check(dir, name)?;
    let marker = dir.join(MARKER);
    if marker.exists() {
        return Ok(());
    }
    fs::create_dir_all(dir).with_context(|| format!("create {}: a cluster needs root", dir.display()))?;
    fs::write(&marker, format!("{name}\n")).with_context(|| format!("write {}", marker.display()))
}

/// Refuses a directory that exists and is not the cluster's. An empty one counts as the cluster's: its owner was killed before it wrote
/// the marker.
///
/// # Errors
///
/// It belongs to another owner, or cannot be read.
pub fn check(dir: &Path, name: &ClusterName) -> anyhow::Result<()> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("look at {}", dir.display())),
        Ok(metadata) if !metadata.is_dir() => bail!("{} is not a directory", dir.display()),
        Ok(_) => {}
    }
    let owner = match fs::read_to_string(dir.join(MARKER)) {
        Ok(owner) => owner,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_empty = fs::read_dir(dir)
                .with_context(|| format!("list {}", dir.display()))?
                .next()
                .is_none();
            if is_empty {
                return Ok(());
            }
            bail!(
                "{} is not the directory of a cluster because it has no {MARKER}; not removed",
                dir.display()
            )
        }
        Err(error) => return Err(error).with_context(|| format!("read {}", dir.join(MARKER).display())),
    };
    if owner.trim_end() != name.to_string() {
        bail!(
            "{} is the directory of cluster {}, not of {name}; not removed",
            dir.display(),
            owner.trim_end()
        );
    }
    Ok(())
}

/// Removes the contents of the directory except for the marker and the paths that `keep` accepts.
///
/// # Errors
///
/// It belongs to another owner, or something cannot be removed.
pub fn empty(dir: &Path, name: &ClusterName, keep: impl Fn(&Path) -> bool) -> anyhow::Result<()> {
    check(dir, name)?;
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if path.ends_with(MARKER) || keep(&path) {
            continue;
        }
        let removed = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

/// Removes the directory if it exists. The marker goes last, so that an interrupted removal can be repeated.
///
/// # Errors
///
/// It belongs to another owner, or something cannot be removed.
pub fn remove(dir: &Path, name: &ClusterName) -> anyhow::Result<()> {
    check(dir, name)?;
    if !dir.exists() {
        return Ok(());
    }
    empty(dir, name, |_| false)?;
    match fs::remove_file(dir.join(MARKER)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("remove the marker of {}", dir.display()));
        }
        _ => {}
    }
    fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str) -> ClusterName {
        of.parse().unwrap()
    }

    #[test]
    fn directory_without_marker_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("x");
        fs::create_dir_all(dir.join("member/snap")).unwrap();
        let refusals = [
            claim(&dir, &name("x")),
            empty(&dir, &name("x"), |_| false),
            remove(&dir, &name("x")),
        ];
        for refused in refusals {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("it has no .kubebrain-cluster"), "{error}");
        }
        assert!(dir.join("member/snap").is_dir() && !dir.join(MARKER).exists());
    }

    #[test]
    fn claims_at_once_all_succeed() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..50 {
            let dir = root.path().join(format!("x{n}"));
            std::thread::scope(|scope| {
                let claims: Vec<_> = (0..8).map(|_| scope.spawn(|| claim(&dir, &name("x")))).collect();
                for claimed in claims {
                    claimed.join().unwrap().unwrap();
                }
            });
        }
    }

    #[test]
    fn directory_of_another_cluster_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("x");
        claim(&dir, &name("other")).unwrap();
        let error = remove(&dir, &name("x")).unwrap_err().to_string();
        assert!(error.contains("of cluster other"), "{error}");
        assert!(dir.join(MARKER).is_file());
    }

    #[test]
    fn link_to_a_directory_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (dir, link) = (root.path().join("x"), root.path().join("link"));
        claim(&dir, &name("x")).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(remove(&link, &name("x")).is_err());
        assert!(dir.join(MARKER).is_file());
    }

    #[test]
    fn own_directory_is_emptied_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("x");
        let outside = root.path().join("outside");
        fs::create_dir_all(&outside).unwrap();
        claim(&dir, &name("x")).unwrap();
        fs::create_dir_all(dir.join("pki/ca")).unwrap();
        fs::write(dir.join("host.log"), "kept").unwrap();
        std::os::unix::fs::symlink(&outside, dir.join("link")).unwrap();
        empty(&dir, &name("x"), |path| path.ends_with("host.log")).unwrap();
        assert!(dir.join("host.log").is_file() && !dir.join("pki").exists());
        claim(&dir, &name("x")).unwrap();
        remove(&dir, &name("x")).unwrap();
        remove(&dir, &name("x")).unwrap();
        assert!(!dir.exists() && outside.is_dir());
    }

    #[test]
    fn empty_directory_can_be_claimed_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("x");
        fs::create_dir(&dir).unwrap();
        remove(&dir, &name("x")).unwrap();
        assert!(!dir.exists());
        fs::create_dir(&dir).unwrap();
        claim(&dir, &name("x")).unwrap();
        check(&dir, &name("x")).unwrap();
    }
}
