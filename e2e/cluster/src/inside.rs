//! A cluster's network for code of this process: pods and Services are reached by their addresses.
//!
//! A thread's sockets are made in the network namespace that it is in, and threads that it starts begin in the same one.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::fd::AsFd as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Builder;

use crate::cluster_dir::ClusterDir;
use crate::kubeconfig;
use crate::namespace::API;

/// Threads of the runtime.
const RUNTIME_THREADS: usize = 2;

/// Runs the future that `begin` makes to its end, on a runtime whose threads are all in the cluster's network. A panic propagates to the
/// caller.
///
/// # Errors
///
/// The network cannot be entered.
pub fn run<F>(home: &ClusterDir, begin: impl FnOnce() -> F + Send) -> anyhow::Result<F::Output>
where
    F: Future,
    F::Output: Send,
{
    let network = Path::new("/run/netns").join(home.netns());
    let network = File::open(&network).with_context(|| format!("open the network namespace {}", network.display()))?;
    let enter = move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .context("enter the cluster's network")?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .context("start a runtime in the cluster's network")?;
        Ok(runtime.block_on(begin()))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("inside".to_owned())
            .spawn_scoped(scope, enter)
            .map_err(|error| anyhow!("start a thread: {error}"))?;
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Writes a kubeconfig of the cluster's administrator for programs that are started inside, and gives its path.
///
/// # Errors
///
/// It cannot be written.
pub fn kubeconfig(home: &ClusterDir) -> anyhow::Result<PathBuf> {
    kubeconfig::write(home, "inside.kubeconfig", &format!("https://{API}"), "ca", "admin")
}

/// A client of the cluster's API server as its administrator, for use inside.
///
/// # Errors
///
/// The kubeconfig is gone or makes no client.
pub async fn client(home: &ClusterDir) -> anyhow::Result<kube::Client> {
    client_at(&home.kubeconfig(), &format!("https://{API}")).await
}

/// A client with the certificates of a kubeconfig, of the API server at `url`.
///
/// # Errors
///
/// The file cannot be read or makes no client.
pub async fn client_at(kubeconfig: &Path, url: &str) -> anyhow::Result<kube::Client> {
    client_named(kubeconfig, url, None).await
}

/// As [`client_at`] of a server whose certificate has this name instead of the one in `url`.
///
/// # Errors
///
/// As [`client_at`].
pub async fn client_named(kubeconfig: &Path, url: &str, name: Option<&str>) -> anyhow::Result<kube::Client> {
    let mut config = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    for cluster in &mut config.clusters {
        if let Some(cluster) = &mut cluster.cluster {
            cluster.server = Some(url.to_owned());
            cluster.tls_server_name = name.map(str::to_owned);
        }
    }
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    kube::Client::try_from(config).with_context(|| format!("make a client from {}", kubeconfig.display()))
}
