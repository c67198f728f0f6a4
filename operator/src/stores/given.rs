//! Secrets of the user that the spec names. They do not carry the operator's label, so no other watch covers them. Each has a watch of its
//! own by name, shared by all clusters that name it, which ends when no cluster names it any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::cluster::tls::TlsMode;
use crds::{KubeBrainCluster, KubeBrainClusterSpec};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::names::{CLUSTER, MANAGED_BY};
use crate::triggers::Triggers;

/// Maximum number of Secrets that are watched. Others are read in every pass over a cluster that names them.
const WATCHED: usize = 256;
/// Maximum size of a Secret's value that is kept, in bytes. Certificates are smaller.
pub(crate) const VALUE: usize = 128 << 10;
/// Maximum size of all values of a Secret that are kept, in bytes. Values that a spec names are kept first.
const VALUES: usize = 160 << 10;
/// Timeout for the first answers of all watches of a cluster.
const FIRST: Duration = Duration::from_secs(5);
/// Interval at which a watch checks that a cluster still names its Secret.
const LOOK: Duration = Duration::from_secs(30);

/// Secrets that a spec names, by their names; `None` for one that does not exist.
pub(crate) type Given = BTreeMap<String, Option<Arc<Secret>>>;

/// Secrets that a spec names, with the keys of each whose values are read.
pub(crate) type Named = BTreeMap<String, BTreeSet<String>>;

/// The watches. Clones share them.
#[derive(Clone)]
pub(crate) struct GivenSecrets {
    client: Client,
    clusters: Store<KubeBrainCluster>,
    triggers: Arc<Triggers>,
    running: Arc<Mutex<Running>>,
}

#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    watches: HashMap<Key, (watch::Receiver<Seen>, AbortHandle)>,
}

/// A Secret, and the keys whose values are read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    name: String,
    keys: BTreeSet<String>,
}

/// The state of a watch.
#[derive(Debug, Clone)]
enum Seen {
    Nothing,
    /// No Secret yet, only this error.
    Failed(String),
    /// The Secret; `None` if it does not exist.
    Secret(Option<Arc<Secret>>),
}

impl GivenSecrets {
    pub(crate) fn new(client: Client, clusters: Store<KubeBrainCluster>, triggers: Arc<Triggers>) -> Self {
        Self {
            client,
            clusters,
            triggers,
            running: Arc::default(),
        }
    }

