//! A data directory that a snapshot is being restored into. It has no `IDENTITY_FILE` before it is complete, so no server starts on it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    DIR_FORMAT, DataDirError, IDENTITY_FILE, Identity, LOG_DIR, ROWS_DIR, ROWS_NEW_DIR, contents, create, lock,
    note_owner, sync_dir, write,
};

/// Marks log and rows as those of a restore or an import that is not complete. It holds [`RestoringFrom`] once a restore can continue with
/// them.
pub(super) const RESTORING_FILE: &str = "RESTORING";

/// The name of [`RESTORING_FILE`] before it is complete.
const RESTORING_NEW_FILE: &str = "RESTORING.new";

/// Says that log and rows are a copy of another store that follows it: all of it up to the revision that it is at.
pub(super) const IMPORTING_FILE: &str = "IMPORTING";

/// The name of [`IMPORTING_FILE`] before it is complete.
const IMPORTING_NEW_FILE: &str = "IMPORTING.new";

/// The copy of another store that a directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirImport {
    /// The newest format of log and rows that its files may have; 0 if an earlier version began the copy.
    #[serde(default)]
    pub format: u32,
    /// The id of the cluster that is copied.
    pub source: u64,
    /// The cluster's id that the store gets.
    pub cluster_id: u64,
    /// The member's id that the store gets.
    pub member_id: u64,
    /// The id of the log.
    pub log: [u8; 16],
}

/// The snapshot that a directory holds a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoringFrom {
    /// The format of log and rows.
    pub format: u32,
    /// SHA-256 of the snapshot's database.
    pub snapshot: [u8; 32],
    /// The cluster's id that the store gets.
    pub cluster_id: u64,
    /// The member's id that the store gets.
    pub member_id: u64,
    /// The id of the log.
    pub log: [u8; 16],
}

/// A data directory that this process fills until it is dropped.
#[derive(Debug)]
pub struct RestoringDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl RestoringDir {
    /// Creates the directory, or takes an empty one, and locks it. Deletes what an interrupted restore has left there. If it is
    /// refused, nothing was changed in it.
    pub fn begin(path: &Path) -> Result<RestoringDir, DataDirError> {
        Self::empty(path, false)
    }

    /// As [`begin`](Self::begin), and also deletes a copy of another store that is not complete.
    pub fn begin_again(path: &Path) -> Result<RestoringDir, DataDirError> {
        Self::empty(path, true)
    }

    fn empty(path: &Path, drops_import: bool) -> Result<RestoringDir, DataDirError> {
        let io = |action| move |source| io_error(path, action, source);
        create(path).map_err(io("cannot be created"))?;
        let this = Self::locked(path, drops_import)?;
        if path.join(LOG_DIR).exists() {
            tracing::info!(data_dir = %path.display(), "deleting an incomplete restore or import");
        }
        this.mark().map_err(io("is not writable"))?;
        this.clear().map_err(io("cannot be emptied"))?;
        Ok(this)
    }

    /// Locks the directory if it holds a copy of another store that is not complete; returns `None` if it does not.
    pub fn resume(path: &Path) -> Result<Option<(RestoringDir, DirImport)>, DataDirError> {
        let file = path.join(IMPORTING_FILE);
        if !file.exists() || path.join(IDENTITY_FILE).exists() {
            return Ok(None);
        }
        let this = Self::locked(path, true)?;
        let text = fs::read(&file).map_err(|source| io_error(path, "cannot be read", source))?;
        let importing = serde_json::from_slice(&text).map_err(|error| DataDirError::Damaged {
            path: file,
            what: error.to_string(),
        })?;
        Ok(Some((this, importing)))
    }

    /// Locks the directory if it holds a part of this snapshot that a restore can continue with; returns `None` if it does not.
    pub fn resume_restore(
        path: &Path,
        snapshot: &[u8; 32],
    ) -> Result<Option<(RestoringDir, RestoringFrom)>, DataDirError> {
        let read = || {
            let from: RestoringFrom = serde_json::from_slice(&fs::read(path.join(RESTORING_FILE)).ok()?).ok()?;
            (from.snapshot == *snapshot && from.format == DIR_FORMAT).then_some(from)
        };
        if read().is_none() || path.join(IDENTITY_FILE).exists() {
            return Ok(None);
        }
        let this = Self::locked(path, false)?;
        // Another process may have changed it before the lock.
        Ok(read().map(|from| (this, from)))
    }

    fn locked(path: &Path, may_import: bool) -> Result<RestoringDir, DataDirError> {
        check(path, may_import)?;
        let mut lock = lock(path)?;
        // Another process may have changed it between the check and the lock.
        check(path, may_import)?;
        Ok(RestoringDir {
            path: path.to_owned(),
            _lock: {
                // Only for the message to a second process.
                let _unnoted = note_owner(&mut lock);
                lock
            },
        })
    }

