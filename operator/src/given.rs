//! Secrets that the user made and the spec names. They do not carry the operator's label, so no watch shows them: each is read by
//! its name, at most once a minute, and at once when the spec names another one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::cluster::tls::TlsMode;
use crds::{KubeBrainCluster, KubeBrainClusterSpec};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::Instant;

/// How old what was read may be.
const FRESH: Duration = Duration::from_secs(55);
/// Entries that nobody asked for in this time are dropped: their cluster is gone.
const FORGET: Duration = Duration::from_secs(600);

/// What was read, by namespace and name. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct GivenSecrets {
    read: Arc<Mutex<HashMap<(String, String), Read>>>,
}

struct Read {
    secret: Option<Arc<Secret>>,
    at: Instant,
}

impl GivenSecrets {
    /// The Secrets that the spec of `cluster` names; `None` for one that does not exist.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub(crate) async fn of(
        &self,
        client: &Client,
        cluster: &KubeBrainCluster,
    ) -> kube::Result<BTreeMap<String, Option<Arc<Secret>>>> {
        let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let mut found = BTreeMap::new();
        for name in named(&cluster.spec) {
            let key = (namespace.clone(), name.clone());
            let fresh = self
                .lock()
                .get(&key)
                .filter(|read| read.at.elapsed() < FRESH)
                .map(|read| read.secret.clone());
            let secret = match fresh {
                Some(secret) => secret,
                None => self.read(&api, key).await?,
            };
            found.insert(name, secret);
        }
        Ok(found)
    }

    async fn read(&self, api: &Api<Secret>, key: (String, String)) -> kube::Result<Option<Arc<Secret>>> {
        let secret = api.get_opt(&key.1).await?.map(Arc::new);
        let read = Read {
            secret: secret.clone(),
            at: Instant::now(),
        };
        let mut all = self.lock();
        all.retain(|_, read| read.at.elapsed() < FORGET);
        all.insert(key, read);
        Ok(secret)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Read>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names of the Secrets in a spec that somebody else makes.
fn named(spec: &KubeBrainClusterSpec) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(secrets) = spec.tls.secrets.as_ref().filter(|_| spec.tls.mode == TlsMode::Secret) {
        names.push(&secrets.ca_bundle.name);
        names.extend([&secrets.server.name, &secrets.peer.name, &secrets.operator_client.name]);
    }
    names.extend(spec.tls.ca_secret_ref.as_ref().map(|reference| &reference.name));
    if let Some(tls) = spec.storage.tikv.as_ref().and_then(|tikv| tikv.tls.as_ref()) {
        names.push(&tls.ca_secret_ref.name);
        names.push(&tls.client_secret_ref.name);
    }
    let mut names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).cloned().collect();
    names.sort();
    names.dedup();
    names
}