    /// Returns the Secrets that the spec of `cluster` names; `None` for one that does not exist. The first call starts their watches.
    ///
    /// # Errors
    /// The API server refused, or did not answer in time.
    pub(crate) async fn of(&self, cluster: &KubeBrainCluster) -> kube::Result<Given> {
        let until = Instant::now() + FIRST;
        let named = named(&cluster.spec);
        // Start all watches before waiting for any.
        let watches: Vec<_> = named
            .into_iter()
            .map(|(name, keys)| {
                let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
                let key = Key { namespace, name, keys };
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
    fn watch(&self, key: &Key) -> Option<watch::Receiver<Seen>> {
        let mut running = self.lock();
        while running.tasks.try_join_next().is_some() {}
        let Running { tasks, watches } = &mut *running;
        watches.retain(|_, (_, task)| !task.is_finished());
        if let Some((seen, _)) = watches.get(key) {
            return Some(seen.clone());
        }
        if watches.len() >= WATCHED {
            return None;
        }
        let (show, seen) = watch::channel(Seen::Nothing);
        let task = tasks.spawn(self.clone().run(key.clone(), show));
        watches.insert(key.clone(), (seen.clone(), task));
        Some(seen)
    }

    /// Watches until no cluster names the Secret.
    async fn run(self, key: Key, show: watch::Sender<Seen>) {
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
                let before = show.send_replace(Seen::Secret(secret.clone()));
                match before {
                    // A cluster that waits for the first answer needs no additional pass.
                    Seen::Nothing => {}
                    Seen::Secret(before) if before == secret => {}
                    Seen::Failed(_) | Seen::Secret(_) => {
                        self.naming(&key)
                            .into_iter()
                            .for_each(|cluster| self.triggers.add(cluster));
                    }
                }
            }
        };
        let unnamed = async {
            loop {
                tokio::time::sleep(LOOK).await;
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
    fn naming(&self, key: &Key) -> Vec<ObjectRef<KubeBrainCluster>> {
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

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the same by one read without a watch.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn read(client: &Client, cluster: &KubeBrainCluster) -> kube::Result<Given> {
    let api: Api<Secret> = Api::namespaced(
        client.clone(),
        cluster.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let mut found = BTreeMap::new();
    for name in named(&cluster.spec).into_keys().filter(|name| is_name(name)) {
        let secret = api.get_opt(&name).await?.map(Arc::new);
        found.insert(name, secret);
    }
    Ok(found)
}

/// Waits for the first result of a watch.
async fn first(mut watch: watch::Receiver<Seen>, key: &Key, until: Instant) -> kube::Result<Option<Arc<Secret>>> {
    let bad = |words: String| kube::Error::Service(words.into());
    let shown = watch.wait_for(|seen| !matches!(seen, Seen::Nothing));
    let seen = match tokio::time::timeout_at(until, shown).await {
        Ok(Ok(seen)) => seen.clone(),
        // The watch has ended, or is late.
        Ok(Err(_)) | Err(_) => Seen::Nothing,
    };
    match seen {
        Seen::Secret(secret) => Ok(secret),
        Seen::Failed(error) => Err(bad(format!("Secret {} cannot be watched: {error}", key.name))),
        Seen::Nothing => Err(bad(format!("timed out reading Secret {}", key.name))),
    }
}

/// Records an error of a watch. A Secret that was seen before stays valid.
fn failed(show: &watch::Sender<Seen>, key: &Key, error: &watcher::Error) {
    let first = show.send_if_modified(|seen| {
        let first = matches!(seen, Seen::Nothing);
        if !matches!(seen, Seen::Secret(_)) {
            *seen = Seen::Failed(error.to_string());
        }
        first
    });
    if first {
        warn!(%error, namespace = key.namespace, secret = key.name, "cannot watch a Secret");
    } else {
        debug!(%error, namespace = key.namespace, secret = key.name, "watch of a Secret interrupted; will retry");
    }
}

/// Drops unused metadata and values that are too large for a certificate, because the Secret may contain anything. Other values never
/// displace those of `keys`.
fn pruned(mut secret: Secret, keys: &BTreeSet<String>) -> Arc<Secret> {
    let own = |key: &str| {
        let labels = secret.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .map(|value| (key.to_owned(), value.clone()))
    };
    let labels = [CLUSTER, MANAGED_BY].into_iter().filter_map(own).collect();
    secret.metadata = ObjectMeta {
        name: secret.metadata.name.take(),
        namespace: secret.metadata.namespace.take(),
        uid: secret.metadata.uid.take(),
        resource_version: secret.metadata.resource_version.take(),
        deletion_timestamp: secret.metadata.deletion_timestamp.take(),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let mut values: Vec<(String, ByteString)> = secret.data.take().unwrap_or_default().into_iter().collect();
    values.sort_by_key(|(key, value)| (!keys.contains(key), value.0.len()));
    let mut left = VALUES;
    values.retain(|(key, value)| {
        let fits = value.0.len() <= VALUE && key.len() + value.0.len() + 64 <= left;
        left -= if fits { key.len() + value.0.len() + 64 } else { 0 };
        fits
    });
    secret.data = Some(values.into_iter().collect());
    Arc::new(secret)
}

/// Returns true for a valid object name. Any other string could be read as a longer path.
pub(crate) fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty() && name.len() <= 253 && name.chars().all(good)
}

/// Returns the Secrets of the user that a spec names. For Secrets with the keys of tokens, only their existence matters.
pub(crate) fn named(spec: &KubeBrainClusterSpec) -> Named {
    const PAIR: [&str; 2] = ["tls.crt", "tls.key"];
    let mut named = Named::new();
    let mut add = |name: &String, keys: &[&str]| {
        let read = named.entry(name.clone()).or_default();
        read.extend(keys.iter().map(|key| (*key).to_owned()));
    };
    if let Some(secrets) = spec.tls.secrets.as_ref().filter(|_| spec.tls.mode == TlsMode::Secret) {
        add(&secrets.ca_bundle.name, &[&secrets.ca_bundle.key]);
        for pair in [&secrets.server, &secrets.peer, &secrets.operator_client] {
            add(&pair.name, &PAIR);
        }
    }
    if let Some(authority) = &spec.tls.ca_secret_ref {
        add(&authority.name, &["ca.crt", "ca.key"]);
        add(&authority.name, &PAIR);
    }
    if let Some(tls) = spec.storage.tikv.as_ref().and_then(|tikv| tikv.tls.as_ref()) {
        add(&tls.ca_secret_ref.name, &[&tls.ca_secret_ref.key]);
        add(&tls.client_secret_ref.name, &PAIR);
    }
    if let Some(tokens) = &spec.jwt_secret_ref {
        add(&tokens.name, &[]);
    }
    named.remove("");
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_a_spec_names_is_kept_beside_any_others() {
        let value = |size: usize| ByteString(vec![b'x'; size]);
        let smaller = (0..100).map(|number| (format!("other-{number:03}"), value(3 << 10)));
        let secret = Secret {
            data: Some(smaller.chain([("ca.crt".to_owned(), value(4 << 10))]).collect()),
            ..Secret::default()
        };
        let kept = |keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            pruned(secret.clone(), &keys).data.clone().unwrap()
        };
        assert!(!kept(&[]).contains_key("ca.crt"), "the others take all there is");
        assert!(kept(&["ca.crt"]).contains_key("ca.crt"));
        let all: usize = kept(&["ca.crt"]).values().map(|value| value.0.len()).sum();
        assert!(all <= VALUES, "{all}");
    }
}