    /// Records durably that log and rows are a copy that an import can continue with. Fails if the file system returns an error.
    pub fn set_importing(&self, importing: &DirImport) -> Result<(), DataDirError> {
        self.replace(IMPORTING_FILE, IMPORTING_NEW_FILE, importing)
    }

    /// Records durably that log and rows are a part of a snapshot that a restore can continue with. Fails if the file system returns an
    /// error.
    pub fn set_restoring(&self, from: &RestoringFrom) -> Result<(), DataDirError> {
        self.replace(RESTORING_FILE, RESTORING_NEW_FILE, from)
    }

    fn replace(&self, name: &str, new: &str, content: &impl Serialize) -> Result<(), DataDirError> {
        let written = || {
            let new = self.path.join(new);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec(content)?)?;
            file.sync_all()?;
            fs::rename(&new, self.path.join(name))?;
            sync_dir(&self.path)
        };
        written().map_err(|source| io_error(&self.path, "is not writable", source))
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it a complete data directory, durably. Fails if the file system returns an error; no server starts on it then.
    pub fn finish(self, identity: &Identity) -> Result<(), DataDirError> {
        let io = |source| io_error(&self.path, "is not writable", source);
        sync_dir(&self.path).map_err(io)?;
        write(&self.path, identity).map_err(io)?;
        // They mean nothing beside an identity.
        remove(&self.path.join(IMPORTING_FILE)).map_err(io)?;
        fs::remove_file(self.path.join(RESTORING_FILE)).map_err(io)?;
        sync_dir(&self.path).map_err(io)
    }

    /// Deletes what was made of it. Fails if the file system returns an error; no server starts on it then.
    pub fn abandon(self) -> Result<(), DataDirError> {
        let io = |source| io_error(&self.path, "cannot be emptied", source);
        // This comes first, so that no restore or import continues with files that are deleted in part.
        self.mark().map_err(io)?;
        self.clear().map_err(io)?;
        fs::remove_file(self.path.join(RESTORING_FILE)).map_err(io)?;
        sync_dir(&self.path).map_err(io)
    }

    fn mark(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // The file's content about log and rows is not valid any more.
        let marker = options.write(true).create(true).truncate(true).mode(0o600);
        marker.open(self.path.join(RESTORING_FILE))?.sync_all()?;
        sync_dir(&self.path)
    }

