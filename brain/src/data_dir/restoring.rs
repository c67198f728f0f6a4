//! A data directory that a snapshot is being restored into. It has no `IDENTITY` before it is complete, so no server starts on it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::{DataDirError, IDENTITY, Identity, LOG, ROWS, contents, create, lock, note_owner, sync_dir, write};

/// Says that log and rows are those of a restore that is not complete.
pub(super) const RESTORING: &str = "RESTORING";

/// A data directory that this process fills until it is dropped.
#[derive(Debug)]
pub struct Restoring {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Restoring {
    /// Creates the directory, or takes an empty one, and locks it. Deletes what an interrupted restore has left there. If it is
    /// refused, nothing was changed in it.
    pub fn begin(path: &Path) -> Result<Restoring, DataDirError> {
        let io = |action| move |source| io_error(path, action, source);
        create(path).map_err(io("cannot be created"))?;
        check(path)?;
        let mut lock = lock(path)?;
        // Another process may have changed it between the check and the lock.
        check(path)?;
        let this = Restoring {
            path: path.to_owned(),
            _lock: {
                // Only for the message to a second process.
                let _unnoted = note_owner(&mut lock);
                lock
            },
        };
        this.mark().map_err(io("is not writable"))?;
        this.clear().map_err(io("cannot be emptied"))?;
        Ok(this)
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
        // It means nothing beside an identity.
        fs::remove_file(self.path.join(RESTORING)).map_err(io)?;
        sync_dir(&self.path).map_err(io)
    }

    /// Deletes what was made of it. Fails if the file system returns an error; no server starts on it then.
    pub fn abandon(self) -> Result<(), DataDirError> {
        let io = |source| io_error(&self.path, "cannot be emptied", source);
        self.clear().map_err(io)?;
        fs::remove_file(self.path.join(RESTORING)).map_err(io)?;
        sync_dir(&self.path).map_err(io)
    }

    fn mark(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let marker = options.write(true).create(true).truncate(false).mode(0o600);
        marker.open(self.path.join(RESTORING))?.sync_all()?;
        sync_dir(&self.path)
    }

    fn clear(&self) -> io::Result<()> {
        for part in [LOG, ROWS] {
            match fs::remove_dir_all(self.path.join(part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        sync_dir(&self.path)
    }
}

/// Refuses a directory that holds anything but an interrupted restore.
fn check(path: &Path) -> Result<(), DataDirError> {
    let is_store = path.join(IDENTITY).exists();
    let found = contents(path)?;
    let is_interrupted = found.iter().any(|name| name == RESTORING);
    let is_ours = |name: &String| is_interrupted && [RESTORING, LOG, ROWS].contains(&name.as_str());
    let other = found.iter().find(|name| !is_ours(name));
    let found = match other {
        _ if is_store => "a store".to_owned(),
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
