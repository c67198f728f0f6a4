//! The program in the pods of tests: `pause` holds a pod's namespaces, `serve` is a workload.

use std::fs;
use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

#[derive(Parser)]
enum Command {
    /// Waits for SIGTERM.
    Pause,
    /// Answers every request with this pod's name and how often it has been started on this volume.
    Serve {
        /// TCP port.
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// A volume that remembers starts.
        #[arg(long)]
        volume: Option<PathBuf>,
    },
    /// Looks up a name, and prints its addresses.
    Lookup {
        /// The name.
        name: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let work = async {
        match Command::parse() {
            Command::Pause => std::future::pending().await,
            Command::Serve { port, volume } => serve(port, volume).await,
            Command::Lookup { name } => lookup(&name),
        }
    };
    tokio::select! {
        done = work => done,
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

async fn serve(port: u16, volume: Option<PathBuf>) -> anyhow::Result<()> {
    let name = fs::read_to_string("/etc/hostname").context("read this pod's name")?;
    let starts = match volume {
        Some(volume) => count(volume)?,
        None => 0,
    };
    let body = format!("{} {starts}\n", name.trim());
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let listener = TcpListener::bind(("0.0.0.0", port))
        .await
        .with_context(|| format!("listen on port {port}"))?;
    writeln!(std::io::stdout(), "serving on port {port}, start {starts}")?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("accept a connection")?;
                connections.spawn(reply(stream, answer.clone()));
            }
            Some(ended) = connections.join_next() => drop(ended), // the other side went away: its own affair
        }
    }
}

async fn reply(mut stream: TcpStream, answer: String) -> std::io::Result<()> {
    let mut request = [0; 1024];
    if stream.read(&mut request).await? > 0 {
        stream.write_all(answer.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// Adds a line to a file on the volume, and says how many it has.
fn count(volume: PathBuf) -> anyhow::Result<usize> {
    let path = volume.join("starts");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path);
    let file = file
        .as_mut()
        .map_err(|error| anyhow::anyhow!("open {}: {error}", path.display()))?;
    writeln!(file, "started").with_context(|| format!("write {}", path.display()))?;
    file.sync_all().with_context(|| format!("sync {}", path.display()))?;
    Ok(fs::read_to_string(&path)?.lines().count())
}

fn lookup(name: &str) -> anyhow::Result<()> {
    let addresses = (name, 0).to_socket_addrs().with_context(|| format!("look up {name}"))?;
    for address in addresses {
        writeln!(std::io::stdout(), "{}", address.ip())?;
    }
    Ok(())
}
