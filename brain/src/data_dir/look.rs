//! A data directory that is only looked at: nothing is created or changed, and no server works in it meanwhile.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{DataDirError, Identity, LOCK, inspect};

/// A data directory in which nobody works as long as this is there.
#[derive(Debug)]
pub struct Look {
    path: PathBuf,
    identity: Identity,
    /// `None` in a copy that was made without the file: nobody works in it.
    _lock: Option<File>,
}

impl Look {
    /// Shuts servers out, and reads whose directory it is. Others may look at the same time.
    ///
    /// # Errors
    /// There is no store, it is not ours, or a server holds it.
    pub fn at(path: &Path) -> Result<Look, DataDirError> {
        let lock = shared_lock(path)?;
        let identity = inspect(path)?.ok_or_else(|| DataDirError::Missing {
            path: path.to_owned(),
            part: "a store is",
        })?;
        Ok(Look {
            path: path.to_owned(),
            identity,
            _lock: lock,
        })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the store.
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
    let mut file = match File::open(path.join(LOCK)) {
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
