//! A coordination.k8s.io/v1 Lease as a lock: every write carries the resourceVersion that was read.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::kubeconfig::ReloadedClient;
use crate::{Lock, LockError, Record};

/// The Lease `name` in one namespace.
///
/// Needs the verbs get, create and update on it (create is not needed if the Lease was created beforehand). All its fields except
/// those of the record stay unchanged. A Lease counts whole seconds: durations are rounded up, which makes others wait longer,
/// never shorter.
#[derive(Clone)]
pub struct LeaseLock {
    client: Connection,
    name: String,
    namespace: String,
    /// The UID in the answer to the elector's last call.
    uid: Arc<Mutex<Option<String>>>,
}

#[derive(Clone)]
enum Connection {
    Client(Client),
    Kubeconfig(ReloadedClient),
}

/// Creates a client for locks alone: with its own connections, a time limit on each read, write and connect, and no retries below
/// the elector's, which would hold a renewal past its deadline.
///
/// # Errors
/// The configuration names files or proxies that do not work.
pub fn client(mut config: kube::Config, call_timeout: Duration) -> kube::Result<Client> {
    config.connect_timeout = Some(call_timeout);
    config.read_timeout = Some(call_timeout);
    config.write_timeout = Some(call_timeout);
    config.default_retry = false;
    Client::try_from(config)
}

impl LeaseLock {
    /// Creates a lock on the Lease `namespace`/`name`, whether or not it exists. Pass a [`client`] that nothing else uses.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self::with(Connection::Client(client), namespace, name)
    }

    fn with(client: Connection, namespace: &str, name: &str) -> Self {
        Self {
            client,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: Arc::default(),
        }
    }

    /// Creates a lock on the Lease `name` in the cluster of `kubeconfig`, or of the pod that this process runs in; without a
    /// `namespace`, in that of the kubeconfig or the pod. Sends no request yet. A kubeconfig that changes is used as it is then, and so are
    /// the files that it names.
    ///
    /// # Errors
    /// The kubeconfig cannot be used, or there is none and this process does not run in a pod.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        namespace: Option<&str>,
        name: &str,
        call_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let (client, own) = match kubeconfig {
            Some(path) => {
                let (client, own) = ReloadedClient::new(path, call_timeout).await?;
                (Connection::Kubeconfig(client), own)
            }
            None => {
                let config = kube::Config::incluster().context("find the API server of this pod")?;
                let own = config.default_namespace.clone();
                let client = client(config, call_timeout).context("make a client for the lease")?;
                (Connection::Client(client), own)
            }
        };
        Ok(Self::with(client, namespace.unwrap_or(&own), name))
    }

    async fn api(&self) -> Api<Lease> {
        let client = match &self.client {
            Connection::Client(client) => client.clone(),
            Connection::Kubeconfig(client) => client.current().await,
        };
        Api::namespaced(client, &self.namespace)
    }

    /// Returns the Lease's namespace and name.
    #[must_use]
    pub fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    /// Returns the Lease's UID, which no other object of any cluster has, from the answer to the elector's last call.
    #[must_use]
    pub fn uid(&self) -> Option<String> {
        self.uid.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests the Lease's UID with resourceVersion 0, which an API server can answer even if its own store does not; `None` if
    /// there is no such Lease.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn ask_uid(&self) -> Result<Option<String>, LockError> {
        let cached = GetParams {
            resource_version: Some("0".to_owned()),
        };
        match self.api().await.get_with(&self.name, &cached).await {
            Ok(lease) => Ok(lease.metadata.uid),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed("get the lease")(error)),
        }
    }

    fn note(&self, lease: &Lease) {
        self.uid
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&lease.metadata.uid);
    }
}

impl Lock for LeaseLock {
    /// The object as read: a write replaces it as a whole.
    type Version = Arc<Lease>;

