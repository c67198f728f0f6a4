//! Snapshots in etcd's file format: the whole store at one revision, with all versions since the compacted revision, as a bbolt database
//! followed by a checksum.
//!
//! [`save`](save()) writes the state of a running store, [`SnapshotFile`] reads any such file, also of etcd, and [`restore`](restore())
//! makes a new store of it.
//!
//! Rows order versions by key, and the file orders them by revision: they are sorted in between, on disk.

use std::io;

use engine::rows::RowsError;

pub(crate) use compare::verify_since;
pub use file::{SnapshotFile, SnapshotStatus};
pub use import::{Importer, LeaseTime, NewestVersions, RevisionEvents};
pub use restore::{RestoreOptions, RestoreSummary, UnfitSnapshot, restore, resume};
pub(crate) use restore::{bumped, sum_revision};
pub use save::{SavedSnapshot, SnapshotContents, save};
pub use spool::{Spool, SpoolFile};
pub(crate) use version_sum::{SummedVersion, VersionChecksum};

mod compare;
mod file;
mod import;
mod restore;
mod restore_target;
mod save;
mod schema;
mod sort;
mod spool;
mod users;
pub mod version_sum;

/// The metadata of an answer to `Snapshot` that holds the revision, in decimal. Etcd sends none, and its messages have no field for it.
pub const REVISION_METADATA: &str = "kubebrain-snapshot-revision";

/// The reason why no snapshot could be written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The rows failed.
    #[error("read rows")]
    Rows(#[from] RowsError),
    /// There is no space for the file; the text says how much is missing, and where.
    #[error("{0}")]
    NoSpace(String),
    /// The file could not be written.
    #[error("write the snapshot")]
    Io(#[from] io::Error),
    /// The client is gone.
    #[error("cancelled")]
    Cancelled,
}

/// The reason why a file is no usable snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It has no checksum.
    #[error(
        "the snapshot has no checksum: it is truncated, or a copy of etcd's db file; --skip-hash-check accepts it anyway"
    )]
    NoChecksum,
    /// It is not what was written.
    #[error("the snapshot is damaged: its checksum is {found}, expected {expected}")]
    Checksum {
        /// The checksum of its content, in hexadecimal.
        found: String,
        /// The checksum at its end, in hexadecimal.
        expected: String,
    },
    /// It cannot be read as a database.
    #[error(transparent)]
    Database(#[from] bbolt::Error),
    /// It is a database, but not one of etcd.
    #[error("the snapshot is damaged: {0}")]
    Content(String),
    /// The file system returned an error.
    #[error("the snapshot cannot be read")]
    Io(#[from] io::Error),
}
