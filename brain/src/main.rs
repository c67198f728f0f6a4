//! `kubebrain`: reads the flags, opens the store, serves. The only file that names a storage engine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brain::api::cluster::ClusterService;
use brain::api::health::StoreHealth;
use brain::api::kv::KvService;
use brain::api::lease::LeaseService;
use brain::api::maintenance::MaintenanceService;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::api::watch::{Options as WatchServiceOptions, WatchService};
use brain::data_dir::{DataDir, Identity};
use brain::flags::{Config, Quota};
use brain::log::{FileLog, Log};
use brain::metrics::Metrics;
use brain::pb::etcdserverpb as pb;
use brain::process;
use brain::rows::Rows;
use brain::rows::fjall::FjallRows;
use brain::sequencer::Options as SequencerOptions;
use brain::serve::{Server, Services};
use brain::state::State;
use brain::store::{self, DiskSpace};
use brain::tasks::Tasks;
use brain::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long requests under way may take after SIGTERM; less than a pod's grace period of 30 s.
const GRACE: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    process::run(run)
}

async fn run(config: Config) -> anyhow::Result<()> {
    let server = Server::bind(&config)?;
    let dir = DataDir::open(&config.data_dir, || Identity {
        format: brain::data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
    })?;
    let log = FileLog::open(&dir.path().join("log"), brain::log::Options::default()).context("open the log")?;
    let rows =
        FjallRows::open(&dir.path().join("rows"), brain::rows::fjall::Options::default()).context("open the rows")?;
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    let quota = match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    };
    let options = store::Options {
        sequencer: SequencerOptions {
            member: dir.identity().member_id,
            in_flight: 2,
            batch_requests: 2_048,
            batch_bytes: 4 << 20,
            flush_bytes: 8 << 20,
            flush_interval: Duration::from_secs(10),
            recent_bytes: 64 << 20,
        },
        watch: watch::Options::default(),
        lease: Duration::ZERO,
    };
    let space = DiskSpace::new(dir.path(), quota)?;
    let running = store::start((log.clone(), rows.clone()), options.clone(), space, &mut tasks, &stop).await?;
    let api = Store {
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        limits: Limits {
            txn_ops: config.limits.max_txn_ops,
            request_bytes: config.limits.max_request_bytes,
            key_bytes: rows.max_key_len().saturating_sub(64) / 2,
        },
        cluster_id: dir.identity().cluster_id,
        member_id: dir.identity().member_id,
    };
    let (_leader, has_leader) = tokio::sync::watch::channel(true);
    let watches = WatchService::new(
        running.hub.clone(),
        running.history,
        WatchServiceOptions {
            max_request_bytes: config.limits.max_request_bytes,
            progress_notify_interval: config.watch_progress_notify_interval,
            cluster_id: api.cluster_id,
            member_id: api.member_id,
            raft_term: api.state.epoch_cell(),
            has_leader,
            stop: stop.clone(),
        },
    );
    let member = pb::Member {
        id: api.member_id,
        name: config.name.clone(),
        peer_ur_ls: config
            .initial_advertise_peer_urls
            .iter()
            .map(ToString::to_string)
            .collect(),
        client_ur_ls: config.advertise_client_urls.iter().map(ToString::to_string).collect(),
        is_learner: false,
    };
    let max = config.limits.max_receive_bytes();
    let size: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(move || log.size() + rows.size());
    let maintenance = MaintenanceService {
        store: api.clone(),
        size: Arc::clone(&size),
        quota: quota.unwrap_or(0),
    };
    let leases = LeaseService {
        store: api.clone(),
        min_ttl: config.min_lease_ttl(),
    };
    let cluster = ClusterService {
        member,
        cluster_id: api.cluster_id,
        epoch: api.state.epoch_cell(),
    };
    let (_reporter, probes) = tonic_health::server::health_reporter();
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    metrics.server.set_identity(api.member_id);
    metrics
        .server
        .quota
        .set(quota.and_then(|quota| i64::try_from(quota).ok()).unwrap_or(0));
    metrics.before_render(observe(api.state.clone(), Arc::clone(&size)));
    let mut routes = Routes::builder();
    routes
        .add_service(pb::kv_server::KvServer::new(KvService(api.clone())).max_decoding_message_size(max))
        .add_service(pb::lease_server::LeaseServer::new(leases).max_decoding_message_size(max))
        .add_service(pb::maintenance_server::MaintenanceServer::new(maintenance).max_decoding_message_size(max))
        .add_service(pb::cluster_server::ClusterServer::new(cluster).max_decoding_message_size(max))
        .add_service(watches.into_server())
        .add_service(probes);
    let services = Services {
        routes: routes.routes(),
        health: Arc::new(StoreHealth(api)),
        metrics,
    };
    let urls = server.bound()?;
    process::follow_signals(&stop, &mut tasks)?;
    server.start(services, &stop, GRACE, &mut tasks);
    process::ready(&urls);
    tasks.join().await
}

/// Brings gauges up to date before they are shown.
fn observe<R: Rows>(state: Arc<State<R>>, size: Arc<dyn Fn() -> u64 + Send + Sync>) -> impl Fn(&Metrics) + Send + Sync {
    move |metrics| {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.server.has_leader.set(1);
        metrics.server.is_leader.set(1);
        metrics.server.proposals_committed.set(gauge(state.committed().0));
        metrics.server.proposals_applied.set(gauge(state.committed().0));
        metrics.mvcc.current_revision.set(state.view().revision);
        metrics.mvcc.db_total_size.set(gauge(size()));
        metrics.mvcc.db_in_use.set(gauge(size()));
    }
}
