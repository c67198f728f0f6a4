//! The data directory: its owner, and the lock that admits one process.
//!
//! Invariant: nothing is created or changed in a directory that is refused, and a directory without `IDENTITY_FILE` is accepted only if
//! it is empty.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use engine::log::LogId;
use runtime::kill_points;

pub use identity::Identity;
pub use look::LockedDataDir;
pub use restoring::{DirImport, RestoringDir, RestoringFrom};

mod identity;
mod look;
mod restoring;

/// The newest layout of the directory that this program reads and writes.
pub const DIR_FORMAT: u32 = 6;

/// The oldest layout that this program reads: in older ones, `IDENTITY_FILE` does not name the log. In this one, rows have journals. Up
/// to format 4, no value and no record of the log is compressed; up to format 5, no value with a dictionary.
pub const OLDEST_DIR_FORMAT: u32 = 3;

const IDENTITY_FILE: &str = "IDENTITY";
const IDENTITY_NEW_FILE: &str = "IDENTITY.new";
const LOCK_FILE: &str = "LOCK";
/// The directory of certificates that a member makes for itself.
const FIXTURES_DIR: &str = "fixtures";

/// Directory of the log.
pub const LOG_DIR: &str = "log";
/// Directory of the rows.
pub const ROWS_DIR: &str = "rows";
/// The rows while they are made.
const ROWS_NEW_DIR: &str = "rows.new";

/// A data directory that this process owns until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    /// Holds the lock; the kernel releases it when the process ends, for whatever reason.
    _lock: File,
}

/// The reason why a data directory is refused. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process, or another part of this one, uses it.
    #[error("data directory {} is in use by {owner}: stop that process first, or choose another --data-dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// `process <pid>` if known.
        owner: String,
    },
    /// It contains something else.
    #[error("data directory {} does not belong to kubebrain: it holds {found}; choose an empty --data-dir", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The contents found.
        found: String,
    },
    /// A restore into it was interrupted.
    #[error("data directory {} holds a part of a snapshot or of another store: finish it with `kubebrain snapshot restore` or `kubebrain import`, or choose another --data-dir", path.display())]
    Restoring {
        /// The directory.
        path: PathBuf,
    },
    /// It holds something, and a restore needs an empty one.
    #[error("data directory {} is not empty: it holds {found}; a snapshot is restored into a new --data-dir", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// The contents found.
        found: String,
    },
    /// A newer program wrote it.
    #[error("data directory {} has format {found}, newer than {DIR_FORMAT}, the newest known here: run a newer kubebrain", path.display())]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// An older program wrote it.
    #[error("data directory {} has format {found}, older than {OLDEST_DIR_FORMAT}, the oldest that this version reads: choose an empty --data-dir", path.display())]
    Older {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The file that identifies its owner cannot be decoded.
    #[error("{} is damaged: {what}; restore the data directory from a backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A part of it is missing. To recreate that part would be to return to an empty store under the same ids.
    #[error("data directory {}: {part} missing: restore the whole data directory from one copy, or choose an empty --data-dir", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
        /// The part, with its verb.
        part: &'static str,
    },
    /// It holds no store, but one must exist.
    #[error("data directory {} holds no store, but --initial-cluster-state=existing requires one: mount the volume with the data, restore a backup with `kubebrain snapshot restore`, or start an empty store with --initial-cluster-state=new", path.display())]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// It contains the store of another cluster than it must.
    #[error("data directory {} holds the store of cluster {found:x}, and --embedded-cluster-id is {wanted:x}: restore the directory of that cluster, or change the flag to continue with this store", path.display())]
    OtherStore {
        /// The directory.
        path: PathBuf,
        /// The cluster that the flag names.
        wanted: u64,
        /// The cluster of the store.
        found: u64,
    },
    /// It contains no store, and must contain that of a cluster.
    #[error("data directory {} holds no store, and --embedded-cluster-id is {wanted:x}: restore the directory of that cluster (is its volume mounted?), or remove the flag to start with an empty store", path.display())]
    LostStore {
        /// The directory.
        path: PathBuf,
        /// The cluster that the flag names.
        wanted: u64,
    },
    /// It contains another log.
    #[error("data directory {} holds another log than its {IDENTITY_FILE} file names: restore the whole data directory from one copy", path.display())]
    OtherLog {
        /// The directory.
        path: PathBuf,
    },
    /// The file system returned an error.
    #[error("data directory {} {action}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
}

