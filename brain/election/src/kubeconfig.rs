//! A kubeconfig, read as client-go does, and its client, which is made anew when the files change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use secrecy::ExposeSecret as _;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::lease::client;

/// The interval at which the files are read.
pub(crate) const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The client of a kubeconfig. Like client-go, it reads certificates again: tools that issue short-lived certificates replace the files.
#[derive(Clone)]
pub(crate) struct ReloadedClient(Arc<Mutex<Loaded>>);

struct Loaded {
    path: PathBuf,
    call_timeout: Duration,
    client: Client,
    files: Files,
    checked: Instant,
}

/// The kubeconfig and the files that it names, with their contents; `None`: it cannot be read.
type Files = Vec<(PathBuf, Option<Vec<u8>>)>;

impl ReloadedClient {
    /// Returns the client, and the namespace that the kubeconfig names.
    pub(crate) async fn new(path: &Path, call_timeout: Duration) -> anyhow::Result<(Self, String)> {
        let files = files(path);
        let (client, namespace) = load(path, call_timeout).await?;
        let loaded = Loaded {
            path: path.to_owned(),
            call_timeout,
            client,
            files,
            checked: Instant::now(),
        };
        Ok((Self(Arc::new(Mutex::new(loaded))), namespace))
    }

    /// Returns the client of the files as they are now. While they cannot be used it is the last one.
    pub(crate) async fn current(&self) -> Client {
        let mut loaded = self.0.lock().await;
        if loaded.checked.elapsed() >= RELOAD_INTERVAL {
            loaded.check().await;
        }
        loaded.client.clone()
    }
}

impl Loaded {
    async fn check(&mut self) {
        let path = self.path.clone();
        // A disk that hangs holds up this call alone, which has a time limit.
        let Ok(found) = tokio::task::spawn_blocking(move || files(&path)).await else {
            return;
        };
        self.checked = Instant::now();
        if found == self.files {
            return;
        }
        // Files that cannot be used are named once: when they came.
        self.files = found;
        let path = self.path.display();
        match load(&self.path, self.call_timeout).await {
            Ok((client, _)) => {
                self.client = client;
                tracing::info!("the kubeconfig {path}, or a file that it names, has changed; using it");
            }
            Err(error) => tracing::warn!("the old kubeconfig stays in use: {error:#}"),
        }
    }
}

/// Reads the kubeconfig and what it names.
fn files(path: &Path) -> Files {
    let mut paths = vec![path.to_owned()];
    if let Ok(read) = Kubeconfig::read_from(path) {
        let clusters = read.clusters.into_iter().filter_map(|named| named.cluster);
        let users = read.auth_infos.into_iter().filter_map(|named| named.auth_info);
        let named = clusters
            .map(|cluster| cluster.certificate_authority)
            .chain(users.flat_map(|user| [user.client_certificate, user.client_key, user.token_file]));
        paths.extend(named.flatten().map(PathBuf::from));
    }
    paths
        .into_iter()
        .map(|path| {
            let contents = fs::read(&path).ok();
            (path, contents)
        })
        .collect()
}

async fn load(path: &Path, call_timeout: Duration) -> anyhow::Result<(Client, String)> {
    let at = || format!("use the kubeconfig {}", path.display());
    let read = as_client_go(Kubeconfig::read_from(path).with_context(at)?);
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let config = config.with_context(at)?;
    let namespace = config.default_namespace.clone();
    let client = client(config, call_timeout).with_context(at)?;
    Ok((client, namespace))
}

/// Changes what kube understands in another way than client-go: a token file that can be read counts before a token and may have white
/// space around it, and base64 may have line breaks.
#[must_use]
pub fn as_client_go(mut read: Kubeconfig) -> Kubeconfig {
    let unbroken = |data: &str| data.replace(['\r', '\n'], "");
    for cluster in read.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let data = &mut cluster.certificate_authority_data;
        *data = data.as_deref().map(unbroken);
    }
    for user in read.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        let data = &mut user.client_certificate_data;
        *data = data.as_deref().map(unbroken);
        if let Some(data) = &user.client_key_data {
            user.client_key_data = Some(unbroken(data.expose_secret()).into());
        }
        if let Some(token) = user.token_file.as_deref().and_then(token) {
            user.token = Some(token.into());
            user.token_file = None;
        }
    }
    read
}

/// Returns the token in a file; `None` if there is none.
fn token(file: &str) -> Option<String> {
    let token = fs::read_to_string(file).ok()?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
