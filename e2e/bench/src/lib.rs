//! A brain and etcd in turn, on one machine, in one run: rates, processor time, memory, start of a kube-apiserver.
//!
//! Ratios count: of absolute numbers a busy machine leaves nothing. fsync is on for both, and both have a fresh data
//! directory on the same file system for every round. [`kubernetes`] measures a whole control plane on them; [`soak`] puts a steady load on a
//! brain alone.
//!
//! Servers are reached as their clients do: it must not depend on a crate of the brain.
#![allow(clippy::print_stdout, reason = "reports and tables are the output")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::progress::Progress;
use programs::server::Program;
use programs::tools::debian;

mod apiserver;
mod backups;
mod clients;
mod closed_loop;
mod compactor;
mod disk;
mod grpc;
mod guarded_writes;
mod histogram;
pub mod kubernetes;
mod load;
mod load_plan;
mod nodes;
mod objects;
mod open_loop;
mod percentile;
mod pod_fleet;
mod pods;
mod prefix_watchers;
mod reads;
mod report;
mod requests;
mod size;
pub mod soak;
mod stored_bytes;
mod takeover;
mod tikv;
mod updates;
mod watch_stream;
mod watcher;
mod zipf;

use report::Report;

const H2LOAD: &[debian::DebianPackage] = &[debian::DebianPackage {
    brings: "h2load",
    name: "nghttp2-client",
}];

/// Rounds of short loads, and of --pods and --nodes.
const ROUNDS: usize = 3;
const LONG_LOAD_ROUNDS: usize = 1;
/// Minutes of --pods and of --nodes.
const PODS_MINUTES: u64 = 5;
const NODES_MINUTES: u64 = 30;

/// Benchmarks a brain and etcd side by side.
#[derive(Debug, clap::Parser)]
#[command(name = "kubebrain-bench", version)]
pub struct BenchFlags {
    /// Number of measurements of each; medians are reported. 3 by default, 1 of --pods and --nodes, which take long.
    #[arg(long)]
    rounds: Option<usize>,
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
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["clients", "keys", "backups", "pods", "nodes", "tikv", "takeover"])]
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
    /// Only a backup of stores with each of these numbers of keys of 1 KiB, while 2,000 puts a second continue, and its restore.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["clients", "keys"])]
    backups: Vec<u64>,
    /// Only objects as kube-apiserver stores them: this number of pods of 15 KB on average, which are updated and replaced for --minutes.
    #[arg(long, conflicts_with_all = ["clients", "keys", "backups"])]
    pods: Option<u64>,
    /// Watchers of --pods that read all events.
    #[arg(long, default_value_t = 1)]
    watchers: usize,
    /// Only the store's share of a cluster with this number of nodes: each renews its lease every 10 s, and pods change, for --minutes.
    #[arg(long, conflicts_with_all = ["clients", "keys", "backups", "pods"])]
    nodes: Option<u64>,
    /// Writes of pods a second of --nodes: creates, status updates and deletes.
    #[arg(long, default_value_t = 1_000)]
    churn: u32,
    /// Minutes of --pods (5 by default) and of --nodes (30 by default).
    #[arg(long)]
    minutes: Option<u64>,
    /// Seconds between two compactions of --pods and --nodes: a fifth of --minutes by default, at most 300.
    #[arg(long)]
    compaction_interval: Option<u64>,
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
        flags.rounds != Some(0) && flags.requests > 0,
        "nothing to measure: --rounds and --requests are at least 1"
    );
    let numbers_of_keys = || flags.keys.iter().chain(&flags.backups);
    ensure!(
        numbers_of_keys().all(|keys| *keys >= 1_000),
        "--keys and --backups are at least 1000"
    );
    ensure!(flags.idle_watches > 0, "--idle-watches are at least 1");
    ensure!(flags.connections > 0, "--connections are at least 1");
    ensure!(flags.pods.is_none_or(|pods| pods >= 100), "--pods are at least 100");
    ensure!(
        flags.nodes.is_none_or(|nodes| nodes >= 10) && flags.churn > 0,
        "--nodes are at least 10, and --churn is at least 1"
    );
    ensure!(
        flags.minutes != Some(0) && flags.compaction_interval != Some(0) && flags.watchers > 0,
        "--minutes, --compaction-interval and --watchers are at least 1"
    );
    let mut report = Report::default();
    if !flags.from.is_empty() {
        for path in &flags.from {
            report.read(path)?;
        }
        println!("{}", report.table());
        return flags.write(&report);
    }
    if !flags.takeover.is_empty() {
        println!(
            "{}",
            takeover::measure(&flags.takeover, flags.rounds(), progress).await?
        );
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
    let rounds = match flags.rounds() {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds"),
    };
    println!("{rounds}, fsync on, data in {}\n", dir.display());
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
    let loads = !flags.clients
        && flags.keys.is_empty()
        && flags.backups.is_empty()
        && flags.pods.is_none()
        && flags.nodes.is_none();
    for round in 1..=flags.rounds() {
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
            for keys in &flags.backups {
                backups::measure(program, &disk::ServerDir::new(dir)?, *keys, report).await?;
            }
            if let Some(plan) = flags.pods_plan() {
                pods::measure(program, &disk::ServerDir::new(dir)?, plan, report)?;
            }
            if let Some(plan) = flags.nodes_plan() {
                nodes::measure(program, &disk::ServerDir::new(dir)?, plan, report)?;
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
    fn rounds(&self) -> usize {
        let is_long = self.pods.is_some() || self.nodes.is_some();
        self.rounds.unwrap_or(if is_long { LONG_LOAD_ROUNDS } else { ROUNDS })
    }

    fn pods_plan(&self) -> Option<pods::PodsPlan> {
        Some(pods::PodsPlan {
            pods: self.pods?,
            watchers: self.watchers,
            times: self.load_times(PODS_MINUTES),
        })
    }

    fn nodes_plan(&self) -> Option<nodes::NodesPlan> {
        Some(nodes::NodesPlan {
            nodes: self.nodes?,
            churn: self.churn,
            times: self.load_times(NODES_MINUTES),
        })
    }

    fn load_times(&self, default_minutes: u64) -> load_plan::LoadTimes {
        let load = Duration::from_secs(60 * self.minutes.unwrap_or(default_minutes));
        load_plan::LoadTimes::new(load, self.compaction_interval.map(Duration::from_secs))
    }

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
