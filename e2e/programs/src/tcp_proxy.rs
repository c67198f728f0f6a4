//! Addresses of elsewhere within a network namespace.
//!
//! A socket stays in the namespace in which it was made, whatever thread uses it: one thread listens in there, and connects out here.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::fd::AsFd as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use crate::command::run;
use crate::tools::debian;

/// After a connection that could not be taken over.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Listens until it is dropped; then its connections end, too.
#[derive(Debug)]
pub struct TcpProxy {
    stop: Option<DropGuard>,
    thread: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// Connects a client of one of `addresses` in one of the namespaces `inside` to the server that listens there in the namespace
    /// `outside`. Namespaces are files, as those in `/run/netns`. Addresses that are not there are given to `lo`.
    ///
    /// # Errors
    ///
    /// A namespace cannot be entered, or an address is taken.
    pub fn start(outside: &Path, inside: &[PathBuf], addresses: &[SocketAddr]) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let (outside, inside, addresses) = (outside.to_owned(), inside.to_owned(), addresses.to_owned());
        let (tell, told) = mpsc::sync_channel(1);
        let stopped = stop.clone();
        let relay = move || match prepare(&outside, &inside, &addresses) {
            // the send fails only if the proxy was dropped, which stops it
            Ok((runtime, listeners)) => {
                drop(tell.send(Ok(())));
                runtime.block_on(serve(listeners, &stopped));
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = thread::Builder::new().name("relay".to_owned()).spawn(relay)?;
        let ready = told
            .recv()
            .unwrap_or_else(|_| Err(anyhow!("the relay's thread panicked")));
        ready.context("relay connections")?;
        Ok(Self {
            stop: Some(stop.drop_guard()),
            thread: Some(thread),
        })
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // it panicked; its clients have noticed
            drop(thread.join());
        }
    }
}

type ProxyListener = (SocketAddr, TcpListener);

/// Leaves the thread in the namespace from which it connects.
fn prepare(
    outside: &Path,
    inside: &[PathBuf],
    addresses: &[SocketAddr],
) -> anyhow::Result<(Runtime, Vec<ProxyListener>)> {
    // opened first: a path may mean another namespace once this thread has moved
    let outside = open(outside)?;
    let inside: Vec<File> = inside.iter().map(|path| open(path)).collect::<anyhow::Result<_>>()?;
    let mut listeners = Vec::new();
    for namespace in &inside {
        enter(namespace)?;
        for address in addresses {
            listeners.push((*address, listen(*address)?));
        }
    }
    enter(&outside)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok((runtime, listeners))
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("open the network namespace {}", path.display()))
}

fn enter(namespace: &File) -> anyhow::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context("enter a network namespace")
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    if !address.ip().is_loopback() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let alias = format!("{}/{bits}", address.ip());
        run(debian::find("ip")?, ["addr", "replace", &alias, "dev", "lo"])?;
    }
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listeners: Vec<ProxyListener>, stop: &CancellationToken) {
    let mut all = JoinSet::new();
    for (address, listener) in listeners {
        all.spawn(accept(address, listener));
    }
    tokio::select! {
        () = stop.cancelled() => {}
        ended = all.join_next() => tracing::error!(?ended, "a relay has ended"),
    }
}

async fn accept(address: SocketAddr, listener: TcpListener) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // a connection that was gone already, or no more files for a moment
                warn!(%address, %error, "a connection could not be taken over");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        connections.spawn(async move {
            if let Err(error) = join(stream, address).await {
                debug!(%address, %error, "a relayed connection ended");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn join(mut inside: TcpStream, address: SocketAddr) -> std::io::Result<()> {
    let mut outside = TcpStream::connect(address).await?;
    inside.set_nodelay(true)?;
    outside.set_nodelay(true)?;
    copy_bidirectional(&mut inside, &mut outside).await?;
    Ok(())
}
