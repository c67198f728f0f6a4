//! For tests: an operator with the API server in memory.

use std::sync::Arc;

use fake_api::FakeApi;
use kube::Client;
use kube::client::ClientBuilder;
use plan::testing::settings;
use tokio::task::JoinSet;

use crate::advisories::Advisories;
use crate::apply_history::ApplyHistory;
use crate::archive::BackupReports;
use crate::cache;
use crate::cache::external_pods::ExternalPods;
use crate::cache::user_secrets::UserSecrets;
use crate::context::Context;
use crate::controller::ReconcileScope;
use crate::events::EventPublisher;
use crate::expectations::Expectations;
use crate::fleet::Fleet;
use crate::installation::Installation;
use crate::leader_watch::LeaderWatches;
use crate::leadership::Leadership;
use crate::metrics::Metrics;
use crate::probe::Prober;
use crate::transport::LeadershipFence;
use crate::work_queue::WorkQueue;

/// Returns a client of `api` whose writes are fenced by `leadership`.
pub(crate) fn fenced_client(
    api: &FakeApi,
    leadership: Leadership,
    metrics: &Metrics,
    expectations: &Expectations,
) -> Client {
    let fence = LeadershipFence {
        leadership,
        metrics: metrics.clone(),
        expectations: expectations.clone(),
    };
    ClientBuilder::new(api.service(), "default").with_layer(&fence).build()
}

/// Returns the scope of a controller with a fake API server.
pub(crate) fn scope(api: &FakeApi, leadership: Leadership) -> ReconcileScope {
    let (metrics, expectations) = (Metrics::new(), Expectations::default());
    let client = fenced_client(&api.paged(), leadership, &metrics, &expectations);
    let queue = Arc::<WorkQueue>::default();
    let (cache, feeds) = cache::open(&client, None, &queue);
    let fleet = Fleet::new(settings().default_image, 1, &[], Arc::default());
    let context = Context {
        external_pods: ExternalPods::new(client.clone(), cache.clusters.clone(), queue.clone()),
        user_secrets: UserSecrets::new(client.clone(), cache.clusters.clone(), queue.clone()),
        events: EventPublisher::new(client.clone(), "test".to_owned()),
        installation: Installation::new(client.clone(), None),
        client,
        settings: settings(),
        leader_watches: LeaderWatches::new(cache.clusters.clone(), queue.clone()),
        backups: BackupReports::new(cache.clusters.clone(), queue.clone(), metrics.clone()),
        metrics,
        cache,
        expectations,
        apply_history: ApplyHistory::default(),
        prober: Prober::default(),
        fleet,
        advisories: Advisories::default(),
    };
    ReconcileScope { context, queue, feeds }
}

/// An operator with a fake API server whose passes the test runs: its context, and the watches that fill its cache.
pub(crate) struct Rig {
    pub(crate) api: FakeApi,
    pub(crate) context: Context,
    pub(crate) queue: Arc<WorkQueue>,
    _feeds: JoinSet<()>,
}

impl Rig {
    /// Creates a rig; all objects are in the cache when this returns.
    pub(crate) async fn new(api: FakeApi) -> Self {
        let scope = scope(&api, Leadership::Alone);
        let mut running = JoinSet::new();
        running.spawn(cache::run(scope.feeds));
        scope.context.cache.filled().await;
        Self {
            api,
            context: scope.context,
            queue: scope.queue,
            _feeds: running,
        }
    }

    /// Returns the cluster as the store shows it.
    pub(crate) fn cluster(&self) -> Arc<crds::KubeBrainCluster> {
        self.context.cache.cluster("brains", "dev").unwrap()
    }

    /// Lets the watches deliver all pending events.
    pub(crate) async fn sync(&self) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
