//! The program: reads the flags, opens a store over the engine that they name, and serves it until it is told to end.

use std::process::ExitCode;

use crate::flags::Storage;
use run::Lifecycle;

mod debug;
mod dump;
mod embedded;
mod engine;
pub mod not_ready;
pub mod process;
mod refusal_of;
mod retry;
mod run;
pub mod services;
pub mod store;
mod tikv;
mod wipe;

/// Runs the program to its end.
#[must_use]
pub fn main() -> ExitCode {
    // Memory comes in small pieces, many of which stay for as long as a connection does: in huge pages each of them keeps much
    // that nobody uses. A kernel without huge pages refuses this, and needs it not.
    let _refused = rustix::thread::disable_transparent_huge_pages(true);
    process::run(|mut config, signals| async move {
        engine::cap_requests(&mut config);
        let life = Lifecycle::begin(signals);
        if let Some(dump) = &config.dump {
            return Box::pin(debug::run(&config, dump, life)).await;
        }
        match &config.storage {
            Storage::Tikv(options) if config.wipes => Box::pin(wipe::run(&config, options, life)).await,
            Storage::Embedded => embedded::run(&config, life).await,
            Storage::Tikv(options) => Box::pin(tikv::run(&config, options.clone(), life)).await,
        }
    })
}
