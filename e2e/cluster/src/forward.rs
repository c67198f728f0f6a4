//! Loopback ports that lead into a cluster's network.
//!
//! A path of a Unix socket is seen from every network namespace: socat listens on it inside, we connect to it outside.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use programs::tools::debian;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::debug;

use crate::cluster_context::ClusterContext;
use crate::supervisor::SupervisedProgram;

/// Connections of one port; more of them wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;

/// The end inside: a program that connects every caller of a socket to `address`.
///
/// # Errors
///
/// There is no socat.
pub fn inside(site: &ClusterContext, name: &str, address: &str) -> anyhow::Result<SupervisedProgram> {
    let listen = format!(
        "UNIX-LISTEN:{},fork,unlink-early,backlog=1024",
        socket(site, name).display()
    );
    Ok(site.program(
        &format!("forward-{name}"),
        &debian::find("socat")?,
        [listen, format!("TCP:{address},nodelay")],
    ))
}

/// The socket between the two ends.
pub fn socket(site: &ClusterContext, name: &str) -> PathBuf {
    site.home.path(format!("sockets/{name}.sock"))
}

/// The end outside.
pub struct OutsideEnd {
    listener: TcpListener,
    socket: PathBuf,
}

impl OutsideEnd {
    /// Listens on a loopback port, or on any free one if it is 0.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub async fn listen(site: &ClusterContext, name: &str, port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.with_context(|| format!("listen on port {port} for connections to {name}"))?;
        Ok(Self {
            listener,
            socket: socket(site, name),
        })
    }

    /// The port.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn port(&self) -> anyhow::Result<u16> {
        Ok(self.listener.local_addr().context("ask for a listener's port")?.port())
    }

    /// Serves until dropped.
    ///
    /// # Errors
    ///
    /// No connection can be accepted any more.
    pub async fn run(self) -> anyhow::Result<()> {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let place = places.clone().acquire_owned().await.context("a semaphore was closed")?;
            let (stream, _) = self.listener.accept().await.context("accept a connection")?;
            let socket = self.socket.clone();
            connections.spawn(async move {
                if let Err(error) = join(stream, socket).await {
                    debug!(%error, "a forwarded connection ended");
                }
                drop(place);
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn join(mut outside: TcpStream, socket: PathBuf) -> std::io::Result<()> {
    outside.set_nodelay(true)?;
    let mut inside = UnixStream::connect(socket).await?;
    copy_bidirectional(&mut outside, &mut inside).await?;
    Ok(())
}
