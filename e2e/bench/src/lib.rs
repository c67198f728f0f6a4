//! A brain and etcd in turn, on one machine, in one run: rates, processor time, memory, start of a kube-apiserver.
//!
//! Ratios count: of absolute numbers a busy machine leaves nothing. fsync is on for both, and both have a fresh data
//! directory on the same file system for every round. [`kubernetes`] measures a whole control plane on them; [`soak`] puts a steady load on a
//! brain alone.
//!
//! Servers are reached as their clients do: it must not depend on a crate of the brain.
#![allow(clippy::print_stdout, reason = "reports and tables are the output")]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use programs::progress::Progress;
use programs::server::Program;
use programs::tools::debian;

mod apiserver;
mod clients;
mod closed_loop;
mod disk;
mod grpc;
pub mod kubernetes;
mod load;
mod open_loop;
mod percentile;
mod reads;
mod report;
mod requests;
mod size;
pub mod soak;
mod takeover;
mod tikv;
mod updates;
mod watch_stream;
mod watcher;

use report::Report;

const H2LOAD: &[debian::DebianPackage] = &[debian::DebianPackage {
    brings: "h2load",
    name: "nghttp2-client",
}];

/// Benchmarks a brain and etcd side by side.
#[derive(Debug, clap::Parser)]
#[command(name = "kubebrain-bench", version)]
pub struct BenchFlags {
    /// Number of measurements of each; medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Requests of each load.
    #[arg(long, default_value_t = 60_000)]
    requests: u64,
    /// Parent of the data directories, on a real disk.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// File for the numbers, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// File for the medians, as a table in Markdown.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Directory for charts of the ratios, as SVG, and of growth if there are several --keys.
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Measures nothing: prints the --json files of other runs in one table.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["clients", "keys", "tikv", "takeover"])]
    from: Vec<PathBuf>,
    /// Seconds to watch the idle brain.
    #[arg(long, default_value_t = 30)]
    idle: u64,
    /// Only updates and reads, no kube-apiserver and no idling.
    #[arg(long)]
    loads_only: bool,
    /// Only creates and deletes, events to many watchers, many connections, one writer, a fixed rate, a watcher that stalls.
    #[arg(long)]
    clients: bool,
    /// Idle watches of --clients.
    #[arg(long, default_value_t = 100_000)]
    idle_watches: u64,
    /// Connections of --clients that each have one request in flight; fewer if the limit of open files is lower.
    #[arg(long, default_value_t = 16_000)]
    connections: u32,
    /// Only stores with each of these numbers of keys, right after a start; --requests are sent of each kind.
    #[arg(long, value_delimiter = ',')]
    keys: Vec<u64>,
    /// With --keys: one brain on TiKV, which is the mock or the cluster that TIKV_PD names, and no etcd.
    #[arg(long, requires = "keys", conflicts_with = "clients")]
    on_tikv: bool,
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
pub async fn run(flags: BenchFlags, progress: &Progress) -> anyhow::Result<()> {
    ensure!(
        flags.rounds > 0 && flags.requests > 0,
        "nothing to measure: --rounds and --requests are at least 1"
    );
    ensure!(flags.keys.iter().all(|keys| *keys >= 1_000), "--keys are at least 1000");
    ensure!(flags.idle_watches > 0, "--idle-watches are at least 1");
    ensure!(flags.connections > 0, "--connections are at least 1");
    let mut report = Report::default();
    if !flags.from.is_empty() {
        for path in &flags.from {
            report.read(path)?;
        }
        println!("{}", report.table());
        return flags.write(&report);
    }
    if !flags.takeover.is_empty() {
        println!("{}", takeover::measure(&flags.takeover, flags.rounds, progress).await?);
        return Ok(());
    }
    debian::require(H2LOAD, progress)?;
    std::fs::create_dir_all(&flags.dir).with_context(|| format!("create {}", flags.dir.display()))?;
    let dir = flags.dir.canonicalize()?;
    disk::refuse_memory(&dir)?;
    if let Some(seconds) = flags.tikv {
        let plan = tikv::TikvPlan {
            seconds,
            idle: flags.idle,
        };
        println!("{}", tikv::measure(plan, &disk::ServerDir::new(&dir)?, progress).await?);
        return Ok(());
    }
    compare(&flags, &dir, &mut report, progress).await?;
    println!(
        "medians of {} rounds, fsync on, data in {}\n",
        flags.rounds,
        dir.display()
    );
    println!("{}", report.table());
    flags.write(&report)
}

/// A brain and etcd in turn, round by round.
async fn compare(flags: &BenchFlags, dir: &Path, report: &mut Report, progress: &Progress) -> anyhow::Result<()> {
    let mut programs = vec![Program::kubebrain()?];
    if !flags.on_tikv {
        programs.push(Program::etcd(progress)?);
    }
    let plan = match flags.clients {
        true => Some(clients::ClientsPlan {
            requests: flags.requests,
            idle_watches: flags.idle_watches,
            connections: clients::possible_connections(flags.connections),
            rate: clients::fixed_rate(&programs[1], dir, flags.requests, progress)?,
        }),
        false => None,
    };
    let loads = !flags.clients && flags.keys.is_empty();
    for round in 1..=flags.rounds {
        for program in &programs {
            let step = progress.step(format_args!("round {round}: {}", program.name));
            if let Some(plan) = plan {
                clients::measure(program, dir, plan, report)?;
            }
            for keys in &flags.keys {
                let store = flags.on_tikv.then(tikv::store).transpose()?;
                let pd = store.as_ref().map(|(_, pd)| pd.as_str());
                let load = (*keys, flags.requests);
                size::measure((program, pd), &disk::ServerDir::new(dir)?, load, report).await?;
            }
            if loads {
                updates::measure(program, &disk::ServerDir::new(dir)?, flags.requests, report).await?;
            }
            if loads && !flags.loads_only {
                apiserver::measure(program, dir, progress, report).await?;
            }
            step.done();
        }
    }
    if loads && !flags.loads_only {
        updates::idle(&programs[0], &disk::ServerDir::new(dir)?, flags.idle, report).await?;
    }
    Ok(())
}

impl BenchFlags {
    /// Writes the files that were asked for.
    fn write(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            let json = serde_json::to_vec_pretty(&report.json())?;
            std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
        }
        if let Some(path) = &self.markdown {
            std::fs::write(path, report.markdown()).with_context(|| format!("write {}", path.display()))?;
        }
        match &self.plots {
            Some(dir) => report.draw(dir),
            None => Ok(()),
        }
    }
}
