//! `kubebrain-bench`: measures a brain beside etcd.

use std::process::ExitCode;

use clap::Parser as _;
use programs::progress::Progress;

fn main() -> ExitCode {
    let progress = Progress::stderr();
    let outcome = bench::run(bench::BenchFlags::parse(), &progress);
    progress.exit_code("bench", outcome.map(|()| true))
}
