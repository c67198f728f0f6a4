//! The process that runs a cluster: brings it up, keeps its programs running, and ends it.
//!
//! The process that starts it holds a parent pipe, its standard input: when that ends, in whatever way its holder ended, so does
//! the cluster. A word on the parent pipe lets it run on. It reports on standard output, one JSON object a line.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use programs::progress::Progress;
use programs::tools::Tools;
use programs::tools::cache::ToolCache;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use crate::cleanup;
use crate::cluster_dir::{self, ClusterDir};
use crate::config::ClusterConfig;
use crate::images::Image;
use crate::lock::FileLock;

mod bring_up;
mod parent_pipe;
mod reports;

use bring_up::ClusterProcess;
use parent_pipe::ParentPipe;
use reports::ReportWriter;

/// Report of the cluster process to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
pub enum ProcessReport {
    /// A line for people.
    Line(String),
    /// The cluster is up.
    Up,
    /// It will not come up, and has been ended.
    Failed(String),
}

/// The word on the parent pipe that lets the cluster run on.
pub const RELEASE_WORD: &str = "release";

/// Runs a cluster from start to end.
///
/// # Errors
///
/// The cluster does not start, cannot be kept running, or leaves something that cannot be removed.
pub async fn run(config: ClusterConfig) -> anyhow::Result<()> {
    let reports = ReportWriter::stdout();
    let result = run_reporting(config, &reports).await;
    if let Err(error) = &result {
        error!(error = format!("{error:#}"), "failed");
        reports.send(&ProcessReport::Failed(format!("{error:#}")));
    }
    result
}

async fn run_reporting(config: ClusterConfig, reports: &ReportWriter) -> anyhow::Result<()> {
    let mut ends = ParentPipe::listen()?;
    let home = ClusterDir::of(&config.name);
    let progress = reports.progress();
    let _lock = lock(&home, &progress)?;
    let (config, (tools, archives)) = {
        let progress = progress.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&config, &progress).map(|made| (config, made)));
        tokio::select! {
            prepared = prepared => prepared.context("the thread that prepares ended")??,
            // a compiler may be running: it works for this process only, and ends with its process group
            () = ends.wait() => bail!("ended before everything was built"),
        }
    };
    home.create()?;
    let result = up_and_down(&home, &config, tools, &archives, &mut ends, reports).await;
    let swept = tokio::task::block_in_place(|| cleanup::everything(&home)).context("end the cluster");
    result.and(swept)
}

async fn up_and_down(
    home: &ClusterDir,
    config: &ClusterConfig,
    tools: Tools,
    archives: &[PathBuf],
    ends: &mut ParentPipe,
    reports: &ReportWriter,
) -> anyhow::Result<()> {
    let mut host = ClusterProcess::begin(home, config, tools)?;
    let progress = reports.progress();
    let result = tokio::select! {
        up = host.bring_up(archives, &progress) => match up {
            Ok(()) => {
                reports.send(&ProcessReport::Up);
                reports.close();
                None
            }
            Err(error) => Some(Err(error)),
        },
        () = ends.wait() => Some(Ok(())),
    };
    let result = match result {
        Some(result) => result,
        None => tokio::select! {
            kept = host.keep() => kept,
            () = ends.wait() => Ok(()),
        },
    };
    host.end().await;
    result
}

/// Takes the cluster's lock, and sweeps what killed runs left.
fn lock(home: &ClusterDir, progress: &Progress) -> anyhow::Result<FileLock> {
    cluster_dir::prepare()?;
    cleanup::abandoned(progress)?;
    FileLock::try_take(home)?.with_context(|| {
        format!(
            "the cluster {0} is up already: `kubebrain-e2e cluster down --name {0}` ends it",
            home.name()
        )
    })
}

fn prepare(config: &ClusterConfig, progress: &Progress) -> anyhow::Result<(Tools, Vec<PathBuf>)> {
    let tools = Tools::prepare(progress)?;
    let cache = ToolCache::open()?;
    let mut images = Image::of_node(&tools)?;
    if config.product {
        images.extend(Image::of_product(&tools)?);
    }
    if config.test_images {
        images.extend(Image::of_tests(&tools)?);
    }
    let archives = images
        .iter()
        .map(|image| image.archive(&cache, progress))
        .collect::<anyhow::Result<_>>()?;
    info!(images = images.len(), "everything is built");
    Ok((tools, archives))
}
