//! `kubebrain import`: copies another etcd into a new store, and follows it.

use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::data_dir::{self, Identity, Importing, Restoring};
use crate::flags::{Config, ImportCommand, Storage};
use crate::import::{Compacted, Copied, Orders, Source, copy};
use crate::log::{FileLog, Log as _, LogId};
use crate::metrics::Metrics;
use crate::rows::fjall::FjallRows;
use crate::server::embedded;
use crate::server::run::Lifecycle;
use crate::server::snapshot::check_space;
use crate::snapshot::{Importer, Spool, restore};

/// How often a copy is begun again because the source has deleted history that is needed.
const RESTARTS: u32 = 3;

/// Runs the subcommand, and ends. A signal interrupts it; when started again it continues.
pub(crate) async fn run(config: &Config, command: &ImportCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let (finish, may_finish) = watch::channel(!command.follows);
    let mut switched = signal(SignalKind::user_defined1()).context("listen to SIGUSR1")?;
    let stop = life.stop.clone();
    life.tasks.spawn("SIGUSR1", async move {
        loop {
            tokio::select! {
                _ = switched.recv() => {
                    info!("finishing the copy");
                    finish.send_replace(true);
                }
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
    let copied = tokio::select! {
        biased;
        () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted: the copy is not complete; the same command goes on with it")),
        copied = Box::pin(import(config, command, may_finish)) => copied,
    };
    life.end().await?;
    writeln!(io::stdout(), "{}", describe(&copied?)).context("print")
}

fn describe(copied: &Copied) -> String {
    let Copied {
        revision,
        compacted,
        keys,
        leases,
        checksum,
    } = copied;
    format!(
        "imported revision {revision}, compacted to {compacted}: {keys} keys, {leases} leases, equal to the source: checksum {checksum:032x}"
    )
}

async fn import(config: &Config, command: &ImportCommand, may_finish: watch::Receiver<bool>) -> anyhow::Result<Copied> {
    let mut source = Source::open(command.source.clone()).await?;
    source.check_alarms().await?;
    let mut restarts = 0;
    loop {
        let orders = Orders {
            may_finish: may_finish.clone(),
            until: command.until_revision,
        };
        let is_new = command.restarts || restarts > 0;
        let copied = match &config.storage {
            Storage::Embedded => into_directory(config, &mut source, is_new, orders).await,
            Storage::Tikv(_) => bail!("not yet"),
        };
        match copied {
            Err(error) if error.is::<Compacted>() && restarts < RESTARTS => {
                restarts += 1;
                warn!(
                    error = format!("{error:#}"),
                    "the copy is begun again with a new snapshot"
                );
            }
            copied => return copied,
        }
    }
}

/// A data directory with a copy in it, and its open store.
struct Opened {
    target: Restoring,
    importing: Importing,
    engine: (FileLog, FjallRows),
}

async fn into_directory(config: &Config, source: &mut Source, is_new: bool, orders: Orders) -> anyhow::Result<Copied> {
    let resumed = if is_new {
        None
    } else {
        Restoring::resume(&config.data_dir)?
    };
    let Opened {
        target,
        importing,
        engine: (log, rows),
    } = match resumed {
        Some(resumed) => resume(config, source, resumed).await?,
        None => begin(config, source, is_new).await?,
    };
    let importer = Importer::open(log, rows, importing.member_id).await?;
    let copied = copy(source, importer, orders, &Spool::new(target.path())).await?;
    target.finish(&Identity {
        format: data_dir::FORMAT,
        cluster_id: importing.cluster_id,
        member_id: importing.member_id,
        log: Some(LogId(importing.log)),
    })?;
    Ok(copied)
}

/// Opens a copy that is not complete.
async fn resume(
    config: &Config,
    source: &Source,
    (target, importing): (Restoring, Importing),
) -> anyhow::Result<Opened> {
    let path = target.path();
    ensure!(
        importing.source == source.cluster_id(),
        "data directory {} holds a copy of the cluster {:x}, and the endpoints are of {:x}: --restart deletes it",
        path.display(),
        importing.source,
        source.cluster_id()
    );
    info!(data_dir = %path.display(), "going on with a copy");
    let metrics = Arc::new(Metrics::new(false));
    let log = Some(LogId(importing.log));
    let opened = embedded::open(config, (path, log), None, &metrics).await;
    let engine = opened.context("the copy cannot be gone on with: --restart deletes it")?;
    Ok(Opened {
        target,
        importing,
        engine,
    })
}

/// Makes a store of a snapshot.
async fn begin(config: &Config, source: &mut Source, deletes: bool) -> anyhow::Result<Opened> {
    let target = if deletes {
        Restoring::begin_again(&config.data_dir)?
    } else {
        Restoring::begin(&config.data_dir)?
    };
    match fill(config, source, &target).await {
        Ok((importing, engine)) => Ok(Opened {
            target,
            importing,
            engine,
        }),
        Err(error) => {
            if let Err(left) = target.abandon() {
                warn!(error = &left as &dyn std::error::Error, "an incomplete store is left");
            }
            Err(error)
        }
    }
}

async fn fill(
    config: &Config,
    source: &mut Source,
    target: &Restoring,
) -> anyhow::Result<(Importing, (FileLog, FjallRows))> {
    let path = target.path();
    let size = source.size().await?;
    check_space(path, size)?;
    info!(data_dir = %path.display(), bytes = size, "copying the source");
    let file = source.snapshot(&Spool::new(path)).await?;
    let metrics = Arc::new(Metrics::new(false));
    let (log, rows) = embedded::open(config, (path, None), None, &metrics).await?;
    let importing = Importing {
        source: source.cluster_id(),
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: log.id().context("the log has no id")?.0,
    };
    let restored = restore(&file, (log.clone(), rows.clone()), importing.member_id).await?;
    info!(
        revision = restored.revision,
        versions = restored.versions,
        "made a store of the snapshot"
    );
    target.set_importing(&importing)?;
    Ok((importing, (log, rows)))
}
