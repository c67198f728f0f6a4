//! A copy in a data directory.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use tracing::{info, warn};

use crate::data_dir::{self, DirImport, Identity, RestoringDir};
use crate::flags::Config;
use crate::server::embedded;
use crate::server::import::{CopiedStore, PartialCopy};
use crate::server::restore::check_space;
use backup::import::{Backlog, CopyOptions, Source, collecting, copy};
use backup::snapshot::{Importer, RestoreOptions, Spool, restore};
use engine::LogAndRows;
use engine::log::LogId;
use telemetry::metrics::Metrics;

/// A data directory with a copy in it, and its open store.
struct OpenedImport {
    target: RestoringDir,
    importing: DirImport,
    engine: LogAndRows,
    /// The events of the source from the time when the store was made.
    collected: Option<Backlog>,
}

/// Copies into the data directory, or continues a copy, and makes it a directory that a server can start on. The store is of the cluster
/// `cluster_id`, if there is one.
pub(super) async fn copy_into(
    config: &Config,
    source: &mut Source,
    (partial, cluster_id): (PartialCopy, Option<u64>),
    options: CopyOptions,
) -> anyhow::Result<CopiedStore> {
    let resumed = match partial {
        PartialCopy::Delete => None,
        PartialCopy::Continue | PartialCopy::ContinueOrDeleteRest => RestoringDir::resume(&config.data_dir)?,
    };
    let OpenedImport {
        target,
        importing,
        engine: LogAndRows { log, rows },
        collected,
    } = match resumed {
        Some(resumed) => resume(config, source, resumed).await?,
        None => begin(config, source, partial == PartialCopy::Delete).await?,
    };
    let spool = Spool::new(target.path());
    let importer = Importer::open(log, rows, &as_member(importing.member_id, &spool)).await?;
    let summary = copy(source, importer, (options, collected), &spool).await?;
    // One that another request has begun gets the id of this one.
    let cluster_id = cluster_id.unwrap_or(importing.cluster_id);
    target.finish(&Identity {
        format: data_dir::DIR_FORMAT,
        cluster_id,
        member_id: importing.member_id,
        log: Some(LogId(importing.log)),
    })?;
    Ok(CopiedStore { summary, cluster_id })
}

/// Opens a copy that is not complete.
async fn resume(
    config: &Config,
    source: &Source,
    (target, importing): (RestoringDir, DirImport),
) -> anyhow::Result<OpenedImport> {
    let path = target.path();
    ensure!(
        importing.source == source.cluster_id(),
        "data directory {} holds a copy of the cluster {:x}, and the endpoints are of {:x}: --restart deletes it",
        path.display(),
        importing.source,
        source.cluster_id()
    );
    ensure!(
        importing.format <= data_dir::DIR_FORMAT,
        "data directory {} holds a copy that a newer kubebrain began, in format {}: run that one, or --restart deletes the copy",
        path.display(),
        importing.format
    );
    // Earlier versions do not read what is written from now on.
    let importing = DirImport {
        format: data_dir::DIR_FORMAT,
        ..importing
    };
    target.set_importing(&importing)?;
    info!(data_dir = %path.display(), "continuing a copy");
    let metrics = Arc::new(Metrics::new(false));
    let log = Some(LogId(importing.log));
    let opened = embedded::open(config, path, log, None, &metrics).await;
    let engine = opened.context("cannot resume the copy; use --restart to discard it")?;
    Ok(OpenedImport {
        target,
        importing,
        engine,
        collected: None,
    })
}

/// Makes a store of a snapshot.
async fn begin(config: &Config, source: &mut Source, deletes: bool) -> anyhow::Result<OpenedImport> {
    let target = if deletes {
        RestoringDir::begin_again(&config.data_dir)?
    } else {
        RestoringDir::begin(&config.data_dir)?
    };
    let spool = Spool::new(target.path());
    let filled = collecting(source, &spool, async |source| fill(config, source, &target).await).await;
    match filled {
        Ok(((importing, engine), collected)) => Ok(OpenedImport {
            target,
            importing,
            engine,
            collected: Some(collected),
        }),
        Err(error) => {
            if let Err(left) = target.abandon() {
                warn!(
                    error = &left as &dyn std::error::Error,
                    "could not delete an incomplete store"
                );
            }
            Err(error)
        }
    }
}

async fn fill(config: &Config, source: &mut Source, target: &RestoringDir) -> anyhow::Result<(DirImport, LogAndRows)> {
    let path = target.path();
    let size = source.size().await?;
    check_space(path, size.saturating_add(size / 3))?;
    info!(data_dir = %path.display(), bytes = size, "copying the source");
    let spool = Spool::new(path);
    let file = source.snapshot(&spool).await?;
    let metrics = Arc::new(Metrics::new(false));
    let engine = embedded::open(config, path, None, None, &metrics).await?;
    let importing = DirImport {
        format: data_dir::DIR_FORMAT,
        source: source.cluster_id(),
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: engine.log.id().context("the log has no id")?.0,
    };
    let options = as_member(importing.member_id, &spool);
    let restored = restore(&file, engine.clone(), &options).await?;
    info!(
        revision = restored.revision,
        versions = restored.versions,
        "created a store from the snapshot"
    );
    target.set_importing(&importing)?;
    Ok((importing, engine))
}

fn as_member(member: u64, spool: &Spool) -> RestoreOptions {
    RestoreOptions {
        member,
        spool: Some(spool.clone()),
        ..RestoreOptions::default()
    }
}
