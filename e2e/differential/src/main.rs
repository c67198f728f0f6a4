//! `kubebrain-differential`: the same random requests to a brain and to etcd, as long as wanted.
#![allow(clippy::print_stdout, reason = "reports are the output")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use differential::shrink::Programs;
use differential::{Report, compare, replay, text};
use programs::progress::Progress;
use programs::server::Program;

/// Sends the same random requests to a brain and to etcd, and compares all answers.
#[derive(Debug, Parser)]
#[command(name = "kubebrain-differential", version)]
struct Flags {
    /// Number of requests.
    #[arg(long, default_value_t = 1_000_000)]
    requests: usize,
    /// The seed of the first round; the others follow.
    #[arg(long)]
    seed: Option<u64>,
    /// Requests on one pair of stores; then comes the next round with new ones.
    #[arg(long, default_value_t = 50_000)]
    round: usize,
    /// Seconds to look for the shortest script that shows a difference.
    #[arg(long, default_value_t = 300)]
    shrink: u64,
    /// Instead of random requests, those of a script that an earlier run printed.
    #[arg(long)]
    script: Option<PathBuf>,
}

fn main() -> ExitCode {
    let progress = Progress::stderr();
    progress.exit_code("differential", run(Flags::parse(), &progress))
}

/// Compares, and answers whether all answers were equal. The first round with a difference is the last one.
///
/// # Errors
///
/// A server does not start, or etcd does not answer as it should.
#[tokio::main]
async fn run(flags: Flags, progress: &Progress) -> anyhow::Result<bool> {
    let programs = Programs {
        reference: Program::etcd(progress)?,
        subject: Program::kubebrain()?,
        subject_flags: Vec::new(),
    };
    if let Some(path) = &flags.script {
        let steps = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let (etcd, brain) = programs.start()?;
        let differences = replay(&etcd, &brain, &text::read(&steps)?).await?;
        println!("{differences}");
        return Ok(differences.is_empty());
    }
    let first = flags.seed.unwrap_or_else(rand::random);
    let round = flags.round.max(1);
    let rounds = flags.requests.div_ceil(round);
    let (mut requests, mut events) = (0, 0);
    for n in 0..rounds {
        let seed = first.wrapping_add(n as u64);
        let wanted = round.min(flags.requests - n * round);
        let step = progress.step(format_args!(
            "round {} of {rounds}, seed {seed}: {wanted} requests",
            n + 1
        ));
        let report = one(&programs, seed, wanted, progress).await?;
        step.done();
        requests += report.requests;
        events += report.events;
        if !report.equal() {
            println!("{report}");
            let within = Duration::from_secs(flags.shrink);
            match programs.shorten(&report, within, progress).await? {
                Some(script) => println!(
                    "\nA script that shows it; save it, and run it again by `kubebrain-differential --script FILE`:\n\n{script}"
                ),
                None => println!("\nThe script does not show it a second time."),
            }
            return Ok(false);
        }
    }
    println!("seeds from {first}: {requests} requests, {events} events, all equal");
    Ok(true)
}

async fn one(programs: &Programs, seed: u64, requests: usize, progress: &Progress) -> anyhow::Result<Report> {
    let (etcd, brain) = programs.start()?;
    let report = compare(&etcd, &brain, seed, requests, progress).await?;
    etcd.stop()?;
    brain.stop()?;
    Ok(report)
}
