//! The result of `kubebrain backup create`, for programs.

use serde::Serialize;

use backup_repository::{BackupName, Manifest};

/// A backup that was made. Its fields are part of the interface: the operator reads them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupResult<'a> {
    name: &'a BackupName,
    /// The time at which it began.
    time: &'a str,
    revision: i64,
    /// The id of the cluster, in hexadecimal.
    cluster_id: &'a str,
    /// The length of the snapshot, and its SHA-256.
    snapshot_bytes: u64,
    sha256: String,
    /// Bytes of all its parts.
    stored_bytes: u64,
    /// The id of the key that it is encrypted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    encryption_key_id: Option<String>,
    /// True if it was read again.
    verified: bool,
}

impl<'a> BackupResult<'a> {
    pub(super) fn new(manifest: &'a Manifest, verified: bool) -> Self {
        Self {
            name: &manifest.name,
            time: &manifest.time,
            revision: manifest.revision,
            cluster_id: &manifest.cluster_id,
            snapshot_bytes: manifest.snapshot.bytes,
            sha256: manifest.snapshot.sha256.to_string(),
            stored_bytes: manifest.stored_bytes(),
            encryption_key_id: manifest.encryption.map(|encryption| encryption.key_id.to_string()),
            verified,
        }
    }
}
