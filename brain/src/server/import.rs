//! `kubebrain import`: copies another etcd into a new store, and follows it.

use std::io::{self, Write as _};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::flags::{Config, ImportCommand, Storage};
use crate::server::restore::describe_compaction;
use crate::server::run::Lifecycle;
use backup::import::{CopySummary, FinishCondition, Source, SourceCompacted};

mod directory;
mod tikv;

pub(super) use tikv::IMPORTING_REGISTER;

/// How often a copy is begun again because the source has deleted history that is needed.
const MAX_COPY_RESTARTS: u32 = 3;

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
    let leave = life.leave.clone();
    let copied = tokio::select! {
        biased;
        () = leave.cancelled() => Err(anyhow::anyhow!("interrupted: the copy is incomplete; the same command continues it")),
        copied = Box::pin(import(config, command, &mut life, may_finish)) => copied,
    };
    life.end().await?;
    writeln!(io::stdout(), "{}", describe(&copied?)).context("print")
}

fn describe(copied: &CopySummary) -> String {
    let CopySummary {
        revision,
        compacted,
        keys,
        leases,
        checksum,
    } = copied;
    let compacted = describe_compaction(*compacted);
    format!(
        "imported revision {revision}, {compacted}: {keys} keys, {leases} leases, equal to the source: checksum {checksum:032x}"
    )
}

async fn import(
    config: &Config,
    command: &ImportCommand,
    life: &mut Lifecycle,
    may_finish: watch::Receiver<bool>,
) -> anyhow::Result<CopySummary> {
    let mut source = Source::open(command.source.clone()).await?;
    source.check_alarms().await?;
    let tikv = match &config.storage {
        Storage::Embedded => None,
        Storage::Tikv(options) => Some(tikv::attach(options, life).await?),
    };
    let mut restarts = 0;
    loop {
        let orders = FinishCondition {
            follows: command.follows,
            may_finish: may_finish.clone(),
            until: command.until_revision,
        };
        let is_new = command.restarts || restarts > 0;
        let copied = match &tikv {
            None => directory::copy_into(config, &mut source, is_new, orders).await,
            Some(tikv) => tikv::copy_into(tikv, &config.initial_cluster_token, &mut source, is_new, orders).await,
        };
        match copied {
            Err(error) if error.is::<SourceCompacted>() && restarts < MAX_COPY_RESTARTS => {
                restarts += 1;
                warn!(error = format!("{error:#}"), "restarting the copy with a new snapshot");
            }
            copied => return copied,
        }
    }
}
