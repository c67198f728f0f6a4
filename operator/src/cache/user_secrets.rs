//! Secrets of the user that the spec names. They do not carry the operator's label, so no other watch covers them. Each has a watch of its
//! own by name, shared by all clusters that name it, which ends when no cluster names it any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use plan::spec::secrets::{GivenSecrets, is_name, named, pruned};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::work_queue::WorkQueue;

/// Maximum number of Secrets that are watched. Others are read in every pass over a cluster that names them.
const MAX_WATCHED_SECRETS: usize = 256;
/// Timeout for the first answers of all watches of a cluster.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a watch checks that a cluster still names its Secret.
const CLUSTER_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The watches. Clones share them.
#[derive(Clone)]
pub(crate) struct UserSecrets {
    client: Client,
    clusters: Store<KubeBrainCluster>,
    queue: Arc<WorkQueue>,
    running: Arc<Mutex<RunningSecretWatch>>,
}

#[derive(Default)]
struct RunningSecretWatch {
    tasks: JoinSet<()>,
    watches: HashMap<SecretKeys, (watch::Receiver<SecretState>, AbortHandle)>,
}

/// A Secret, and the keys whose values are read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SecretKeys {
    namespace: String,
    name: String,
    keys: BTreeSet<String>,
}

/// The state of a watch.
#[derive(Debug, Clone)]
enum SecretState {
    Nothing,
    /// No Secret yet, only this error.
    Failed(String),
    /// The Secret; `None` if it does not exist.
    Secret(Option<Arc<Secret>>),
}

impl UserSecrets {
    pub(crate) fn new(client: Client, clusters: Store<KubeBrainCluster>, queue: Arc<WorkQueue>) -> Self {
        Self {
            client,
            clusters,
            queue,
            running: Arc::default(),
        }
    }

    /// Returns the Secrets that the spec of `cluster` names; `None` for one that does not exist. The first call starts their watches.
    ///
    /// # Errors
    /// The API server refused, or did not answer in time.
    pub(crate) async fn of(&self, cluster: &KubeBrainCluster) -> kube::Result<GivenSecrets> {
        let until = Instant::now() + FIRST_ANSWERS_TIMEOUT;
        let named = named(&cluster.spec);
        // Start all watches before waiting for any.
        let watches: Vec<_> = named
            .into_iter()
            .map(|(name, keys)| {
                let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
                let key = SecretKeys { namespace, name, keys };
                (is_name(&key.name).then(|| self.watch(&key)), key)
            })
            .collect();
        let mut found = BTreeMap::new();
        for (watch, key) in watches {
            let secret = match watch {
                // The API server does not accept such names.
                None => None,
                Some(Some(watch)) => first(watch, &key, until).await?,
                Some(None) => {
                    let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
                    let secret = api.get_opt(&key.name).await?;
                    secret.map(|secret| pruned(secret, &key.keys))
                }
            };
            found.insert(key.name, secret);
        }
        Ok(found)
    }

    /// Returns the watch of a Secret; `None` if there are too many.
    fn watch(&self, key: &SecretKeys) -> Option<watch::Receiver<SecretState>> {
        let mut running = self.lock();
        while running.tasks.try_join_next().is_some() {}
        let RunningSecretWatch { tasks, watches } = &mut *running;
        watches.retain(|_, (_, task)| !task.is_finished());
        if let Some((seen, _)) = watches.get(key) {
            return Some(seen.clone());
        }
        if watches.len() >= MAX_WATCHED_SECRETS {
            return None;
        }
        let (show, seen) = watch::channel(SecretState::Nothing);
        let task = tasks.spawn(self.clone().run(key.clone(), show));
        watches.insert(key.clone(), (seen.clone(), task));
        Some(seen)
    }

    /// Watches until no cluster names the Secret.
    async fn run(self, key: SecretKeys, show: watch::Sender<SecretState>) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut events = Box::pin(watcher::watch_object(api, &key.name).default_backoff());
        let following = async {
            while let Some(event) = events.next().await {
                let secret = match event {
                    Ok(secret) => secret.map(|secret| pruned(secret, &key.keys)),
                    Err(error) => {
                        failed(&show, &key, &error);
                        continue;
                    }
                };
                let before = show.send_replace(SecretState::Secret(secret.clone()));
                match before {
                    // A cluster that waits for the first answer needs no additional pass.
                    SecretState::Nothing => {}
                    SecretState::Secret(before) if before == secret => {}
                    SecretState::Failed(_) | SecretState::Secret(_) => {
                        self.naming(&key)
                            .into_iter()
                            .for_each(|cluster| self.queue.add(cluster));
                    }
                }
            }
        };
        let unnamed = async {
            loop {
                tokio::time::sleep(CLUSTER_CHECK_INTERVAL).await;
                if self.naming(&key).is_empty() {
                    return;
                }
            }
        };
        tokio::select! {
            () = following => {}
            () = unnamed => {}
        }
    }

    /// Returns the clusters whose specs name a Secret and these of its keys.
    fn naming(&self, key: &SecretKeys) -> Vec<ObjectRef<KubeBrainCluster>> {
        let found = self.clusters.state_filter(|cluster| {
            cluster.metadata.namespace.as_deref() == Some(&key.namespace)
                && named(&cluster.spec).get(&key.name) == Some(&key.keys)
        });
        found.iter().map(|cluster| ObjectRef::from_obj(&**cluster)).collect()
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        let running = self.lock();
        running.watches.values().filter(|(_, task)| !task.is_finished()).count()
    }

    fn lock(&self) -> MutexGuard<'_, RunningSecretWatch> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the first result of a watch.
async fn first(
    mut watch: watch::Receiver<SecretState>,
    key: &SecretKeys,
    until: Instant,
) -> kube::Result<Option<Arc<Secret>>> {
    let bad = |words: String| kube::Error::Service(words.into());
    let shown = watch.wait_for(|seen| !matches!(seen, SecretState::Nothing));
    let seen = match tokio::time::timeout_at(until, shown).await {
        Ok(Ok(seen)) => seen.clone(),
        // The watch has ended, or is late.
        Ok(Err(_)) | Err(_) => SecretState::Nothing,
    };
    match seen {
        SecretState::Secret(secret) => Ok(secret),
        SecretState::Failed(error) => Err(bad(format!("Secret {} cannot be watched: {error}", key.name))),
        SecretState::Nothing => Err(bad(format!("timed out reading Secret {}", key.name))),
    }
}

/// Records an error of a watch. A Secret that was seen before stays valid.
fn failed(show: &watch::Sender<SecretState>, key: &SecretKeys, error: &watcher::Error) {
    let first = show.send_if_modified(|seen| {
        let first = matches!(seen, SecretState::Nothing);
        if !matches!(seen, SecretState::Secret(_)) {
            *seen = SecretState::Failed(error.to_string());
        }
        first
    });
    if first {
        warn!(%error, namespace = key.namespace, secret = key.name, "cannot watch a Secret");
    } else {
        debug!(%error, namespace = key.namespace, secret = key.name, "watch of a Secret interrupted; will retry");
    }
}
