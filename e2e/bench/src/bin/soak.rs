//! `kubebrain-soak`: looks for growth of a brain under a steady load.

use std::process::ExitCode;

use bench::soak;
use clap::Parser as _;
use programs::progress::Progress;

fn main() -> ExitCode {
    let progress = Progress::stderr();
    progress.exit_code("soak", soak::run(soak::SoakFlags::parse(), &progress))
}
