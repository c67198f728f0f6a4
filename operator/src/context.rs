//! What passes share: clients, caches of the API server's objects, and memory of the writes to them.

use kube::{Api, Client};
use plan::spec::Settings;

use crate::applies::Applies;
use crate::events::Events;
use crate::fleet::Fleet;
use crate::follow::Followers;
use crate::installation::Installation;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::probe::Prober;
use crate::stores::external::ExternalPods;
use crate::stores::given::GivenSecrets;
use crate::stores::received::Stub;
use crate::stores::{Stores, clusters};

/// State that all reconciles share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    pub(crate) stores: Stores,
    pub(crate) ledger: Ledger,
    pub(crate) applies: Applies,
    pub(crate) given_secrets: GivenSecrets,
    pub(crate) prober: Prober,
    pub(crate) followers: Followers,
    pub(crate) external_pods: ExternalPods,
    pub(crate) fleet: Fleet,
    pub(crate) installation: Installation,
}

impl Context {
    /// Returns the client for writes of clusters: only the metadata of the answers is read.
    pub(crate) fn clusters(&self, namespace: &str) -> Api<Stub> {
        Api::namespaced_with(self.client.clone(), namespace, &clusters::resource())
    }
}