impl DataDir {
    /// Opens the directory, or creates it with the identity that `fresh` returns, and locks it. If it is refused, nothing was
    /// changed in it.
    pub fn open(path: &Path, fresh: impl FnOnce() -> Identity) -> Result<DataDir, DataDirError> {
        let io = |action| {
            move |source| DataDirError::Io {
                path: path.to_owned(),
                action,
                source,
            }
        };
        create(path).map_err(io("cannot be created"))?;
        inspect(path)?;
        if let Some(warning) = loose_permission(path).map_err(io("cannot be read"))? {
            tracing::warn!(error = warning, "check file permission");
        }
        let mut lock = lock(path)?;
        // Another process may have changed it between the check and the lock.
        let identity = match inspect(path)? {
            Some(identity) => identity,
            None => {
                let identity = fresh();
                write(path, &identity).map_err(io("is not writable"))?;
                identity
            }
        };
        if let Err(error) = note_owner(&mut lock) {
            // The process id is only for the message to a second process: a full disk must not stop the process that can free
            // space.
            tracing::debug!(%error, "cannot write the process id into the lock file");
        }
        Ok(DataDir {
            path: path.to_owned(),
            identity,
            _lock: lock,
        })
    }

    /// Returns true if a store was begun in the directory. Changes nothing. Fails if it holds something else.
    pub fn holds_store(path: &Path) -> Result<bool, DataDirError> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // Until the log is named nothing was acknowledged.
            _ => Ok(inspect(path)?.is_some_and(|identity| identity.log.is_some())),
        }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stores durably which log is in the directory. Fails with [`DataDirError::OtherLog`] if another one is stored, or if the file
    /// system returns an error.
    pub fn set_log(&mut self, id: LogId) -> Result<(), DataDirError> {
        match self.identity.log {
            Some(stored) if stored == id => return Ok(()),
            Some(_) => {
                return Err(DataDirError::OtherLog {
                    path: self.path.clone(),
                });
            }
            None => {}
        }
        self.replace(Identity {
            log: Some(id),
            ..self.identity
        })
    }

    /// Stores durably that the directory has the newest layout, once it has. Earlier versions refuse it from now on.
    pub fn raise_format(&mut self) -> Result<(), DataDirError> {
        if self.identity.format == DIR_FORMAT {
            return Ok(());
        }
        tracing::info!(
            from = self.identity.format,
            to = DIR_FORMAT,
            "raised the format of the data directory: earlier versions refuse it"
        );
        self.replace(Identity {
            format: DIR_FORMAT,
            ..self.identity
        })
    }

    fn replace(&mut self, identity: Identity) -> Result<(), DataDirError> {
        write(&self.path, &identity).map_err(|source| DataDirError::Io {
            path: self.path.clone(),
            action: "is not writable",
            source,
        })?;
        self.identity = identity;
        Ok(())
    }

    /// Returns the identity of the store.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

/// Checks that a directory holds the store of the cluster `wanted`. Changes nothing.
pub fn expect(path: &Path, wanted: u64) -> Result<(), DataDirError> {
    let found = if path.is_dir() { inspect(path)? } else { None };
    let path = path.to_owned();
    match found.map(|identity| identity.cluster_id) {
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(DataDirError::OtherStore { path, wanted, found }),
        None => Err(DataDirError::LostStore { path, wanted }),
    }
}

/// Returns etcd's warning, in its words, if others than its owner have permissions in a directory. Etcd continues, and so does this
/// member: a mounted volume often belongs to a group. Everything below it is accessible to its owner alone.
fn loose_permission(path: &Path) -> io::Result<Option<String>> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    if mode == 0o700 {
        return Ok(None);
    }
    let letters: String = (0..9)
        .map(|bit| {
            if mode & (0o400 >> bit) == 0 {
                '-'
            } else {
                char::from(b"rwx"[bit % 3])
            }
        })
        .collect();
    Ok(Some(format!(
        "directory {:?} exist, but the permission is \"d{letters}\". The recommended permission is \"-rwx------\" to prevent possible unprivileged access to the data",
        path.display().to_string()
    )))
}

