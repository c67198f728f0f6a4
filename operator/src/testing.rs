//! For tests: an operator with the API server in memory.

use std::sync::Arc;

use fake_api::FakeApi;
use kube::Client;
use kube::client::ClientBuilder;
use plan::testing::settings;
use tokio::task::JoinSet;

use crate::applies::Applies;
use crate::context::Context;
use crate::controller::Scope;
use crate::events::Events;
use crate::fleet::Fleet;
use crate::follow::Followers;
use crate::installation::Installation;
use crate::leadership::Leadership;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::probe::Prober;
use crate::stores;
use crate::stores::external::ExternalPods;
use crate::stores::given::GivenSecrets;
use crate::transport::Fence;
use crate::triggers::Triggers;

/// Returns a client of `api` whose writes are fenced by `leadership`.
pub(crate) fn fenced_client(api: &FakeApi, leadership: Leadership, metrics: &Metrics, ledger: &Ledger) -> Client {
    let fence = Fence {
        leadership,
        metrics: metrics.clone(),
        ledger: ledger.clone(),
    };
    ClientBuilder::new(api.service(), "default").with_layer(&fence).build()
}

/// Returns the scope of a controller with a fake API server.
pub(crate) fn scope(api: &FakeApi, leadership: Leadership) -> Scope {
    let (metrics, ledger) = (Metrics::new(), Ledger::default());
    let client = fenced_client(&api.paged(), leadership, &metrics, &ledger);
    let triggers = Arc::<Triggers>::default();
    let (stores, feeds) = stores::open(&client, None, &triggers);
    let fleet = Fleet::new(settings().default_image, 1, &[], Arc::default());
    let context = Context {
        external_pods: ExternalPods::new(client.clone(), stores.clusters.clone(), triggers.clone()),
        given_secrets: GivenSecrets::new(client.clone(), stores.clusters.clone(), triggers.clone()),
        events: Events::new(client.clone(), "test".to_owned()),
        installation: Installation::new(client.clone(), None),
        client,
        settings: settings(),
        metrics,
        followers: Followers::new(stores.clusters.clone(), triggers.clone()),
        stores,
        ledger,
        applies: Applies::default(),
        prober: Prober::default(),
        fleet,
    };
    Scope {
        context,
        triggers,
        feeds,
    }
}

/// An operator with a fake API server whose passes the test runs: its context, and the watches that fill its stores.
pub(crate) struct Rig {
    pub(crate) api: FakeApi,
    pub(crate) context: Context,
    pub(crate) triggers: Arc<Triggers>,
    _feeds: JoinSet<()>,
}

impl Rig {
    /// Creates a rig; all objects are in the stores when this returns.
    pub(crate) async fn new(api: FakeApi) -> Self {
        let scope = scope(&api, Leadership::Alone);
        let mut running = JoinSet::new();
        running.spawn(stores::run(scope.feeds));
        scope.context.stores.filled().await;
        Self {
            api,
            context: scope.context,
            triggers: scope.triggers,
            _feeds: running,
        }
    }

    /// Returns the cluster as the store shows it.
    pub(crate) fn cluster(&self) -> Arc<crds::KubeBrainCluster> {
        self.context.stores.cluster("brains", "dev").unwrap()
    }

    /// Lets the watches deliver all pending events.
    pub(crate) async fn sync(&self) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