    async fn get(&self) -> Result<Option<(Record, Arc<Lease>)>, LockError> {
        let Some(lease) = self
            .api()
            .await
            .get_opt(&self.name)
            .await
            .map_err(failed("get the lease"))?
        else {
            return Ok(None);
        };
        let record = record(&lease).map_err(LockError::Failed)?;
        self.note(&lease);
        Ok(Some((record, Arc::new(lease))))
    }

    async fn create(&self, record: &Record) -> Result<Arc<Lease>, LockError> {
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        };
        let spec = Some(spec(record, LeaseSpec::default()).map_err(LockError::Failed)?);
        let lease = Lease { metadata, spec };
        let created = self.api().await.create(&PostParams::default(), &lease).await;
        let lease = written(created, "create the lease")?;
        self.note(&lease);
        Ok(lease)
    }

    async fn update(&self, record: &Record, expected: &Arc<Lease>) -> Result<Arc<Lease>, LockError> {
        let mut lease = Lease::clone(expected);
        lease.spec = Some(spec(record, lease.spec.unwrap_or_default()).map_err(LockError::Failed)?);
        let replaced = self
            .api()
            .await
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        let lease = written(replaced, "update the lease")?;
        self.note(&lease);
        Ok(lease)
    }

    fn describe(&self) -> String {
        format!("lease {}/{}", self.namespace, self.name)
    }
}

fn written(answer: kube::Result<Lease>, action: &'static str) -> Result<Arc<Lease>, LockError> {
    match answer {
        // Without a version the next update would not compare anything.
        Ok(lease)
            if lease
                .metadata
                .resource_version
                .as_deref()
                .unwrap_or_default()
                .is_empty() =>
        {
            Err(LockError::Failed(
                anyhow::anyhow!("the API server answered without a resourceVersion").context(action),
            ))
        }
        Ok(lease) => Ok(Arc::new(lease)),
        // The Lease already exists, or was changed or deleted since.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) && !is_namespace(&status) => {
            Err(LockError::Conflict)
        }
        Err(error) => Err(failed(action)(error)),
    }
}

/// True for a 404 about the namespace: that is no race, and does not pass by itself.
fn is_namespace(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.kind == "namespaces")
}

fn failed(action: &'static str) -> impl Fn(kube::Error) -> LockError {
    move |error| LockError::Failed(anyhow::Error::new(error).context(action))
}

fn record(lease: &Lease) -> anyhow::Result<Record> {
    let version = lease.metadata.resource_version.as_deref().unwrap_or_default();
    anyhow::ensure!(!version.is_empty(), "the API server answered without a resourceVersion");
    let Some(spec) = &lease.spec else {
        return Ok(Record::default());
    };
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    let seconds = u64::try_from(seconds).with_context(|| format!("the lease lasts {seconds} seconds"))?;
    let transitions = spec.lease_transitions.unwrap_or(0);
    Ok(Record {
        holder_identity: spec.holder_identity.clone().unwrap_or_default(),
        lease_duration: Duration::from_secs(seconds),
        acquire_time: spec.acquire_time.as_ref().map(|time| time.0),
        renew_time: spec.renew_time.as_ref().map(|time| time.0),
        leader_transitions: u32::try_from(transitions)
            .with_context(|| format!("the lease counts {transitions} transitions"))?,
    })
}

/// Returns `before` with the record in it. Strategy and preferred holder belong to coordinated election and stay unchanged.
fn spec(record: &Record, before: LeaseSpec) -> anyhow::Result<LeaseSpec> {
    let seconds = record.lease_duration.as_nanos().div_ceil(1_000_000_000);
    Ok(LeaseSpec {
        holder_identity: Some(record.holder_identity.clone()),
        lease_duration_seconds: Some(i32::try_from(seconds).context("the lease duration does not fit into a Lease")?),
        acquire_time: record.acquire_time.map(MicroTime),
        renew_time: record.renew_time.map(MicroTime),
        lease_transitions: Some(i32::try_from(record.leader_transitions).unwrap_or(i32::MAX)),
        ..before
    })
}

impl std::fmt::Debug for LeaseLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseLock")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
