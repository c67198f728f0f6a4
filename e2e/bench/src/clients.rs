//! Measures a server from the side of its clients, with one client and with many. Each part starts a fresh server.

use std::path::Path;

use anyhow::Context as _;
use programs::progress::Progress;
use programs::server::{Program, Server};

use crate::disk::ServerDir;
use crate::percentile::percentile;
use crate::report::{Report, Unit};

mod arrivals;
mod connections;
mod creates;
mod fan_out;
mod fixed_rate;
mod idle_watches;
mod one_writer;
mod stalled_watcher;
mod watched_keys;

/// Connections of most loads, and requests in flight on all of them.
const CONNECTIONS: usize = 8;
const IN_FLIGHT: u64 = 256;

/// Settings that are the same for both servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientsPlan {
    /// Of loads with a number of requests.
    pub(crate) requests: u64,
    pub(crate) idle_watches: u64,
    /// Of the load with one request on each.
    pub(crate) connections: u32,
    /// Updates a second of the load with a fixed rate.
    pub(crate) rate: f64,
}

/// `most` connections, or as many as this machine's limit of open files permits.
pub(crate) fn possible_connections(most: u32) -> u32 {
    connections::possible(most.into()).try_into().unwrap_or(most)
}

/// The rate of the load with a fixed one: a part of the peak that etcd has now.
pub(crate) fn fixed_rate(etcd: &Program, dir: &Path, requests: u64, progress: &Progress) -> anyhow::Result<f64> {
    let step = progress.step("etcd's peak");
    let place = ServerDir::new(dir)?;
    let server = Server::start_in(etcd, &place.data(), &[])?;
    let peak = on_one_thread(|| fixed_rate::peak(&server, requests))?;
    server.stop()?;
    step.done();
    Ok(peak * fixed_rate::PEAK_FRACTION)
}

/// One round on one server.
pub(crate) fn measure(program: &Program, dir: &Path, plan: ClientsPlan, report: &mut Report) -> anyhow::Result<()> {
    let fresh = FreshServers { program, dir };
    fresh.run("creates", async |server, _| {
        creates::measure(server, plan.requests, report).await
    })?;
    fresh.run("fan-out", async |server, _| fan_out::measure(server, report).await)?;
    fresh.run("watched keys", async |server, _| {
        watched_keys::measure(server, report).await
    })?;
    let idle = plan.idle_watches;
    fresh.run("idle watches", async |server, _| {
        idle_watches::measure(server, idle, report).await
    })?;
    fresh.run("one writer", async |server, _| {
        one_writer::measure(server, report).await
    })?;
    let clients = plan.connections;
    fresh.run("connections", async |server, place| {
        connections::measure(server, place, clients, report).await
    })?;
    let rate = plan.rate;
    fresh.run("fixed rate", async |server, _| {
        fixed_rate::measure(server, rate, report).await
    })?;
    fresh.run("stalled watcher", async |server, _| {
        stalled_watcher::measure(server, report).await
    })
}

/// Starts servers on fresh directories.
struct FreshServers<'a> {
    program: &'a Program,
    dir: &'a Path,
}

impl FreshServers<'_> {
    fn run(
        &self,
        part: &str,
        measure: impl AsyncFnOnce(&Server, &ServerDir) -> anyhow::Result<()> + Send,
    ) -> anyhow::Result<()> {
        let place = ServerDir::new(self.dir)?;
        let server = Server::start_in(self.program, &place.data(), &[])?;
        on_one_thread(|| measure(&server, &place)).with_context(|| part.to_owned())?;
        server.stop().with_context(|| part.to_owned())
    }
}

/// Runs a load on one thread, as h2load does: it takes one core at most, and blocks the caller.
pub(crate) fn on_one_thread<T: Send, F: Future<Output = anyhow::Result<T>>>(
    load: impl FnOnce() -> F + Send,
) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(load())
        });
        thread.join().ok().context("a load panicked")?
    })
}

/// Milliseconds: half of them are within the first number, 99 of 100 within the second.
fn say_percentiles(name: &str, times: &[f64], program: &'static str, report: &mut Report) {
    for (suffix, part) in [("p50", 0.50), ("p99", 0.99)] {
        let value = percentile(times, part);
        report.say(&format!("{name}, {suffix}"), Unit::Millis, program, value);
    }
}
