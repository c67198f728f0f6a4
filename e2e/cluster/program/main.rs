//! Real clusters on this machine: Kubernetes with brains and the operator.

use std::process::ExitCode;

use clap::Parser;
use programs::progress::Progress;

mod cluster;

#[derive(Debug, Parser)]
#[command(name = "kubebrain-e2e", version, about)]
enum Command {
    /// Run whole Kubernetes clusters on this machine, each in a network of its own.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
}

fn main() -> ExitCode {
    let progress = Progress::stderr();
    let Command::Cluster(command) = Command::parse();
    progress.exit_code("cluster", cluster::run(command, &progress).map(|()| true))
}
