//! Errors of opening a log: one variant for each way to resolve it.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::is_full;
use super::page::{FORMAT_VERSION, PageError};

/// The reason why [`FileLog::open`](super::FileLog::open) refused. It changed nothing then.
#[derive(Debug, thiserror::Error)]
pub enum FileLogOpenError {
    /// The directory holds other files, but no log.
    #[error("{} holds {found:?} but no log: choose another data directory, or restore the file \"control\" of this one", dir.display())]
    NotALog {
        /// The directory that should be opened.
        dir: PathBuf,
        /// One of the names found in it.
        found: String,
    },
    /// Stored bytes are not what was written.
    #[error("{} is damaged at offset {offset}: {what}; restore the data directory from a copy", file.display())]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Offset of the first byte that cannot be trusted.
        offset: u64,
        /// The damage there.
        what: String,
    },
    /// A required file does not exist.
    #[error("{} is missing together with its records; restore the data directory from a copy", file.display())]
    Missing {
        /// The missing file.
        file: PathBuf,
    },
    /// A file belongs to another log.
    #[error("{} belongs to another log: move it away, or restore the data directory from a copy", file.display())]
    Foreign {
        /// The file that does not belong here.
        file: PathBuf,
    },
    /// There is none, but there are rows that come from one.
    #[error("{}: the log is missing, and the rows are incomplete without it: restore the whole data directory from one copy", dir.display())]
    Lost {
        /// The directory of the log.
        dir: PathBuf,
    },
    /// The rows come from another one.
    #[error("{} is another log, not the one that the rows come from: restore the whole data directory from one copy", dir.display())]
    OtherLog {
        /// The directory of the log.
        dir: PathBuf,
    },
    /// It lacks what is in the rows.
    #[error("{} ends before slot {last}, which the rows come from: the log was rolled back; restore the whole data directory from one copy", dir.display())]
    Behind {
        /// The directory of the log.
        dir: PathBuf,
        /// The slot that the log must have.
        last: u64,
    },
    /// Written by a newer program.
    #[error("{} has format version {version}, this version reads formats up to {FORMAT_VERSION}: start a newer one", file.display())]
    Newer {
        /// The newer file.
        file: PathBuf,
        /// Its format version.
        version: u32,
    },
    /// No space to write the end of the log anew.
    #[error("no space left in {}: free some, a few megabytes are enough", dir.display())]
    Full {
        /// The directory on the full file system.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refused an operation.
    #[error("cannot {action} {}: check its owner, its permissions and the disk", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl FileLogOpenError {
    pub(super) fn damaged(file: &Path, offset: impl Into<u64>, what: impl Into<String>) -> Self {
        FileLogOpenError::Damaged {
            file: file.to_owned(),
            offset: offset.into(),
            what: what.into(),
        }
    }

    /// For `map_err`: the failure of `action` on `path`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileLogOpenError {
        let path = path.to_owned();
        move |source| {
            if is_full(&source) {
                let dir = path.parent().map_or_else(|| path.clone(), Path::to_path_buf);
                return FileLogOpenError::Full { dir, source };
            }
            FileLogOpenError::Io { action, path, source }
        }
    }

    /// For `map_err`: the first page of `file` is not usable.
    pub(super) fn page(file: &Path) -> impl FnOnce(PageError) -> FileLogOpenError {
        let file = file.to_owned();
        move |error| match error {
            PageError::Damaged => FileLogOpenError::damaged(&file, 0u64, "its header fails its checksum"),
            PageError::Newer(version) => FileLogOpenError::Newer { file, version },
        }
    }
}
