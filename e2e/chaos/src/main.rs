//! `kubebrain-chaos`: three brains on one TiKV cluster, clients at all of them, and everything that can go wrong.
//!
//! Each round breaks what its seed says while clients read, write, watch and hold leases; then everything they saw is
//! held against what etcd promises. The cluster is a mock, with faults on command, or the real one that `TIKV_PD` names.
//!
//! Members are programs of their own: it must not depend on a crate of the brain, or on Kubernetes.
#![allow(clippy::print_stdout, reason = "reports are the output")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use programs::progress::Progress;
use programs::server::Program;
use programs::tikv::REAL_PD_VARIABLE;
use programs::tikv::real::PdAddresses;
use programs::tools::debian;
use rand::RngExt as _;

mod check;
mod faults;
mod history;
mod load;
mod round;
mod test_cluster;

use faults::{Fault, NamedFault};
use history::History;
use round::{RoundFailure, RoundResult, TestCluster};
use test_cluster::members::{MemberClock, Members};
use test_cluster::network::{self, Network};
use test_cluster::tikv::{self, Tikv};

/// Rounds that one cluster lives through before the next one is made.
const ROUNDS_PER_CLUSTER: u64 = 10;
const MEMBERS: usize = 3;

/// Injects faults into three brains on TiKV, and checks the histories of their clients.
///
/// TiKV is a mock that breaks, too, or the cluster whose PD `TIKV_PD` names, as `host:port`: no faults are injected into a real cluster,
/// but members are cut off from it.
#[derive(Debug, Parser)]
#[command(name = "kubebrain-chaos", version)]
struct Flags {
    /// Number of rounds.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// The seed of the first round; the others follow.
    #[arg(long)]
    seed: Option<u64>,
    /// Faults in a round.
    #[arg(long, default_value_t = 3)]
    faults: usize,
    /// Only faults of this kind, one after the other, on a mock.
    #[arg(long, value_enum)]
    fault: Option<NamedFault>,
    /// Instead of these faults, lose this many replies to writes in each round, and kill leaders during it; on a mock, whatever `TIKV_PD`
    /// says.
    #[arg(long)]
    lost_replies: Option<u64>,
    /// A brain that is linked dynamically, so that its time of day can be changed; without it no clock jumps.
    #[arg(long)]
    with_clock: Option<PathBuf>,
    /// Directory for logs and the histories of failed rounds.
    #[arg(long, default_value = "/var/log/kubebrain-chaos")]
    logs: PathBuf,
}

fn main() -> ExitCode {
    let progress = Progress::stderr();
    progress.exit_code("chaos", run(Flags::parse(), &progress))
}

/// Plays the rounds, and answers whether nothing was wrong.
///
/// # Errors
///
/// The cluster or its network cannot be made, or a member panicked.
fn run(flags: Flags, progress: &Progress) -> anyhow::Result<bool> {
    let real = prepare(&flags, progress)?;
    play_all(flags, real)
}

fn prepare(flags: &Flags, progress: &Progress) -> anyhow::Result<Option<PdAddresses>> {
    debian::require(debian::CHAOS_PACKAGES, progress)?;
    network::enter(|| match std::env::var(REAL_PD_VARIABLE) {
        Ok(pd) if flags.lost_replies.is_none() && flags.fault.is_none() => ask(&pd).map(Some),
        _ => Ok(None),
    })
}

#[tokio::main(flavor = "current_thread")]
async fn ask(pd: &str) -> anyhow::Result<PdAddresses> {
    PdAddresses::ask(pd).await
}

