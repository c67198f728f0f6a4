//! `kubebrain-run-tests`: runs the test binaries that cargo built, several at a time, and prints the output of each when it ends.
//!
//! `cargo test` runs them one after the other. Many of ours wait, for clocks and for storage that does not answer, so one at a time leaves
//! processors idle. It knows nothing of the tests.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::num::NonZero;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Parser;

use binary::TestBinary;

mod binary;

/// Runs the test binaries that `cargo test --no-run --message-format=json-render-diagnostics` names, which is read from stdin.
#[derive(Debug, Parser)]
#[command(name = "kubebrain-run-tests", version)]
struct RunFlags {
    /// How many binaries run at a time.
    #[arg(long, default_value = "4")]
    jobs: NonZero<usize>,
    /// Arguments of each binary.
    #[arg(last = true)]
    args: Vec<String>,
}

/// A binary that has ended.
struct Ended {
    status: ExitStatus,
    took: Duration,
    /// Its stdout and stderr.
    output: Vec<u8>,
}

fn main() -> ExitCode {
    match run(&RunFlags::parse()) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("kubebrain-run-tests: failed: {}", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("kubebrain-run-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the names of the binaries that failed.
fn run(flags: &RunFlags) -> anyhow::Result<Vec<String>> {
    let mut messages = String::new();
    io::stdin().read_to_string(&mut messages).context("read stdin")?;
    let mut binaries = binary::parse(&messages)?;
    ensure!(!binaries.is_empty(), "cargo built no test binary");
    // Those that are likely to take longest begin first: there is most code in them.
    let size = |binary: &TestBinary| fs::metadata(&binary.executable).map_or(0, |file| file.len());
    binaries.sort_by_cached_key(|binary| (!binary.is_integration, std::cmp::Reverse(size(binary))));
    let queue = Mutex::new(VecDeque::from(binaries));
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> anyhow::Result<()> {
        while let Some(binary) = next() {
            let ended = execute(&binary, &flags.args).with_context(|| binary.executable.display().to_string())?;
            if !ended.status.success() {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(binary.name.clone());
            }
            print(&binary, &ended).context("write stdout")?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..flags.jobs.get()).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a binary in the directory of its package, as `cargo test` does.
fn execute(binary: &TestBinary, args: &[String]) -> anyhow::Result<Ended> {
    #[allow(clippy::disallowed_methods, reason = "there is no tokio here")]
    let began = Instant::now();
    let mut output = tempfile::tempfile().context("create a file for the output")?;
    let status = Command::new(&binary.executable)
        .args(args)
        .current_dir(&binary.package_dir)
        .env("CARGO_MANIFEST_DIR", &binary.package_dir)
        .stdin(std::process::Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .status()
        .context("start")?;
    let mut written = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut written)?;
    Ok(Ended {
        status,
        took: began.elapsed(),
        output: written,
    })
}

fn print(binary: &TestBinary, ended: &Ended) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (name, took) = (&binary.name, ended.took.as_secs_f64());
    writeln!(out, "     Running {name} ({})", binary.executable.display())?;
    out.write_all(&ended.output)?;
    writeln!(out, "       Ended {name} after {took:.1} s: {}", ended.status)?;
    out.flush()
}
