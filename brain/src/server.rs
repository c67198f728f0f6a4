//! The program: reads the flags, opens a store on the configured engine, and serves it until it must stop.

use std::process::ExitCode;

use crate::flags::{Storage, Subcommand};
use run::Lifecycle;
use telemetry::metrics::{Metrics, Registered};

mod backup;
mod check;
mod claim;
mod debug;
pub mod disk_space;
mod dump;
mod embedded;
mod engine;
mod first_start;
mod import;
pub mod node;
mod ports;
pub mod process;
mod quota;
mod refusal;
mod restore;
mod retry;
mod run;
pub mod services;
mod snapshot;
mod tikv;
mod wipe;

/// Runs the program to its end.
#[must_use]
pub fn main() -> ExitCode {
    // The process has many small allocations, and many of them live as long as a connection: huge pages would keep much unused memory
    // resident for them. A kernel without huge pages refuses this call and does not need it.
    let _refused = rustix::thread::disable_transparent_huge_pages(true);
    process::run(|mut config, signals| async move {
        engine::cap_requests(&mut config);
        if config.checks {
            return check::run(&config);
        }
        let life = Lifecycle::begin(signals);
        match &config.subcommand {
            Some(Subcommand::Wipe) => Box::pin(wipe::run(&config, life)).await,
            Some(Subcommand::Dump(dump)) => Box::pin(debug::run(&config, dump, life)).await,
            Some(Subcommand::Snapshot(command)) => Box::pin(snapshot::run(&config, command, life)).await,
            Some(Subcommand::Import(command)) => Box::pin(import::run(&config, command, life)).await,
            Some(Subcommand::Backup(command)) => Box::pin(backup::run(&config, command, life)).await,
            None => match &config.storage {
                Storage::Embedded => embedded::run(&config, life).await,
                Storage::Tikv(options) => Box::pin(tikv::run(&config, options.clone(), life)).await,
            },
        }
    })
}

/// Returns every metric that a brain can export, for the reference of metrics.
#[must_use]
pub fn metrics() -> Vec<Registered> {
    let of_tikv = engine_tikv::TikvMetrics::default().collectors().into_iter();
    let of_tikv = of_tikv.map(|collector| Registered {
        section: "TiKV",
        collector,
    });
    Metrics::reference().into_iter().chain(of_tikv).collect()
}
