//! The store of a cluster's API server: a brain, or etcd to compare with. Both are started with etcd's flags.

use std::path::PathBuf;

use anyhow::ensure;

use crate::config::Store;
use crate::probe;
use crate::site::Site;
use crate::supervisor::Program;

/// The program's name in state and logs.
pub const NAME: &str = "store";
/// Where it listens, in the cluster's network.
pub const ADDRESS: &str = "127.0.0.1:2379";

/// What to run.
///
/// # Errors
///
/// There is no such program yet.
pub fn program(site: &Site, store: Store) -> anyhow::Result<Program> {
    let path: PathBuf = match store {
        Store::Brain => site.tools.own.get("kubebrain")?,
        Store::Etcd => site.tools.etcd.join("etcd"),
    };
    let url = format!("http://{ADDRESS}");
    let args = [
        "--name=store".to_owned(),
        site.file_flag("data-dir", "store/data"),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=store=http://127.0.0.1:2380".to_owned(),
        // what kubeadm sets
        "--feature-gates=InitialCorruptCheck=true".to_owned(),
        "--watch-progress-notify-interval=5s".to_owned(),
    ];
    Ok(site.program(NAME, &path, args))
}

/// Whether it serves.
///
/// # Errors
///
/// It does not, and why.
pub async fn healthy(site: &Site) -> anyhow::Result<()> {
    let answer = probe::get(&site.home.path("sockets/store.sock"), "/health").await?;
    ensure!(answer.contains("\"true\""), "the store's /health says: {answer}");
    Ok(())
}
