//! The program: reads the flags, opens a store on the configured engine, and serves it until it must stop.

use std::process::ExitCode;

use crate::flags::Storage;
use run::Lifecycle;

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
        if let Some(dump) = &config.dump {
            return Box::pin(debug::run(&config, dump, life)).await;
        }
        if let Some(command) = &config.snapshot {
            return Box::pin(snapshot::run(&config, command, life)).await;
        }
        if let Some(command) = &config.import {
            return Box::pin(import::run(&config, command, life)).await;
        }
        match &config.storage {
            Storage::Tikv(options) if config.wipes => Box::pin(wipe::run(&config, options, life)).await,
            Storage::Embedded => embedded::run(&config, life).await,
            Storage::Tikv(options) => Box::pin(tikv::run(&config, options.clone(), life)).await,
        }
    })
}
