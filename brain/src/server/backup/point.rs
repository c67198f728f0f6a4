//! The point that a store is restored to: a backup, and the archived changes after it.

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use tracing::info;

use super::{BackupReader, of_one_cluster};
use crate::flags::{BackupChoice, RestorePoint};
use backup::archive::{Replay, ReplayOptions};
use backup::snapshot::{RestoreOptions, RestoreSummary, SnapshotFile, restore, resume};
use backup_repository::archive::{ChainError, ClusterArchive, SegmentName, path, reach};
use backup_repository::{EncryptionKey, Manifest, ObjectError, Repository};
use engine::LogAndRows;
use etcd_types::types::Revision;
use runtime::kill_points;

/// The changes of an archive after a backup.
pub(in crate::server) struct ArchivedChanges {
    repository: Repository,
    keys: Vec<EncryptionKey>,
    cluster: String,
    segments: Vec<SegmentName>,
    /// Bytes of their objects.
    bytes: u64,
    /// The revision of the backup.
    base: Revision,
    /// The revision to reach.
    goal: Revision,
}

/// Returns the backup of a point, and the changes after it if there is a point other than the backup's own. Fails if the archive does not
/// lead to it.
pub(super) async fn choose(
    repository: Repository,
    backup: &BackupChoice,
    point: RestorePoint,
    keys: Vec<EncryptionKey>,
) -> anyhow::Result<(BackupReader, Option<ArchivedChanges>)> {
    if point == RestorePoint::Backup {
        return Ok((BackupReader::open(repository, backup, keys).await?, None));
    }
    let candidates = match backup {
        BackupChoice::Latest => of_one_cluster(&repository).await?,
        BackupChoice::Named(name) => vec![repository.manifest(name).await?],
    };
    let newest = candidates.last().context("the destination has no backup")?;
    let archive = repository.archive(&newest.cluster_id).await?;
    let spans = archive.spans();
    let goal = match point {
        RestorePoint::Revision(revision) => revision,
        RestorePoint::Time(time) => repository.revision_at(&archive, time, &keys).await?,
        RestorePoint::Backup | RestorePoint::End => {
            let end = spans.last().map_or(0, |span| span.last);
            end.max(newest.revision)
        }
    };
    let before = candidates.into_iter().filter(|manifest| manifest.revision <= goal);
    let base = before.max_by_key(|manifest| manifest.revision);
    let base = base.with_context(|| format!("no backup is of revision {goal} or an earlier one"))?;
    let segments = match path(&spans, base.revision, goal) {
        Ok(segments) => segments,
        Err(error) => return Err(explain(&repository, &archive, error).await),
    };
    info!(backup = %base.name, segments = segments.len(), goal, "restoring a backup and the changes after it");
    let changes = ArchivedChanges {
        repository: repository.clone(),
        keys: keys.clone(),
        cluster: base.cluster_id.clone(),
        bytes: archive.bytes_of(&segments),
        segments,
        base: base.revision,
        goal,
    };
    let reader = BackupReader {
        repository,
        manifest: base,
        keys,
    };
    Ok((reader, Some(changes)))
}

/// Adds to an error whether segments are missing, or were never written.
async fn explain(repository: &Repository, archive: &ClusterArchive, error: ChainError) -> anyhow::Error {
    let ChainError::Lacks { from, to } = error else {
        return error.into();
    };
    let spans = archive.spans();
    let Some(next) = spans.iter().find(|span| span.first == to + 1) else {
        return error.into();
    };
    match repository.segment_header(&archive.cluster, next.segments[0]).await {
        Ok(header) if header.previous.is_none() => {
            let begin = next.first;
            anyhow::Error::from(error).context(format!(
                "the archive begins again at revision {begin}: those before were not archived"
            ))
        }
        Ok(_) => {
            let name = SegmentName { first: from, last: to };
            let object = format!("archive/{}/{name}", archive.cluster);
            let text = format!("{object} is missing, or several segments with these revisions: {error}");
            anyhow::Error::from(ObjectError::Missing { object }).context(text)
        }
        Err(failed) => failed.into(),
    }
}

impl ArchivedChanges {
    /// Returns all changes that follow a backup without a gap. Fails if a segment is missing before later ones.
    pub(super) async fn after(
        repository: &Repository,
        manifest: &Manifest,
        keys: &[EncryptionKey],
    ) -> anyhow::Result<Self> {
        let (cluster, base) = (&manifest.cluster_id, manifest.revision);
        let archive = repository.archive(cluster).await?;
        let spans = archive.spans();
        let goal = reach(&spans, base);
        if let Some(later) = spans.iter().find(|span| span.first > goal) {
            let header = repository.segment_header(cluster, later.segments[0]).await?;
            // Otherwise the archive began anew there.
            if header.previous.is_some_and(|previous| previous > base) {
                let (from, to) = (goal + 1, later.first - 1);
                return Err(explain(repository, &archive, ChainError::Lacks { from, to }).await);
            }
        }
        let segments = path(&spans, base, goal)?;
        Ok(Self {
            repository: repository.clone(),
            keys: keys.to_vec(),
            cluster: cluster.clone(),
            bytes: archive.bytes_of(&segments),
            segments,
            base,
            goal,
        })
    }

    /// Returns true if the archive has nothing after the backup.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the revision of the backup with all the changes.
    pub(super) fn goal(&self) -> Revision {
        self.goal
    }

    /// Returns the bytes of the segments, as they are stored.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads all segments; returns a line about them if there are any.
    pub(super) async fn verify(&self) -> anyhow::Result<String> {
        if self.segments.is_empty() {
            return Ok(String::new());
        }
        for name in &self.segments {
            let read = self.repository.read_segment(&self.cluster, *name, &self.keys).await;
            read.context("read the archive")?;
        }
        let Self {
            segments, base, goal, ..
        } = self;
        Ok(format!(
            "verified the archive after it: revisions {} to {goal}, {} segments\n",
            base + 1,
            segments.len()
        ))
    }

    /// Returns what identifies a restore of a snapshot, with this digest, to this point.
    pub(in crate::server) fn identity(&self, snapshot: &[u8; 32]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(snapshot);
        hasher.update(b"archive");
        hasher.update(self.goal.to_be_bytes());
        hasher.finalize().into()
    }

    /// Makes a store of a snapshot and these changes, or continues with one that is begun.
    pub(in crate::server) async fn restore(
        &self,
        file: &SnapshotFile,
        engine: LogAndRows,
        options: &RestoreOptions,
        is_begun: bool,
    ) -> anyhow::Result<RestoreSummary> {
        let snapshot = RestoreOptions {
            bump_revision: 0,
            ..options.clone()
        };
        if !is_begun {
            restore(file, engine.clone(), &snapshot).await?;
        } else if Replay::reached(engine.clone(), &snapshot).await? <= self.base {
            resume(file, engine.clone(), &snapshot).await?;
        }
        let replay = ReplayOptions {
            restore: snapshot,
            base: self.base,
            goal: self.goal,
            bump_revision: options.bump_revision,
        };
        let mut replay = Box::pin(Replay::open(engine, replay)).await?;
        for name in &self.segments {
            let read = self.repository.read_segment(&self.cluster, *name, &self.keys).await;
            let segment = read.context("read the archive")?;
            info!(segment = %name, "adding a segment of the archive");
            replay.apply(segment.content).await?;
            kill_points::reach("archive-segment-added");
        }
        replay.finish().await
    }
}