#[tokio::main]
async fn play_all(flags: Flags, real: Option<PdAddresses>) -> anyhow::Result<bool> {
    let seed = flags.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    std::fs::create_dir_all(&flags.logs).with_context(|| format!("create {}", flags.logs.display()))?;
    let files = tempfile::TempDir::new().context("make a directory")?;
    let mut network = Some(Network::create(MEMBERS)?);
    let mut number = 0;
    while number < flags.rounds {
        let net = network.take().context("the network is gone")?;
        let tikv = match &real {
            Some(addresses) => Tikv::real(addresses.clone(), &net)?,
            None => Tikv::mock_tikv(seed + number).await?,
        };
        let mut cluster = start(&flags, net, tikv, files.path())?;
        let mut end = ROUNDS_PER_CLUSTER.min(flags.rounds - number);
        while end > 0 {
            if !play(&flags, &mut cluster, seed + number).await? {
                return Ok(false);
            }
            number += 1;
            end -= 1;
        }
        network = Some(stop(cluster).await?);
    }
    println!("{} rounds from seed {seed}: no violation", flags.rounds);
    Ok(true)
}

/// A fresh cluster.
fn start(flags: &Flags, network: Network, tikv: Tikv, files: &Path) -> anyhow::Result<TestCluster> {
    let clock = match &flags.with_clock {
        Some(_) => Some(MemberClock::new(files, MEMBERS)?),
        None => None,
    };
    let program = match &flags.with_clock {
        Some(path) => Program {
            name: "kubebrain",
            path: path
                .canonicalize()
                .with_context(|| format!("find {}", path.display()))?,
        },
        None => Program::kubebrain()?,
    };
    let mut members = Members::new(MEMBERS, program, clock, tikv.flags(), &flags.logs)?;
    for member in 0..MEMBERS {
        // a log is of one cluster
        drop(std::fs::remove_file(members.log(member)));
        members.start(member)?;
    }
    Ok(TestCluster { members, network, tikv })
}

/// Ends a cluster in order; its network is used again.
async fn stop(cluster: TestCluster) -> anyhow::Result<Network> {
    let TestCluster {
        mut members,
        network,
        tikv,
    } = cluster;
    for member in 0..MEMBERS {
        members.terminate(member).await?;
        test_cluster::members::no_panic(&members.log(member))?;
    }
    tikv.stop().await?;
    Ok(network)
}

/// Plays one round and tells of it; whether nothing was wrong.
async fn play(flags: &Flags, cluster: &mut TestCluster, seed: u64) -> anyhow::Result<bool> {
    let mut chance = tikv::chance(seed);
    let (has_clock, has_stand_in) = (cluster.members.clock().is_some(), cluster.tikv.as_mock().is_some());
    let wrong = match flags.lost_replies {
        Some(count) => RoundFailure::LostReplies(count),
        None => {
            let faults = (0..flags.faults).map(|_| match flags.fault {
                Some(named) => named.draw(&mut chance),
                None => Fault::any(&mut chance, MEMBERS, has_clock, has_stand_in),
            });
            RoundFailure::Faults(faults.collect())
        }
    };
    let failed = || format!("seed {seed}; logs are in {}", flags.logs.display());
    let played = round::play(cluster, seed, &mut chance, wrong)
        .await
        .with_context(failed)?;
    let RoundResult {
        faults,
        history,
        verdict,
    } = played;
    println!("seed {seed}: {}", faults.join("; "));
    match verdict {
        Ok(verdict) => {
            anyhow::ensure!(
                flags.lost_replies.is_none() || verdict.unknown > 0,
                "seed {seed}: replies were lost, and every client got its outcome"
            );
            println!(
                "  {} operations, {} unknown, {} of them done; {} revisions; {} watch messages; {} leases: ok",
                verdict.operations,
                verdict.unknown,
                verdict.unknown_done,
                verdict.revisions,
                verdict.messages,
                history.leases.len()
            );
            Ok(true)
        }
        Err(wrong) => {
            for wrong in wrong.iter().take(20) {
                println!("  VIOLATION: {wrong}");
            }
            let file = keep(&flags.logs, seed, &history)?;
            println!("  {} violations; the history is {}", wrong.len(), file.display());
            Ok(false)
        }
    }
}

fn keep(dir: &Path, seed: u64, history: &History) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("history-{seed}.json"));
    let file = std::fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    serde_json::to_writer(std::io::BufWriter::new(file), history).context("write the history")?;
    Ok(path)
}