/// Creates the directory durably, unless it exists.
fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        created => created?,
    }
    sync_dir(path.parent().unwrap_or(path))
}

fn sync_dir(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    File::open(path)?.sync_all()
}

/// Returns the identity of a brain's directory, `None` for an empty one. Changes nothing. Fails if it is not a brain's, or lacks a part.
pub fn inspect(path: &Path) -> Result<Option<Identity>, DataDirError> {
    let io = |source| DataDirError::Io {
        path: path.to_owned(),
        action: "cannot be read",
        source,
    };
    let file = path.join(IDENTITY_FILE);
    match fs::read(&file) {
        Ok(bytes) => {
            let identity = identity::decode(&bytes).map_err(|refusal| refusal.at(path, &file))?;
            require_parts(path, &identity)?;
            return Ok(Some(identity));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let found = contents(path)?;
    let found = match found.first() {
        None => return Ok(None),
        Some(_) if found.iter().any(|name| name == restoring::RESTORING_FILE) => {
            return Err(DataDirError::Restoring { path: path.to_owned() });
        }
        Some(first) if first == "member" => "data of etcd (member)".to_owned(),
        Some(first) => format!("{first:?} but no {IDENTITY_FILE} file"),
    };
    Err(DataDirError::Foreign {
        path: path.to_owned(),
        found,
    })
}

/// Returns the names in a directory, in order, but those that an empty one may hold.
fn contents(path: &Path) -> Result<Vec<String>, DataDirError> {
    let io = |source| DataDirError::Io {
        path: path.to_owned(),
        action: "cannot be read",
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // A new file system contains lost+found, and certificates of --auto-tls are made before anything else; the other files remain
        // from a first start that was interrupted.
        if ![LOCK_FILE, IDENTITY_FILE, IDENTITY_NEW_FILE, FIXTURES_DIR, "lost+found"]
            .iter()
            .any(|ours| name == *ours)
        {
            found.push(name.to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Refuses a directory that lacks parts that its identity requires.
fn require_parts(path: &Path, identity: &Identity) -> Result<(), DataDirError> {
    if identity.log.is_none() {
        return Ok(());
    }
    for (part, is_missing) in [(LOG_DIR, "the log is"), (ROWS_DIR, "the rows are")] {
        let is_there = match fs::read_dir(path.join(part)) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(source) => {
                return Err(DataDirError::Io {
                    path: path.to_owned(),
                    action: "cannot be read",
                    source,
                });
            }
        };
        if !is_there {
            return Err(DataDirError::Missing {
                path: path.to_owned(),
                part: is_missing,
            });
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let io = |source| DataDirError::Io {
        path: path.to_owned(),
        action: "is not writable",
        source,
    };
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // The target of a link may belong to someone else.
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path.join(LOCK_FILE))
        .map_err(io)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // The process id is only for the message: an unreadable file names no process.
            let owner = match file.read_to_string(&mut pid).map(|_| pid.trim().parse::<u32>()) {
                Ok(Ok(pid)) => format!("process {pid}"),
                _ => "another process".to_owned(),
            };
            Err(DataDirError::InUse {
                path: path.to_owned(),
                owner,
            })
        }
        Err(error) => Err(DataDirError::Io {
            path: path.to_owned(),
            action: "cannot be locked",
            source: error.into(),
        }),
    }
}

fn note_owner(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// Writes the identity atomically.
fn write(path: &Path, identity: &Identity) -> io::Result<()> {
    let new = path.join(IDENTITY_NEW_FILE);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&identity::encode(identity))?;
    file.sync_all()?;
    kill_points::reach("identity-written");
    fs::rename(&new, path.join(IDENTITY_FILE))?;
    sync_dir(path)
}

#[cfg(test)]
mod tests;
