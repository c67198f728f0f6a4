//! `kubebrain import`: copies another etcd into a new store, and follows it.

use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::flags::{Config, ImportCommand, Storage};
use crate::server::ports;
use crate::server::restore::{self, RestoreResult, describe_compaction, requested_cluster_id, write_result};
use crate::server::run::Lifecycle;
use backup::import::{CopyOptions, CopySummary, Source, SourceCompacted};
use net::http::page;
use telemetry::metrics::{ImportMetrics, Metrics};

mod cutover;
mod directory;
mod tikv;

pub(super) use tikv::IMPORTING_REGISTER;

/// How often a copy is begun again because the source has deleted history that is needed.
const MAX_COPY_RESTARTS: u32 = 3;

/// The use of an incomplete copy that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartialCopy {
    /// A copy of this source is continued. Anything else is refused.
    Continue,
    /// The same, but what an interrupted command has left is deleted if nothing can continue with it.
    ContinueOrDeleteRest,
    /// It is deleted.
    Delete,
}

/// A store that is complete.
struct CopiedStore {
    summary: CopySummary,
    /// The id of its cluster.
    cluster_id: u64,
}

/// Runs the subcommand, and ends. A signal interrupts it; when started again it continues.
pub(crate) async fn run(config: &Config, command: &ImportCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let progress = serve_progress(config, &mut life)?;
    let may_finish = cutover::may_finish(command, &mut life)?;
    let leave = life.leave.clone();
    let imported = tokio::select! {
        biased;
        () = leave.cancelled() => Err(anyhow::anyhow!("interrupted: the copy is incomplete; the same command continues it")),
        imported = Box::pin(import_once(config, command, &mut life, (may_finish, progress))) => imported,
    };
    // Before anything else can fail: the store is complete.
    if let (Ok((result, _)), Some(file)) = (&imported, &command.attempts.result_file) {
        write_result(result, file)?;
    }
    life.end().await?;
    let (_, text) = imported?;
    io::stdout().write_all(text.as_bytes()).context("print")
}

/// Serves metrics and readiness where the flags say.
fn serve_progress(config: &Config, life: &mut Lifecycle) -> anyhow::Result<Arc<ImportMetrics>> {
    let progress = Arc::new(ImportMetrics::default());
    if !config.listen_metrics_urls.is_empty() {
        let server = ports::bind_metrics(config)?;
        info!(urls = server.bound()?.join(","), "serving metrics");
        let (rendered, asked) = (progress.clone(), progress.clone());
        let routes = page::routes(Arc::new(move || rendered.render()));
        let routes = routes.merge(page::readiness(Arc::new(move || asked.not_ready())));
        server.start_http(routes, &Metrics::new(false), &life.stop, &mut life.tasks);
    }
    Ok(progress)
}

/// Imports, unless there is a complete store and the command is to leave it as it is. Returns the text to print, too.
async fn import_once(
    config: &Config,
    command: &ImportCommand,
    life: &mut Lifecycle,
    controls: (watch::Receiver<bool>, Arc<ImportMetrics>),
) -> anyhow::Result<(RestoreResult, String)> {
    if command.attempts.once
        // Before the source is asked: it may be gone by now.
        && let Some(id) = restore::existing(config).await?
    {
        return Ok(RestoreResult::existed(
            id,
            requested_cluster_id(&command.attempts),
            "imported",
        ));
    }
    let copied = import(config, command, life, controls).await?;
    let result = RestoreResult::made(copied.cluster_id, copied.summary.revision, None).behind(copied.summary.source);
    Ok((result, describe(&copied.summary)))
}

fn describe(copied: &CopySummary) -> String {
    let CopySummary {
        revision,
        compacted,
        keys,
        leases,
        checksum,
        compared,
        source: _,
    } = copied;
    let at = match compared == revision {
        true => String::new(),
        false => format!(" at revision {compared}, before leases of the source ended"),
    };
    let compacted = describe_compaction(*compacted);
    format!(
        "imported revision {revision}, {compacted}: {keys} keys, {leases} leases, equal to the source{at}: checksum {checksum:032x}\n"
    )
}

async fn import(
    config: &Config,
    command: &ImportCommand,
    life: &mut Lifecycle,
    (may_finish, progress): (watch::Receiver<bool>, Arc<ImportMetrics>),
) -> anyhow::Result<CopiedStore> {
    let mut source = Source::open(command.source.clone()).await?;
    source.check_alarms().await?;
    if command.cutover_file.is_some() {
        source = source.waiting();
    }
    let tikv = match &config.storage {
        Storage::Embedded => None,
        Storage::Tikv(options) => Some(tikv::attach(options, life).await?),
    };
    let cluster_id = requested_cluster_id(&command.attempts);
    let mut restarts = 0;
    loop {
        let options = CopyOptions {
            follows: command.follows,
            may_finish: may_finish.clone(),
            until: command.until_revision,
            waits_for_writers: command.cutover_file.is_some(),
            progress: progress.clone(),
        };
        let partial = match (command.restarts || restarts > 0, command.attempts.once) {
            (true, _) => PartialCopy::Delete,
            (false, true) => PartialCopy::ContinueOrDeleteRest,
            (false, false) => PartialCopy::Continue,
        };
        let copied = match &tikv {
            None => directory::copy_into(config, &mut source, (partial, cluster_id), options).await,
            Some(tikv) => {
                let token = &config.initial_cluster_token;
                tikv::copy_into(tikv, token, &mut source, (partial, cluster_id), options).await
            }
        };
        match copied {
            Err(error) if error.is::<SourceCompacted>() && restarts < MAX_COPY_RESTARTS => {
                restarts += 1;
                progress.set_following(false);
                warn!(error = format!("{error:#}"), "restarting the copy with a new snapshot");
            }
            copied => return copied,
        }
    }
}
