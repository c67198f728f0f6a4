//! `kubebrain`: reads the flags, opens the store, serves. Here and below is the only place that names a storage engine.

use std::process::ExitCode;

use brain::flags::Storage;
use brain::process;

use crate::run::Life;

#[path = "main/embedded.rs"]
mod embedded;
#[path = "main/engine.rs"]
mod engine;
#[path = "main/patience.rs"]
mod patience;
#[path = "main/run.rs"]
mod run;
#[path = "main/tikv.rs"]
mod tikv;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Memory comes in small pieces, many of which stay for as long as a connection does: in huge pages each of them keeps much
    // that nobody uses. A kernel without huge pages refuses this, and needs it not.
    let _refused = rustix::thread::disable_transparent_huge_pages(true);
    process::run(|mut config, signals| async move {
        engine::cap_requests(&mut config);
        let life = Life::begin(signals);
        match &config.storage {
            Storage::Embedded => embedded::run(&config, life).await,
            Storage::Tikv(options) => Box::pin(tikv::run(&config, options.clone(), life)).await,
        }
    })
}
