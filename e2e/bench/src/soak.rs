//! A steady load on one brain for a long time: memory, disk and latency must not grow.
//!
//! Each minute is a row of a table. The verdict is based on the rows after the warm-up (`trend.rs`), and is the exit code.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::progress::Progress;
use programs::server::{Program, Server, bytes_below};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tokio_util::sync::CancellationToken;

mod latency;
mod load;
mod trend;
mod verdict;

use crate::disk::{ServerDir, refuse_memory};
use crate::percentile::percentile;
use latency::SoakLatencies;
use load::SoakLoad;
use trend::MIN_TREND_VALUES;
use verdict::SoakVerdict;

const MINUTE: Duration = Duration::from_secs(60);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The least there is: a large cache fills for an hour, with blocks of tables that are gone, too, and would hide what grows.
const CACHE_FLAG: &str = "--embedded-cache-bytes=67108864";

/// Puts a steady load on one brain, and checks that memory, disk and latency do not grow.
#[derive(Debug, clap::Parser)]
#[command(name = "kubebrain-soak", version)]
pub struct SoakFlags {
    /// Duration of the load.
    #[arg(long, default_value_t = 60)]
    minutes: usize,
    /// Minutes of warm-up; by default a third of all, at most ten.
    #[arg(long)]
    warm_up: Option<usize>,
    /// Requests a second.
    #[arg(long, default_value_t = 400)]
    rate: u32,
    /// Parent of the data directory, on a real disk.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
}

/// The figures of one minute.
#[derive(Debug, Clone, Copy)]
struct MinuteRow {
    requests: u64,
    events: u64,
    write_p50: f64,
    write_p99: f64,
    list_p99: f64,
    memory: f64,
    disk: f64,
}

/// Runs the load, prints a row a minute, and answers whether all figures were flat.
///
/// # Errors
///
/// The brain ended or complained, or a request failed.
#[tokio::main]
pub async fn run(flags: SoakFlags, progress: &Progress) -> anyhow::Result<bool> {
    let warm_up = flags.warm_up.unwrap_or((flags.minutes / 3).min(10));
    ensure!(
        flags.minutes >= warm_up + MIN_TREND_VALUES,
        "too short: {MIN_TREND_VALUES} minutes are needed after {warm_up} of warm-up"
    );
    ensure!(flags.rate > 0, "--rate is at least 1");
    std::fs::create_dir_all(&flags.dir).with_context(|| format!("create {}", flags.dir.display()))?;
    let dir = flags.dir.canonicalize()?;
    refuse_memory(&dir)?;
    let place = ServerDir::new(&dir)?;
    let mut server = Server::start_in(&Program::kubebrain()?, &place.data(), &[CACHE_FLAG])?;
    progress.say(format_args!(
        "{} minutes at {} requests a second, {warm_up} of them to warm up",
        flags.minutes, flags.rate
    ));
    println!("minute requests   events  write p50  write p99   list p99   memory     disk");
    let (latencies, stop) = (SoakLatencies::default(), CancellationToken::new());
    let mut load = SoakLoad::start(&server, flags.rate, &latencies, &stop).await?;
    let mut rows = Vec::new();
    for minute in 1..=flags.minutes {
        let row = one_minute(&mut server, &mut load, &latencies).await?;
        println!(
            "{minute:>6} {:>8} {:>8} {:>7.1} ms {:>7.1} ms {:>7.1} ms {:>5.0} MiB {:>5.0} MiB",
            row.requests, row.events, row.write_p50, row.write_p99, row.list_p99, row.memory, row.disk
        );
        rows.push(row);
    }
    stop.cancel();
    load.end().await?;
    // Clients have just left in the middle of answers.
    let server = server.expected_logs("requests of clients were refused or reset");
    server.stop()?;
    let verdict = SoakVerdict::of(&rows[warm_up..], flags.rate);
    println!("{verdict}");
    Ok(verdict.is_flat())
}

async fn one_minute(server: &mut Server, load: &mut SoakLoad, latencies: &SoakLatencies) -> anyhow::Result<MinuteRow> {
    let end = Instant::now() + MINUTE;
    let mut samples = interval(SAMPLE_INTERVAL);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut memory, mut disk, mut count) = (0.0, 0.0, 0.0);
    while Instant::now() < end {
        samples.tick().await;
        if let Some(status) = server.ended()? {
            anyhow::bail!("the brain ended: {status}\n{}", server.last_lines());
        }
        load.check()?;
        memory += mib(server.usage()?.rss);
        // A file may go between a look at the directory and one at the file.
        disk += mib(bytes_below(server.dir()).or_else(|_| bytes_below(server.dir()))?);
        count += 1.0;
    }
    let (writes, lists) = latencies.take();
    Ok(MinuteRow {
        requests: (writes.len() + lists.len()) as u64,
        events: load.events(),
        write_p50: percentile(&writes, 0.50),
        write_p99: percentile(&writes, 0.99),
        list_p99: percentile(&lists, 0.99),
        memory: memory / count,
        disk: disk / count,
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Ticks for one of `workers` workers that share a rate.
fn paced(rate: u32, workers: u32, worker: u32) -> tokio::time::Interval {
    let period = Duration::from_secs_f64(f64::from(workers) / f64::from(rate));
    let mut ticks = interval_at(Instant::now() + period * worker / workers, period);
    // A brain that was slow for a moment is not punished by a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
