//! The result of a restore, for programs.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use backup_repository::BackupName;
use etcd_types::types::Revision;

/// A store that was made of a snapshot, a backup or a running etcd, or that existed already. Its fields are part of the interface: the operator reads them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::server) struct RestoreResult {
    /// True if the store existed, and nothing was changed.
    existed: bool,
    /// True if an earlier attempt for the same request made it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    same_request: bool,
    /// The id of the cluster of the store, in hexadecimal.
    cluster_id: String,
    /// The backup that it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<BackupName>,
    /// Its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<Revision>,
    /// The revision of its source, if it lacks the newest ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_revision: Option<Revision>,
}

impl RestoreResult {
    /// A new store, made of this backup if it was one.
    pub(in crate::server) fn made(cluster_id: u64, revision: Revision, name: Option<&BackupName>) -> Self {
        Self {
            existed: false,
            same_request: false,
            cluster_id: format!("{cluster_id:016x}"),
            name: name.cloned(),
            revision: Some(revision),
            source_revision: None,
        }
    }

    /// The same store, which lacks the newest revisions of its source.
    pub(in crate::server) fn behind(self, source: Option<Revision>) -> Self {
        Self {
            source_revision: source,
            ..self
        }
    }

    /// The complete store of this cluster, for a request that makes one of `wanted`. Returned with the text to print: nothing was done, in
    /// the past tense.
    pub(in crate::server) fn existed(cluster_id: u64, wanted: Option<u64>, done: &str) -> (Self, String) {
        let same_request = wanted == Some(cluster_id);
        let result = Self {
            existed: true,
            same_request,
            cluster_id: format!("{cluster_id:016x}"),
            name: None,
            revision: None,
            source_revision: None,
        };
        let text = match same_request {
            true => format!("nothing {done}: an earlier attempt made the store of cluster {cluster_id:016x}\n"),
            false => format!("nothing {done}: there is the store of cluster {cluster_id:016x} already\n"),
        };
        (result, text)
    }
}

/// Writes a result into a file, which may exist: Kubernetes mounts the one that it reads.
pub(in crate::server) fn write(result: &impl Serialize, file: &Path) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(result)?;
    line.push(b'\n');
    fs::write(file, line).with_context(|| format!("write the result to {}", file.display()))
}
