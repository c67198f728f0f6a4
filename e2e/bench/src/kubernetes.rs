//! A whole control plane on one store after another: nodes join, Deployments are created, rolled and deleted.
//!
//! Nodes and pods are kwok's, so there is neither a kubelet nor a container, and root is not needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use programs::progress::Progress;
use programs::server::Program;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) mod component;
pub(crate) mod control_plane;
mod credentials;
mod follow;
mod metrics;
mod objectives;
mod phase;
mod rollout;
mod store;
mod workload;

use crate::disk::{self, ServerDir};
use crate::report::Report;
use control_plane::{ControlPlane, ControlPlanePrograms};
use follow::Follower;
use objectives::ObjectivesReport;
use phase::{Phase, PhaseReport, Snapshot};
use store::StoreKind;
use workload::{ClusterSize, Workload};

/// Benchmarks a Kubernetes on a brain, on etcd and on kine.
#[derive(Debug, clap::Parser)]
#[command(name = "kubebrain-bench-kubernetes", version)]
pub struct KubernetesFlags {
    /// Nodes of a cluster.
    #[arg(long, default_value_t = 200)]
    nodes: u64,
    /// Pods of a cluster.
    #[arg(long, default_value_t = 3_000)]
    pods: u64,
    /// Deployments that the pods are of.
    #[arg(long, default_value_t = 20)]
    deployments: u64,
    /// Namespaces that the Deployments are in.
    #[arg(long, default_value_t = 5)]
    namespaces: u64,
    /// Stores, in the order in which they are measured.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kubebrain", "etcd", "kine"])]
    stores: Vec<StoreKind>,
    /// Number of measurements of each; medians are reported.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Seconds that one phase may take.
    #[arg(long, default_value_t = 1_800)]
    phase_timeout: u64,
    /// Parent of the data directories, on a real disk.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// File for the numbers, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// File for the medians, as tables in Markdown.
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// Measures, and prints a table.
///
/// # Errors
///
/// A program cannot be built or started, ends early, or a phase takes too long. SIGINT and SIGTERM end the run.
#[tokio::main]
pub async fn run(flags: KubernetesFlags, progress: &Progress) -> anyhow::Result<()> {
    flags.check()?;
    let programs = ControlPlanePrograms::build(progress)?;
    let stores = flags.stores(progress)?;
    std::fs::create_dir_all(&flags.dir).with_context(|| format!("create {}", flags.dir.display()))?;
    let dir = flags.dir.canonicalize()?;
    disk::refuse_memory(&dir)?;
    let mut reports = (Report::default(), ObjectivesReport::default());
    // everything that runs ends with the future
    tokio::select! {
        outcome = flags.measure(&programs, &stores, &dir, &mut reports, progress) => outcome?,
        interrupted = interrupted() => bail!("ended by {}", interrupted?),
    }
    let (report, objectives) = reports;
    println!("{}\n", flags.heading(&dir));
    println!("{}\n{}", report.table(), objectives.text());
    flags.write(&report, &objectives)
}

/// Waits for a signal to end, and gives its name.
async fn interrupted() -> anyhow::Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

impl KubernetesFlags {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.nodes > 0 && self.rounds > 0, "--nodes and --rounds are at least 1");
        ensure!(
            1 <= self.namespaces && self.namespaces <= self.deployments && self.deployments <= self.pods,
            "--namespaces are at least 1, --deployments at least as many, and --pods at least as many as these"
        );
        Ok(())
    }

    fn size(&self) -> ClusterSize {
        ClusterSize {
            nodes: self.nodes,
            pods: self.pods,
            deployments: self.deployments,
            namespaces: self.namespaces,
        }
    }

    /// The programs of the stores. Kine needs a C compiler, for SQLite; without one it is left out.
    fn stores(&self, progress: &Progress) -> anyhow::Result<Vec<(StoreKind, Program)>> {
        let mut programs = Vec::new();
        for kind in &self.stores {
            match kind.program(progress) {
                Ok(program) => programs.push((*kind, program)),
                Err(error) if *kind == StoreKind::Kine => {
                    progress.say(format_args!("kine is left out, because it cannot be built: {error:#}"));
                }
                Err(error) => return Err(error),
            }
        }
        ensure!(!programs.is_empty(), "there is no store to measure");
        Ok(programs)
    }

    /// Each store in turn, round by round.
    async fn measure(
        &self,
        programs: &ControlPlanePrograms,
        stores: &[(StoreKind, Program)],
        dir: &Path,
        (report, objectives): &mut (Report, ObjectivesReport),
        progress: &Progress,
    ) -> anyhow::Result<()> {
        for round in 1..=self.rounds {
            for (kind, program) in stores {
                let step = progress.step(format_args!("round {round}: {}", program.name));
                let mut plane = ControlPlane::start(programs, (*kind, program), ServerDir::new(dir)?).await?;
                let follower = Follower {
                    progress,
                    store: program.name,
                    timeout: Duration::from_secs(self.phase_timeout),
                };
                let workload = Workload {
                    client: plane.client(),
                    size: self.size(),
                    follower,
                };
                while_running(&mut plane, workload.prepare()).await?;
                let mut phases = PhaseReport {
                    store: program.name,
                    size: self.size(),
                    report,
                    objectives,
                };
                for phase in Phase::ALL {
                    let step = progress.step(format_args!("{}: {}", program.name, phase.name()));
                    let before = Snapshot::before(&plane).await?;
                    while_running(&mut plane, phase.run(&workload)).await?;
                    phases.add(phase, &before, &Snapshot::after(&plane).await?);
                    step.done();
                }
                plane.stop()?;
                step.done();
            }
        }
        Ok(())
    }

    fn heading(&self, dir: &Path) -> String {
        let Self {
            nodes,
            pods,
            deployments,
            namespaces,
            rounds,
            ..
        } = self;
        let rounds = if *rounds == 1 {
            "one round".to_owned()
        } else {
            format!("medians of {rounds} rounds")
        };
        let size = format!("{nodes} nodes, {pods} pods of {deployments} Deployments in {namespaces} namespaces");
        format!("{size}; {rounds}, fsync on, data in {}", dir.display())
    }

    /// Writes the files that were asked for.
    fn write(&self, report: &Report, objectives: &ObjectivesReport) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            let json = serde_json::to_vec_pretty(&report.json())?;
            std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
        }
        if let Some(path) = &self.markdown {
            let tables = format!("{}\n{}", report.markdown(), objectives.markdown());
            std::fs::write(path, tables).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Runs `work`, unless a program ends before: its last lines say more than what `work` came to.
async fn while_running(plane: &mut ControlPlane, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let outcome = tokio::select! {
        outcome = work => outcome,
        failed = plane.failed() => failed,
    };
    plane.check()?;
    outcome
}
