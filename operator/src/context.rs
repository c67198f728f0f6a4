//! The state that passes share: clients, caches of the API server's objects, and memory of the writes to them.

use kube::{Api, Client};
use plan::spec::OperatorSettings;

use crate::advisories::Advisories;
use crate::apply_history::ApplyHistory;
use crate::archive::BackupReports;
use crate::cache::external_pods::ExternalPods;
use crate::cache::received::ObjectStub;
use crate::cache::user_secrets::UserSecrets;
use crate::cache::{Cache, clusters};
use crate::events::EventPublisher;
use crate::expectations::Expectations;
use crate::fleet::Fleet;
use crate::installation::Installation;
use crate::leader_watch::LeaderWatches;
use crate::metrics::Metrics;
use crate::probe::Prober;

/// State that all reconciles share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) settings: OperatorSettings,
    pub(crate) events: EventPublisher,
    pub(crate) metrics: Metrics,
    pub(crate) cache: Cache,
    pub(crate) expectations: Expectations,
    pub(crate) apply_history: ApplyHistory,
    pub(crate) user_secrets: UserSecrets,
    pub(crate) prober: Prober,
    pub(crate) leader_watches: LeaderWatches,
    pub(crate) backups: BackupReports,
    pub(crate) external_pods: ExternalPods,
    pub(crate) fleet: Fleet,
    pub(crate) installation: Installation,
    pub(crate) advisories: Advisories,
}

impl Context {
    /// Returns the client for writes of clusters: only the metadata of the answers is read.
    pub(crate) fn clusters(&self, namespace: &str) -> Api<ObjectStub> {
        Api::namespaced_with(self.client.clone(), namespace, &clusters::resource())
    }
}
