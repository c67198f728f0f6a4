//! A restore into a data directory.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tracing::{info, warn};

use super::{RestoredStore, SnapshotSource};
use crate::data_dir::{self, DataDirError, Identity, RestoringDir, RestoringFrom};
use crate::flags::Config;
use crate::server::embedded;
use crate::server::run::Lifecycle;
use backup::snapshot::{FileError, RestoreOptions, Spool, UnfitSnapshot};
use engine::LogAndRows;
use engine::log::LogId;
use telemetry::metrics::Metrics;

/// The space that a restore takes on disk, as a multiple of the snapshot's: the log, the rows, and rows that are being merged.
const RESTORE_SPACE_FACTOR: u64 = 3;

/// A data directory with a new store in it, and that store.
struct OpenedRestore {
    target: RestoringDir,
    from: RestoringFrom,
    engine: LogAndRows,
    /// True if it holds a part of the snapshot.
    is_begun: bool,
}

/// Returns the id of the cluster whose complete store a directory holds; `None` if it holds none. Changes nothing.
pub(super) fn existing(path: &Path) -> Result<Option<u64>, DataDirError> {
    if !path.is_dir() {
        return Ok(None);
    }
    match data_dir::inspect(path) {
        // Until the log is named nothing was acknowledged.
        Ok(identity) => Ok(identity.filter(|it| it.log.is_some()).map(|it| it.cluster_id)),
        // The restore continues with what there is, or refuses it.
        Err(DataDirError::Restoring { .. } | DataDirError::Foreign { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Restores the snapshot into the data directory, or continues a restore of it. The store is of the cluster `cluster_id`, if there is one.
pub(super) async fn restore_into(
    config: &Config,
    source: &SnapshotSource<'_>,
    cluster_id: Option<u64>,
    life: &Lifecycle,
) -> anyhow::Result<RestoredStore> {
    let opened = tokio::select! {
    biased;
    () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
    opened = Box::pin(open_directory(config, source)) => opened,
    };
    let OpenedRestore {
        target,
        from,
        engine,
        is_begun,
    } = opened?;
    let fill = async {
        let options = RestoreOptions {
            member: from.member_id,
            bump_revision: source.bump_revision,
            spool: Some(Spool::new(target.path())),
        };
        source.restore(engine, &options, is_begun).await
    };
    let filled = tokio::select! {
    biased;
    () = life.leave.cancelled() => match source.is_temporary {
        true => bail!("interrupted"),
        false => bail!("interrupted: the restore is incomplete; the same command continues it"),
    },
    filled = Box::pin(fill) => filled,
    };
    match filled {
        Ok(summary) => {
            // One that another request has begun gets the id of this one.
            let cluster_id = cluster_id.unwrap_or(from.cluster_id);
            target.finish(&Identity {
                format: data_dir::DIR_FORMAT,
                cluster_id,
                member_id: from.member_id,
                log: Some(LogId(from.log)),
            })?;
            Ok(RestoredStore { summary, cluster_id })
        }
        Err(error) if error.is::<FileError>() || error.is::<UnfitSnapshot>() => {
            abandon(target);
            Err(error)
        }
        Err(error) if source.is_temporary => Err(error),
        Err(error) => Err(error.context("the restore is incomplete: the same command continues it")),
    }
}

/// Opens what an interrupted restore of this snapshot has left, or a new store.
async fn open_directory(config: &Config, source: &SnapshotSource<'_>) -> anyhow::Result<OpenedRestore> {
    let metrics = Arc::new(Metrics::new(false));
    if let Some((target, from)) = RestoringDir::resume_restore(&config.data_dir, &source.identity)? {
        let log = Some(LogId(from.log));
        let engine = embedded::open(config, target.path(), log, None, &metrics).await;
        let engine = engine.with_context(|| {
            format!(
                "cannot resume the interrupted restore: try again, or delete {}",
                target.path().display()
            )
        })?;
        return Ok(OpenedRestore {
            target,
            from,
            engine,
            is_begun: true,
        });
    }
    let target = RestoringDir::begin(&config.data_dir)?;
    let opened = begin(config, source, &target, &metrics).await;
    match opened {
        Ok((from, engine)) => Ok(OpenedRestore {
            target,
            from,
            engine,
            is_begun: false,
        }),
        Err(error) => {
            abandon(target);
            Err(error)
        }
    }
}

/// Makes a new store in the directory, and records which snapshot is restored into it.
async fn begin(
    config: &Config,
    source: &SnapshotSource<'_>,
    target: &RestoringDir,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(RestoringFrom, LogAndRows)> {
    let bytes = source.file.size();
    check_space(target.path(), bytes)?;
    info!(data_dir = %target.path().display(), bytes, "restoring a snapshot");
    let engine = embedded::open(config, target.path(), None, None, metrics).await?;
    let from = RestoringFrom {
        format: data_dir::DIR_FORMAT,
        snapshot: source.identity,
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: engine.log.id().context("the log has no id")?.0,
    };
    target.set_restoring(&from)?;
    Ok((from, engine))
}

fn abandon(target: RestoringDir) {
    if let Err(left) = target.abandon() {
        warn!(
            error = &left as &dyn std::error::Error,
            "could not delete an incomplete store"
        );
    }
}

/// Refuses a directory whose file system has too little space: the log would wait for more.
pub(crate) fn check_space(path: &Path, size: u64) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
    // The restore leaves the reserve alone.
    let (free, needed) = (
        stat.f_bavail.saturating_mul(stat.f_frsize),
        size.saturating_mul(RESTORE_SPACE_FACTOR)
            .saturating_add(Spool::new(path).reserve()?),
    );
    ensure!(
        free >= needed,
        "{} has {free} bytes free, and a restore of this snapshot may take {needed}",
        path.display()
    );
    Ok(())
}
