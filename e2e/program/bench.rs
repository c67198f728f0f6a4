//! A brain and etcd in turn, on one machine, in one run: rates, processor time, memory, start of a kube-apiserver.
//!
//! Ratios count: of absolute numbers a busy machine leaves nothing. fsync is on for both, and both have a fresh data
//! directory on the same file system for every round.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use e2e::progress::Progress;
use e2e::server::Program;
use e2e::tools::debian;

mod apiserver;
pub(crate) mod disk;
mod load;
mod reads;
mod report;
mod requests;
mod size;
mod takeover;
mod tikv;
mod updates;
mod watcher;

use report::Report;

const H2LOAD: &[debian::Package] = &[debian::Package {
    brings: "h2load",
    name: "nghttp2-client",
}];

/// Measures a brain beside etcd.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// How often each is measured; medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Requests of each load.
    #[arg(long, default_value_t = 60_000)]
    requests: u64,
    /// Where data directories are made: a real disk.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Where the numbers are written too, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How long the idle brain is looked at, in seconds.
    #[arg(long, default_value_t = 30)]
    idle: u64,
    /// Only updates and reads, no kube-apiserver and no idling.
    #[arg(long)]
    loads_only: bool,
    /// Only stores with each of these numbers of keys, right after a start; --requests are sent of each kind.
    #[arg(long, value_delimiter = ',')]
    keys: Vec<u64>,
    /// Only three brains on TiKV: idle, put to event, reads, and updates for this many seconds.
    #[arg(long)]
    tikv: Option<u64>,
    /// Only start and take-over of three brains on TiKV, with each of these numbers of keys.
    #[arg(long, value_delimiter = ',')]
    takeover: Vec<u64>,
}

/// Measures, and prints a table.
///
/// # Errors
///
/// A server does not start, or a load did not do what it was to do.
#[tokio::main]
pub(crate) async fn run(flags: Flags, progress: &Progress) -> anyhow::Result<()> {
    ensure!(
        flags.rounds > 0 && flags.requests > 0,
        "nothing to measure: --rounds and --requests are at least 1"
    );
    ensure!(flags.keys.iter().all(|keys| *keys >= 1_000), "--keys are at least 1000");
    if !flags.takeover.is_empty() {
        println!("{}", takeover::measure(&flags.takeover, flags.rounds, progress).await?);
        return Ok(());
    }
    debian::require(H2LOAD, progress)?;
    std::fs::create_dir_all(&flags.dir).with_context(|| format!("create {}", flags.dir.display()))?;
    let dir = flags.dir.canonicalize()?;
    disk::refuse_memory(&dir)?;
    if let Some(seconds) = flags.tikv {
        let plan = tikv::Plan {
            seconds,
            idle: flags.idle,
        };
        println!("{}", tikv::measure(plan, &disk::Place::new(&dir)?, progress).await?);
        return Ok(());
    }
    let programs = [Program::kubebrain()?, Program::etcd(progress)?];
    let mut report = Report::default();
    for round in 1..=flags.rounds {
        for program in &programs {
            let step = progress.step(format_args!("round {round}: {}", program.name));
            let place = disk::Place::new(&dir)?;
            for keys in &flags.keys {
                size::measure(program, &disk::Place::new(&dir)?, *keys, flags.requests, &mut report).await?;
            }
            if !flags.keys.is_empty() {
                step.done();
                continue;
            }
            updates::measure(program, &place, flags.requests, &mut report).await?;
            if !flags.loads_only {
                apiserver::measure(program, &dir, progress, &mut report).await?;
            }
            step.done();
        }
    }
    if !flags.loads_only && flags.keys.is_empty() {
        updates::idle(&programs[0], &disk::Place::new(&dir)?, flags.idle, &mut report).await?;
    }
    println!("{}", report.table(&dir, flags.rounds));
    if let Some(path) = flags.json {
        let json = serde_json::to_vec_pretty(&report.json())?;
        std::fs::write(&path, json).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
