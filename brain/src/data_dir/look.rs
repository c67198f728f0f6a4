//! Read-only access to a data directory: nothing is created or changed, and no server uses it in the meantime.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{DataDirError, Identity, LOCK_FILE, inspect};

/// A data directory that no server uses as long as this exists.
#[derive(Debug)]
pub struct LockedDataDir {
    path: PathBuf,
    identity: Identity,
    /// `None` in a copy that was made without the file: no server uses it.
    _lock: Option<File>,
}

impl LockedDataDir {
    /// Locks servers out, and reads the directory's identity. Several readers may do so at the same time. Fails if there is no
    /// store, if it is not kubebrain's, or if a server holds it.
    pub fn at(path: &Path) -> Result<LockedDataDir, DataDirError> {
        let lock = shared_lock(path)?;
        let identity = inspect(path)?.ok_or_else(|| DataDirError::Missing {
            path: path.to_owned(),
            part: "a store is",
        })?;
        Ok(LockedDataDir {
            path: path.to_owned(),
            identity,
            _lock: lock,
        })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

fn shared_lock(path: &Path) -> Result<Option<File>, DataDirError> {
    let io = |action| {
        move |source| DataDirError::Io {
            path: path.to_owned(),
            action,
            source,
        }
    };
    let mut file = match File::open(path.join(LOCK_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("cannot be read")(error)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let owner = match file.read_to_string(&mut pid).map(|_| pid.trim().parse::<u32>()) {
                Ok(Ok(pid)) => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            Err(DataDirError::InUse {
                path: path.to_owned(),
                owner,
            })
        }
        Err(error) => Err(io("cannot be locked")(error.into())),
    }
}
