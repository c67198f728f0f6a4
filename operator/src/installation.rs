//! Installations of the operator. One installation manages a cluster, and the cluster's status names it. Another installation that sees the
//! cluster, too, leaves it alone while the first one is alive.
//!
//! An installation is identified by the Lease for which its replicas compete. All replicas are one installation, and so is every later
//! version with the same Lease. It is alive as long as the Lease changes. Clocks are not compared, and a Lease that is released or missing
//! for a moment, as in an upgrade, does not end an installation. An installation whose Lease cannot be read counts as alive: two that write
//! at the same time do more harm than one that waits for a user.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt};
use plan::event::ClusterEvent;
use plan::names::MANAGED_BY_INSTALLATION;
use plan::spec::secrets::is_name;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::events::EventPublisher;

/// Time without a change of its Lease after which an installation counts as dead.
const DEAD_INSTALLATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between reads of the Lease of another installation.
const LEASE_READ_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of such a read.
const LEASE_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the operator reports that it leaves a cluster to another installation.
const REPORT_INTERVAL: Duration = Duration::from_secs(1800);

/// Maximum number of Leases of other installations that are remembered.
const MAX_LEASES: usize = 1_000;

/// This installation. Clones share their knowledge of others.
#[derive(Clone)]
pub(crate) struct Installation {
    client: Client,
    /// Namespace and name of its Lease; `None` without an election, when it cannot be distinguished from others.
    own: Option<String>,
    others: Arc<Mutex<OtherInstallations>>,
}

#[derive(Default)]
struct OtherInstallations {
    /// The Leases of others, by their namespaces and names.
    leases: HashMap<String, ObservedLease>,
    /// Time of the last report that a cluster is left to another installation, by the uid of the cluster.
    reported: HashMap<String, Instant>,
}

/// The last observed state of a Lease.
struct ObservedLease {
    /// The hash of holder and times, which users choose, in any length; `None` if the Lease does not exist.
    state: Option<u64>,
    changed: Instant,
    looked: Instant,
}

impl Installation {
    /// Creates the installation whose replicas compete for the Lease `own`, as `namespace/name`.
    pub(crate) fn new(client: Client, own: Option<String>) -> Self {
        Self {
            client,
            own,
            others: Arc::default(),
        }
    }

    pub(crate) fn own(&self) -> Option<&String> {
        self.own.as_ref()
    }

    /// Returns the installation that manages a cluster, if it is another one and alive. The annotation of a cluster takes precedence over
    /// its status.
    pub(crate) async fn other(&self, cluster: &KubeBrainCluster) -> Option<String> {
        let own = self.own.as_ref()?;
        let chosen = cluster.annotations().get(MANAGED_BY_INSTALLATION);
        let present = chosen.or_else(|| cluster.status.as_ref()?.managed_by.as_ref())?;
        (present != own && self.lives(present).await).then(|| present.clone())
    }

    /// Reports that a cluster is left to another installation.
    pub(crate) async fn report(&self, events: &EventPublisher, cluster: &KubeBrainCluster, other: &str) {
        let now = Instant::now();
        let uid = cluster.uid().unwrap_or_default();
        let is_news = {
            let mut others = self.lock();
            others
                .reported
                .retain(|_, at| now.duration_since(*at) < REPORT_INTERVAL);
            let is_news = !others.reported.contains_key(&uid);
            others.reported.entry(uid).or_insert(now);
            is_news
        };
        if !is_news {
            return;
        }
        let own = self.own.as_deref().unwrap_or_default();
        let note = format!(
            "the operator {other} manages this cluster, so {own} does not change it: give each operator its own namespaces, or choose one with the annotation {MANAGED_BY_INSTALLATION}"
        );
        warn!("{note}");
        let event = ClusterEvent::warning("ManagedElsewhere", "Reconcile", note);
        events.publish(cluster, event).await;
    }

    async fn lives(&self, other: &str) -> bool {
        let now = Instant::now();
        let is_recent = |seen: &&ObservedLease| now.duration_since(seen.looked) < LEASE_READ_INTERVAL;
        if let Some(seen) = self.lock().leases.get(other).filter(is_recent) {
            return now.duration_since(seen.changed) < DEAD_INSTALLATION_TIMEOUT;
        }
        // Users write the annotation: an invalid name could be read as a longer path.
        let parts = other.split_once('/');
        let Some((namespace, name)) = parts.filter(|(namespace, name)| is_name(namespace) && is_name(name)) else {
            return false;
        };
        let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let lease = match tokio::time::timeout(LEASE_READ_TIMEOUT, api.get_opt(name)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => {
                debug!(%error, other, "cannot read the Lease of another installation");
                return true;
            }
            Err(_) => return true,
        };
        let state = lease.map(|lease| hash(&lease));
        let mut others = self.lock();
        others
            .leases
            .retain(|_, seen| now.duration_since(seen.looked) < REPORT_INTERVAL);
        if others.leases.len() >= MAX_LEASES && !others.leases.contains_key(other) {
            // There are never this many installations: users invented the names.
            others.leases.clear();
        }
        let seen = others.leases.entry(other.to_owned()).or_insert_with(|| ObservedLease {
            state,
            changed: now,
            looked: now,
        });
        seen.looked = now;
        if seen.state != state {
            seen.state = state;
            seen.changed = now;
        }
        let lives = now.duration_since(seen.changed) < DEAD_INSTALLATION_TIMEOUT;
        if !lives {
            info!(other, "another installation no longer exists; taking over its clusters");
        }
        lives
    }

    fn lock(&self) -> MutexGuard<'_, OtherInstallations> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the hash of the fields that the replicas of an installation write to their Lease.
fn hash(lease: &Lease) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&lease.spec).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
