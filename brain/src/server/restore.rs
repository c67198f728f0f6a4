//! Makes a new store of a snapshot or of a backup, in a data directory or below a key prefix of TiKV.

use std::path::Path;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use crate::flags::{AttemptOptions, Config, Storage};
use crate::server::backup::{ArchivedChanges, BackupReader};
use crate::server::run::Lifecycle;
use backup::snapshot::{RestoreOptions, RestoreSummary, SnapshotFile, Spool, restore, resume};
use engine::LogAndRows;
use etcd_types::types::Revision;

mod directory;
mod result;
mod tikv;

pub(crate) use directory::check_space;
pub(super) use result::{RestoreResult, write as write_result};

/// A new store that is wanted.
pub(super) struct RestoreRequest<'a> {
    pub(super) input: RestoreInput<'a>,
    /// Changes that are added to the snapshot.
    pub(super) changes: Option<&'a ArchivedChanges>,
    /// The number by which the newest revision is raised; 0 changes nothing.
    pub(super) bump_revision: u64,
    /// The id of its cluster; `None` for a random one.
    pub(super) cluster_id: Option<u64>,
    /// True if a part of another snapshot below a key prefix is deleted. One in a directory always is.
    pub(super) starts_over: bool,
    /// True if the store is deleted in the end, whatever comes of it.
    pub(super) is_temporary: bool,
}

/// A store that was made.
pub(super) struct RestoredStore {
    pub(super) summary: RestoreSummary,
    /// The id of its cluster.
    pub(super) cluster_id: u64,
}

/// The snapshot that a new store is made of.
pub(super) enum RestoreInput<'a> {
    /// A file.
    File { path: &'a Path, skip_hash_check: bool },
    /// A backup, which is read into a temporary file below a directory. If it `is_checked`, all that is in the snapshot is read before the
    /// restore, and compared with the manifest.
    Backup {
        reader: &'a BackupReader,
        dir: &'a Path,
        is_checked: bool,
    },
}

impl RestoreInput<'_> {
    /// Opens the snapshot and reads all of it, for its checksum.
    async fn open(&self, life: &Lifecycle) -> anyhow::Result<SnapshotFile> {
        match *self {
            RestoreInput::File { path, skip_hash_check } => open_snapshot(path, skip_hash_check, life).await,
            RestoreInput::Backup {
                reader,
                dir,
                is_checked,
            } => {
                let spool = Spool::new(dir);
                let read = async {
                    match is_checked {
                        true => Ok(reader.read_checked(&spool).await?.0),
                        false => reader.read(&spool).await,
                    }
                };
                tokio::select! {
                biased;
                () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
                file = Box::pin(read) => file,
                }
            }
        }
    }
}

impl std::fmt::Display for RestoreInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreInput::File { path, .. } => path.display().fmt(f),
            RestoreInput::Backup { reader, .. } => write!(f, "the backup {}", reader.manifest.name),
        }
    }
}

/// Returns the id of the cluster whose complete store is where the flags say; `None` if there is none.
pub(super) async fn existing(config: &Config) -> anyhow::Result<Option<u64>> {
    match &config.storage {
        Storage::Embedded => Ok(directory::existing(&config.data_dir)?),
        Storage::Tikv(options) => tikv::existing(config, options).await,
    }
}

/// Returns the id of the cluster of the store that is made for a request: the same one in each attempt. `None` if there is no request, and the
/// id is random.
pub(super) fn requested_cluster_id(attempts: &AttemptOptions) -> Option<u64> {
    let request = attempts.request_id.as_ref()?;
    let digest = Sha256::digest(format!("kubebrain restore {request}"));
    let (id, _) = digest.split_first_chunk()?;
    Some(u64::from_be_bytes(*id))
}

/// Makes a new store where the flags say.
pub(super) async fn make_store(
    config: &Config,
    request: &RestoreRequest<'_>,
    life: &mut Lifecycle,
) -> anyhow::Result<RestoredStore> {
    match &config.storage {
        Storage::Embedded => {
            let source = open_and_hash(request, life).await?;
            directory::restore_into(config, &source, request.cluster_id, life).await
        }
        Storage::Tikv(options) => tikv::restore_into(config, options, request, life).await,
    }
}

/// Opens the snapshot, and returns the SHA-256 of its database as well.
async fn open_and_hash<'a>(request: &RestoreRequest<'a>, life: &Lifecycle) -> anyhow::Result<SnapshotSource<'a>> {
    let file = request.input.open(life).await?;
    let hashed = interruptible(life, move || Ok((file.digest()?, file))).await;
    let (digest, file) = hashed.with_context(|| format!("read {}", request.input))?;
    Ok(SnapshotSource {
        file,
        identity: request.changes.map_or(digest, |changes| changes.identity(&digest)),
        changes: request.changes,
        bump_revision: request.bump_revision,
        is_temporary: request.is_temporary,
    })
}

/// Opens a file and reads all of it, for its checksum.
pub(super) async fn open_snapshot(
    path: &Path,
    skip_hash_check: bool,
    life: &Lifecycle,
) -> anyhow::Result<SnapshotFile> {
    let file = path.to_owned();
    let opened = interruptible(life, move || Ok(SnapshotFile::open(&file, skip_hash_check)?)).await;
    opened.with_context(|| format!("open {}", path.display()))
}

/// Does work that blocks a thread, until a signal comes.
pub(super) async fn interruptible<T: Send + 'static>(
    life: &Lifecycle,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::select! {
    biased;
    () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
    done = tokio::task::spawn_blocking(work) => done?,
    }
}

impl std::fmt::Display for RestoredStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RestoreSummary {
            revision,
            compacted,
            versions,
            leases,
        } = self.summary;
        let compacted = describe_compaction(compacted);
        write!(
            f,
            "restored revision {revision}, {compacted}: {versions} versions, {leases} leases"
        )
    }
}

/// Says up to where a store is compacted; it is not if the revision is not positive.
pub(crate) fn describe_compaction(compacted: Revision) -> String {
    match compacted {
        1.. => format!("compacted to {compacted}"),
        _ => "not compacted".to_owned(),
    }
}

/// The snapshot that is restored.
struct SnapshotSource<'a> {
    file: SnapshotFile,
    /// SHA-256 of the database, or of that and the point that is restored: an interrupted restore continues with the same one alone.
    identity: [u8; 32],
    changes: Option<&'a ArchivedChanges>,
    bump_revision: u64,
    is_temporary: bool,
}

impl SnapshotSource<'_> {
    /// Makes a store of it, or continues with one that is begun.
    async fn restore(
        &self,
        engine: LogAndRows,
        options: &RestoreOptions,
        is_begun: bool,
    ) -> anyhow::Result<RestoreSummary> {
        match self.changes {
            Some(changes) => changes.restore(&self.file, engine, options, is_begun).await,
            None if is_begun => resume(&self.file, engine, options).await,
            None => restore(&self.file, engine, options).await,
        }
    }
}
