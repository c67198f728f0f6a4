//! The mock as a program of its own.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use mock_tikv::{GcApi, MockTikv, Options, Tls, control};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// A TEST PROGRAM that replaces PD and TiKV: one copy of the data for all ports, and faults on command.
///
/// Prints one line of JSON with its addresses as soon as all ports are open. Never use it for data that matter.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Address of PD; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    pd_listen: SocketAddr,
    /// Number of members of PD; all except the first one use free ports of its address
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pd_members: u16,
    /// Address of a store; can be given several times
    #[arg(long, conflicts_with = "stores")]
    store_listen: Vec<SocketAddr>,
    /// Number of stores, on free ports of PD's address
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    stores: u16,
    /// Host that is advertised to clients; default: the one that PD and the stores listen on
    #[arg(long)]
    advertise_host: Option<String>,
    /// Keep the data in this file, with an fsync for each group of writes; it only grows
    #[arg(long)]
    data_file: Option<PathBuf>,
    /// Minimum time of each write, such as 3ms or 1.5s
    #[arg(long, default_value = "0ms", value_parser = duration)]
    commit_latency: Duration,
    /// Lifetime of locks that are neither committed nor rolled back, whatever TTL their transaction asks for
    #[arg(long, value_parser = duration)]
    lock_ttl: Option<Duration>,
    /// ID of the cluster; the data file is then bound to it
    #[arg(long, default_value_t = 7)]
    cluster_id: u64,
    /// Seed of the random choice of faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// PD has GC states, as since 9.0, and not only service safe points
    #[arg(long)]
    gc_states: bool,
    /// Address for commands over plain HTTP; default: none
    #[arg(long)]
    control_listen: Option<SocketAddr>,
    /// CA of the clients' certificates (PEM): PD and all stores then speak TLS
    #[arg(long, requires = "cert", requires = "key")]
    ca: Option<PathBuf>,
    /// Certificate of PD and all stores (PEM)
    #[arg(long, requires = "ca")]
    cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, requires = "ca")]
    key: Option<PathBuf>,
}

/// A number and `us`, `ms` or `s`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("a duration is a number and us, ms or s".to_owned()),
    };
    let number: f64 = number.parse().map_err(|error| format!("{number}: {error}"))?;
    Duration::try_from_secs_f64(number * factor).map_err(|error| error.to_string())
}

impl Flags {
    fn options(&self) -> Options {
        let any = SocketAddr::new(self.pd_listen.ip(), 0);
        let stores = match self.store_listen.is_empty() {
            true => vec![any; usize::from(self.stores)],
            false => self.store_listen.clone(),
        };
        let files = self.ca.clone().zip(self.cert.clone()).zip(self.key.clone());
        Options {
            pd: self.pd_listen,
            pd_members: usize::from(self.pd_members),
            stores,
            advertised_host: self.advertise_host.clone(),
            data_file: self.data_file.clone(),
            commit_latency: self.commit_latency,
            lock_ttl: self.lock_ttl,
            cluster_id: self.cluster_id,
            seed: self.seed,
            tls: files.map(|((ca, cert), key)| Tls { ca, cert, key }),
            gc: if self.gc_states { GcApi::States } else { GcApi::Services },
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let listener = match flags.control_listen {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .with_context(|| format!("listen on {address}"))?,
        ),
        None => None,
    };
    let control = listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()
        .context("the control port")?;
    let mock_tikv = Arc::new(MockTikv::start(flags.options()).await.context("start")?);
    let ready = serde_json::json!({ "pd": mock_tikv.pd(), "pd_members": mock_tikv.pd_members(), "stores": mock_tikv.stores(), "control": control });
    writeln!(std::io::stdout(), "{ready}").context("report readiness")?;
    let commands = async {
        match listener {
            Some(listener) => axum::serve(listener, control::router(Arc::clone(&mock_tikv))).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = commands => served.context("serve commands"),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("3ms"), Ok(Duration::from_millis(3)));
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(["3", "ms", "-1s", "3m"].iter().all(|text| duration(text).is_err()));
    }
}