    fn clear(&self) -> io::Result<()> {
        // First: without log and rows it would be wrong.
        for file in [IMPORTING_FILE, IMPORTING_NEW_FILE, RESTORING_NEW_FILE] {
            remove(&self.path.join(file))?;
        }
        sync_dir(&self.path)?;
        for part in [LOG_DIR, ROWS_DIR, ROWS_NEW_DIR] {
            match fs::remove_dir_all(self.path.join(part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        sync_dir(&self.path)
    }
}

/// Deletes a file if it exists.
fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Refuses a directory that holds anything but an interrupted restore, or, with `may_import`, an import that is not complete.
fn check(path: &Path, may_import: bool) -> Result<(), DataDirError> {
    let is_store = path.join(IDENTITY_FILE).exists();
    let found = contents(path)?;
    let is_interrupted = found.iter().any(|name| name == RESTORING_FILE);
    let parts = [
        RESTORING_FILE,
        RESTORING_NEW_FILE,
        IMPORTING_NEW_FILE,
        LOG_DIR,
        ROWS_DIR,
        ROWS_NEW_DIR,
    ];
    let imports = |name: &str| may_import && name == IMPORTING_FILE;
    let is_ours = |name: &String| is_interrupted && (parts.contains(&name.as_str()) || imports(name));
    let other = found.iter().find(|name| !is_ours(name));
    let found = match other {
        _ if is_store => "a store".to_owned(),
        Some(name) if name == IMPORTING_FILE => {
            "an incomplete copy of another store, which `kubebrain import` can complete".to_owned()
        }
        Some(name) => format!("{name:?}"),
        None => return Ok(()),
    };
    Err(DataDirError::NotEmpty {
        path: path.to_owned(),
        found,
    })
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> DataDirError {
    DataDirError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::DataDir;
    use engine::log::LogId;

    const IDENTITY_OF: Identity = Identity {
        format: DIR_FORMAT,
        cluster_id: 1,
        member_id: 2,
        log: Some(LogId([3; 16])),
    };

    fn fill(target: &RestoringDir) {
        for part in [LOG_DIR, ROWS_DIR] {
            fs::create_dir(target.path().join(part)).unwrap();
            fs::write(target.path().join(part).join("file"), "content").unwrap();
        }
    }

    #[test]
    fn directory_is_no_store_before_the_restore_ends() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("new");
        let target = RestoringDir::begin(&dir).unwrap();
        fill(&target);
        let again = RestoringDir::begin(&dir).unwrap_err();
        assert!(matches!(again, DataDirError::InUse { .. }), "{again}");
        drop(target);
        let opened = DataDir::open(&dir, || IDENTITY_OF).unwrap_err();
        assert!(matches!(opened, DataDirError::Restoring { .. }), "{opened}");

        let target = RestoringDir::begin(&dir).unwrap();
        assert!(!dir.join(LOG_DIR).exists(), "what was interrupted is begun anew");
        fill(&target);
        target.finish(&IDENTITY_OF).unwrap();
        let opened = DataDir::open(&dir, || panic!("it is new")).unwrap();
        assert_eq!(*opened.identity(), IDENTITY_OF);
        drop(opened);
        let full = RestoringDir::begin(&dir).unwrap_err();
        assert!(matches!(full, DataDirError::NotEmpty { .. }), "{full}");
        assert!(dir.join(LOG_DIR).join("file").exists() && !dir.join(RESTORING_FILE).exists());
    }

    #[test]
    fn import_is_gone_on_with_and_deleted_only_on_request() {
        let temp = tempfile::tempdir().unwrap();
        assert!(RestoringDir::resume(temp.path()).unwrap().is_none());
        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        let importing = DirImport {
            format: DIR_FORMAT,
            source: u64::MAX,
            cluster_id: 1,
            member_id: 2,
            log: [3; 16],
        };
        target.set_importing(&importing).unwrap();
        drop(target);
        let refused = DataDir::open(temp.path(), || IDENTITY_OF).unwrap_err();
        assert!(matches!(refused, DataDirError::Restoring { .. }), "{refused}");
        let refused = RestoringDir::begin(temp.path()).unwrap_err();
        assert!(refused.to_string().contains("kubebrain import"), "{refused}");
        let (target, found) = RestoringDir::resume(temp.path()).unwrap().unwrap();
        assert_eq!(found, importing);
        assert!(temp.path().join(LOG_DIR).join("file").exists());
        drop(target);
        drop(RestoringDir::begin_again(temp.path()).unwrap());
        assert!(!temp.path().join(LOG_DIR).exists());
        assert!(RestoringDir::resume(temp.path()).unwrap().is_none());

        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        target.set_importing(&importing).unwrap();
        target.finish(&IDENTITY_OF).unwrap();
        assert!(!temp.path().join(IMPORTING_FILE).exists());
        DataDir::open(temp.path(), || panic!("it is new")).unwrap();
        assert!(RestoringDir::resume(temp.path()).unwrap().is_none());
    }

    #[test]
    fn restore_of_the_same_snapshot_is_gone_on_with() {
        let temp = tempfile::tempdir().unwrap();
        let from = RestoringFrom {
            format: DIR_FORMAT,
            snapshot: [7; 32],
            cluster_id: u64::MAX,
            member_id: 2,
            log: [3; 16],
        };
        let resumed = |snapshot| RestoringDir::resume_restore(temp.path(), &snapshot).unwrap();
        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        drop(target);
        assert!(resumed([7; 32]).is_none(), "what it is a part of is not known");

        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        target.set_restoring(&from).unwrap();
        let used = RestoringDir::resume_restore(temp.path(), &[7; 32]).unwrap_err();
        assert!(matches!(used, DataDirError::InUse { .. }), "{used}");
        drop(target);
        assert!(resumed([8; 32]).is_none());
        let (target, found) = resumed([7; 32]).unwrap();
        assert!(found == from && temp.path().join(LOG_DIR).join("file").exists());
        drop(target);
        let refused = DataDir::open(temp.path(), || IDENTITY_OF).unwrap_err();
        assert!(matches!(refused, DataDirError::Restoring { .. }), "{refused}");

        drop(RestoringDir::begin(temp.path()).unwrap());
        assert!(resumed([7; 32]).is_none() && !temp.path().join(LOG_DIR).exists());
        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        target.set_restoring(&from).unwrap();
        target.finish(&IDENTITY_OF).unwrap();
        assert!(resumed([7; 32]).is_none());
        DataDir::open(temp.path(), || panic!("it is new")).unwrap();
    }

    #[test]
    fn abandoned_directory_is_empty_and_the_data_of_others_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let target = RestoringDir::begin(temp.path()).unwrap();
        fill(&target);
        target.abandon().unwrap();
        DataDir::open(temp.path(), || Identity {
            log: None,
            ..IDENTITY_OF
        })
        .unwrap();

        let temp = tempfile::tempdir().unwrap();
        for name in ["file", "log"] {
            fs::write(temp.path().join(name), "content").unwrap();
            let refused = RestoringDir::begin(temp.path()).unwrap_err();
            assert!(matches!(refused, DataDirError::NotEmpty { .. }), "{refused}");
            assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
            fs::remove_file(temp.path().join(name)).unwrap();
        }
    }
}
