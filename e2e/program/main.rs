//! Real clusters on this machine, and what is tried on them: Kubernetes with brains and the operator, rounds of faults, benchmarks.
#![allow(clippy::print_stdout, reason = "reports and tables are the output")]

use std::process::ExitCode;

use clap::Parser;
use programs::progress::Progress;

mod bench;
mod cluster;
mod percentile;
mod soak;

#[derive(Debug, Parser)]
#[command(version, about)]
enum Command {
    /// Run whole Kubernetes clusters on this machine, each in a network of its own.
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Measure a brain beside etcd.
    Bench(bench::Flags),
    /// Look for growth of a brain under a steady load.
    Soak(soak::Flags),
}

fn main() -> ExitCode {
    let progress = Progress::stderr();
    let (name, outcome) = match Command::parse() {
        Command::Cluster(command) => ("cluster", cluster::run(command, &progress).map(|()| true)),
        Command::Soak(flags) => ("soak", soak::run(flags, &progress)),
        Command::Bench(flags) => ("bench", bench::run(flags, &progress).map(|()| true)),
    };
    progress.exit_code(name, outcome)
}
