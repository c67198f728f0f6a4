//! Backups in object stores and directories: parts of a snapshot, compressed and perhaps encrypted, and a manifest for each backup.
//!
//! Below a destination there are `manifests/NAME.json` and `parts/NAME/…`. A manifest is written after all its parts and deleted before
//! them, so what has no manifest is no backup. Parts are read in order, and each is compared with the manifest. Beside them there are
//! [archives](archive) of what happened after a backup.
//!
//! It must not know how a store is served, nor what is in a snapshot.

pub use destination::{DestinationError, DestinationOptions, Variables};
pub use key::{EncryptionKey, KeyId};
pub use last_failure::{LastFailure, shortened};
pub use manifest::{BackupKind, BackupName, Manifest, NotAName};
pub use repository::{DeletedOrphans, Repository};
pub use upload::{CreateOptions, SnapshotOrigin};

pub mod archive;
mod destination;
mod download;
mod key;
mod last_failure;
mod manifest;
mod part;
mod repository;
mod upload;

#[cfg(test)]
mod tests;

/// An object of a backup that cannot be read, or is not what was written.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It does not exist.
    #[error("{object} is missing")]
    Missing { object: String },
    /// It is not what was written.
    #[error("{object} is damaged: {what}")]
    Damaged { object: String, what: String },
    /// It was written by a newer program.
    #[error("{object} has format {found}, and this program reads formats up to {newest}")]
    Newer { object: String, found: u32, newest: u32 },
    /// It is encrypted, and its key was not given.
    #[error("{object} is encrypted with the key {key}, and {given} given")]
    NoKey { object: String, key: KeyId, given: String },
    /// The bucket, the container or the directory of all objects does not exist: nothing is known about the object.
    #[error("cannot access {object}: the bucket, container or directory of the destination does not exist")]
    NoDestination { object: String },
    /// The store failed, however often it was asked.
    #[error("cannot access {object}")]
    Store {
        object: String,
        #[source]
        source: object_store::Error,
    },
}

impl ObjectError {
    /// Tells what does not exist from a failure of the store. [`Repository::or_missing`] tells if that is the object or the bucket.
    fn or_missing(self) -> Self {
        match self {
            ObjectError::Store {
                object,
                source: object_store::Error::NotFound { .. },
            } => ObjectError::Missing { object },
            other => other,
        }
    }

    fn no_key(object: &str, key: KeyId, given: &[EncryptionKey]) -> Self {
        let ids: Vec<_> = given.iter().map(|key| key.id().to_string()).collect();
        let given = match ids.as_slice() {
            [] => "no key was".to_owned(),
            [id] => format!("only the key {id} was"),
            ids => format!("only the keys {} were", ids.join(", ")),
        };
        ObjectError::NoKey {
            object: object.to_owned(),
            key,
            given,
        }
    }
}
