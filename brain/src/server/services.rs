//! The services of a member over a store, on any engine.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::flags;
use crate::flags::{Config, Quota, Storage};
use crate::server::disk_space::disk_in_use;
use ::watch::{DynHistory, Hub};
use api::auth::AuthService;
use api::cluster::ClusterService;
use api::concurrency::{Cleanup, Concurrency};
use api::context::ApiContext;
use api::election::ElectionService;
use api::health::StoreHealth;
use api::kv::KvService;
use api::leader_request::{self, MAX_SMALL_REQUEST_BYTES};
use api::lease::LeaseService;
use api::lock::LockService;
use api::maintenance::{Defragment, HashLimit, MaintenanceService, MoveLeader, SnapshotSender};
use api::member_page::AboutStore;
use api::request_log;
use api::watch::{WatchOptions, WatchService};
use backup::snapshot::Spool;
use cluster::followers::Followers;
use cluster::leadership::TransferLeader;
use cluster::members::Members;
use cluster::membership::RemoveMember;
use cluster::peer::{MAX_MESSAGE_BYTES, PeerService};
use cluster::{Renewals, leader_changes};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::healthpb::health_server::HealthServer;
use etcd_types::pb::peerpb::peer_server::PeerServer;
use etcd_types::pb::v3electionpb::election_server::ElectionServer;
use etcd_types::pb::v3lockpb::lock_server::LockServer;
use etcd_types::url::Url;
use mvcc::evaluate::MAX_ANSWER_BYTES;
use mvcc::key_index::IndexPhase;
use net::grpc_health::HealthService;
use net::http::member::{SpaceInUse, StorageInUse};
use net::serve::{PortServices, UnaryRpcs};
use runtime::log_once::LogOnce;
use runtime::tasks::Tasks;
use store::alarm::{CORRUPT, NOSPACE};
use store::commit_feed::CommitFeed;
use store::state::StoreState;
use telemetry::metrics::Metrics;
use telemetry::slow_requests::RpcLog;

/// Returns the bytes that the store occupies.
pub type StoreSize = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Handles that the services of a member share.
pub struct MemberHandles {
    /// The store.
    pub store: ApiContext,
    /// The source of new commits for watchers.
    pub hub: Hub,
    /// The source of older commits for watchers.
    pub history: DynHistory,
    /// True while there is a leader.
    pub has_leader: tokio::sync::watch::Receiver<bool>,
    /// Returns the bytes that the store occupies.
    pub size: StoreSize,
    /// Returns those of them that live and retained versions take.
    pub size_in_use: StoreSize,
    /// Returns the bytes that this member's own log occupies.
    pub log_size: StoreSize,
    /// Returns the bytes of the disk that rows need for their next merge.
    pub space_to_come: StoreSize,
    /// Reclaims space.
    pub defragment: Defragment,
    /// The member list.
    pub members: Members,
    /// Removes members that are gone.
    pub remove: Option<Arc<dyn RemoveMember>>,
    /// The storage in use.
    pub storage: StorageInUse,
    /// The queue of requests to transfer leadership.
    pub transfers: mpsc::Sender<TransferLeader>,
    /// Ends streams, so that clients disconnect.
    pub leave: CancellationToken,
}

/// Sets the metrics that do not change.
fn set_constants(metrics: &Metrics, member_id: u64, quota: i64) {
    metrics.server.set_identity(member_id);
    metrics.server.set_features(flags::features());
    metrics.server.quota.set(quota);
}

/// Returns the services over the store. Starts their background tasks, which run until `stop`.
pub fn services(
    config: &Config,
    member: MemberHandles,
    (tasks, stop): (&mut Tasks, &CancellationToken),
) -> PortServices {
    let MemberHandles {
        store: api,
        hub,
        history,
        has_leader,
        size,
        size_in_use,
        log_size,
        space_to_come,
        defragment,
        members,
        remove,
        storage,
        transfers,
        leave,
    } = member;
    let (metrics, watched, listed) = (api.metrics.clone(), hub.clone(), members.clone());
    let tracing = api.router.tracing().clone();
    let watches = WatchService::new(hub, history, watch_options(config, &api, &has_leader, &leave));
    let quota = quota(config);
    let maintenance = MaintenanceService {
        store: api.clone(),
        size: Arc::clone(&size),
        size_in_use: Arc::clone(&size_in_use),
        defragment,
        quota,
        move_leader: move_leader(transfers),
        snapshots: SnapshotSender::new(spool(config)),
        hashes: HashLimit::default(),
    };
    let leases = Arc::new(LeaseService::new(api.clone(), Some(has_leader.clone())));
    let kv = Arc::new(KvService { store: api.clone() });
    let (cleanup, clean_up) = Cleanup::new(kv.clone(), stop.clone());
    tasks.spawn("cleanup", clean_up);
    let concurrency = Arc::new(Concurrency {
        kv: kv.clone(),
        leases: leases.clone(),
        hub: watched.clone(),
        replay: watches.replay(),
        cleanup,
        stop: leave.clone(),
    });
    let cluster = ClusterService {
        id: api.member_id,
        members,
        cluster_id: api.cluster_id,
        epoch: api.state.epoch_cell(),
        router: api.router.clone(),
        guard: api.guard.clone(),
        remove,
    };
    set_constants(&metrics, api.member_id, quota);
    count_leader_changes(&api, tasks, stop);
    let data_dir = matches!(config.storage, Storage::Embedded).then(|| config.data_dir.clone());
    let space = space_in_use(
        (size.clone(), space_to_come),
        u64::try_from(quota).ok(),
        data_dir.clone(),
    );
    metrics.before_render(observe(
        api.clone(),
        watched,
        (size, size_in_use, log_size),
        (listed.clone(), data_dir),
    ));
    let unary = unary_rpcs(&kv);
    let max = config.limits.max_receive_bytes;
    let mut routes = Routes::builder();
    routes
        .add_service(
            pb::kv_server::KvServer::from_arc(kv)
                .max_decoding_message_size(max)
                .max_encoding_message_size(MAX_ANSWER_BYTES),
        )
        .add_service(pb::lease_server::LeaseServer::from_arc(leases).max_decoding_message_size(max))
        .add_service(pb::maintenance_server::MaintenanceServer::new(maintenance).max_decoding_message_size(max))
        .add_service(pb::cluster_server::ClusterServer::new(cluster).max_decoding_message_size(max))
        .add_service(watches.into_server())
        .add_service(pb::auth_server::AuthServer::new(AuthService(api.clone())).max_decoding_message_size(max))
        .add_service(LockServer::new(LockService(concurrency.clone())).max_decoding_message_size(max))
        .add_service(ElectionServer::new(ElectionService(concurrency)).max_decoding_message_size(max))
        .add_service(HealthServer::new(HealthService { stop: leave }));
    PortServices {
        routes: routes.routes(),
        unary,
        health: Arc::new(StoreHealth(api.clone())),
        member: Ok(Arc::new(AboutStore {
            name: config.name.clone(),
            members: listed,
            storage,
            space: Box::new(space),
            store: api,
        })),
        metrics,
        has_leader: Some(has_leader),
        slow: Some(RpcLog::new(config.slow_requests.unary, request_log::describe)),
        tracing,
        is_open: true,
    }
}

/// Returns the RPCs of keys that most requests are.
fn unary_rpcs(kv: &Arc<KvService>) -> UnaryRpcs {
    let (range, put, delete, txn) = (kv.clone(), kv.clone(), kv.clone(), kv.clone());
    UnaryRpcs::default()
        .with("/etcdserverpb.KV/Range", move |request| {
            let kv = range.clone();
            async move { kv.answer_range(request).await }
        })
        .with("/etcdserverpb.KV/Put", move |request| {
            let kv = put.clone();
            async move { kv.answer_put(request).await }
        })
        .with("/etcdserverpb.KV/DeleteRange", move |request| {
            let kv = delete.clone();
            async move { kv.answer_delete_range(request).await }
        })
        .with("/etcdserverpb.KV/Txn", move |request| {
            let kv = txn.clone();
            async move { kv.answer_txn(request).await }
        })
}

/// Starts the task that counts changes of leader.
fn count_leader_changes(api: &ApiContext, tasks: &mut Tasks, stop: &CancellationToken) {
    let counted = api.metrics.server.leader_changes.clone();
    let changes = leader_changes::count(api.router.watch(), counted, stop.clone());
    tasks.spawn("changes of leader", changes);
}

/// Returns the place of temporary files: beside the data, where there is space for it, or else in `$TMPDIR`.
fn spool(config: &Config) -> Spool {
    match config.storage {
        Storage::Embedded => Spool::new(&config.data_dir),
        Storage::Tikv(_) => Spool::new(&std::env::temp_dir()),
    }
}

fn watch_options(
    config: &Config,
    api: &ApiContext,
    has_leader: &tokio::sync::watch::Receiver<bool>,
    leave: &CancellationToken,
) -> WatchOptions {
    WatchOptions {
        max_request_bytes: config.limits.max_request_bytes,
        progress_notify_interval: config.watch_progress_notify_interval,
        cluster_id: api.cluster_id,
        member_id: api.member_id,
        raft_term: api.state.epoch_cell(),
        has_leader: has_leader.clone(),
        stop: leave.clone(),
        guard: Some(api.guard.clone()),
    }
}

/// Returns the bytes that the store may occupy; -1 if there is no limit, as in etcd.
fn quota(config: &Config) -> i64 {
    match config.limits.quota {
        Quota::Off => -1,
        Quota::Bytes(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
    }
}

/// Returns a function that looks at the space that the store and the file system of its directory occupy.
fn space_in_use(
    (size, to_come): (StoreSize, StoreSize),
    quota_bytes: Option<u64>,
    data_dir: Option<PathBuf>,
) -> impl Fn() -> SpaceInUse {
    move || SpaceInUse {
        bytes: size(),
        quota_bytes,
        disk: data_dir.as_deref().and_then(|dir| disk_in_use(dir, to_come())),
    }
}

/// Returns the services for other members: the peer protocol, and the requests that they forward. Those are not forwarded again.
pub fn peer_services(
    config: &Config,
    store: ApiContext,
    (feed, renewals, followers): (CommitFeed, Renewals, Followers),
    stop: CancellationToken,
) -> Routes {
    let here = ApiContext {
        router: store.router.clone().local_only(),
        stop: stop.clone(),
        ..store
    };
    let peers = PeerService {
        cluster_id: here.cluster_id,
        state: here.state.clone(),
        feed,
        router: here.router.clone(),
        renewals,
        members: here.members.clone(),
        followers,
        member_id: here.member_id,
        metrics: here.metrics.network.peers.clone(),
        log_once: LogOnce::hourly(),
        stop,
    };
    let peers = PeerServer::new(peers)
        .max_decoding_message_size(MAX_SMALL_REQUEST_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    leader_request::serve(Routes::new(peers), here, config.limits.max_receive_bytes)
}

/// Returns this member's entry in the member list.
#[must_use]
pub fn describe(config: &Config, id: u64) -> pb::Member {
    let texts = |urls: &[Url]| urls.iter().map(ToString::to_string).collect();
    pb::Member {
        id,
        name: config.name.clone(),
        peer_ur_ls: texts(&config.initial_advertise_peer_urls),
        client_ur_ls: texts(&config.advertise_client_urls),
        is_learner: false,
    }
}

/// Sends the request to the leadership loop of this member.
fn move_leader(transfers: mpsc::Sender<TransferLeader>) -> MoveLeader {
    Arc::new(move |target| {
        let transfers = transfers.clone();
        Box::pin(async move {
            let (reply, outcome) = oneshot::channel();
            transfers
                .send(TransferLeader { target, reply })
                .await
                .map_err(|_| Error::Stopped)?;
            outcome.await.unwrap_or(Err(Error::Stopped))
        })
    })
}

/// Returns a function that updates the gauges before they are rendered.
fn observe(
    store: ApiContext,
    hub: Hub,
    (size, size_in_use, log_size): (StoreSize, StoreSize, StoreSize),
    (members, data_dir): (Members, Option<PathBuf>),
) -> impl Fn(&Metrics) + Send + Sync {
    move |metrics| {
        let state: &StoreState = &store.state;
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.server.has_leader.set(i64::from(store.leader() != 0));
        metrics
            .server
            .is_leader
            .set(i64::from(store.leader() == store.member_id));
        metrics.server.follower_lag.set(gauge(state.lag()));
        metrics.server.proposals_committed.set(gauge(state.committed().0));
        metrics.server.proposals_applied.set(gauge(state.committed().0));
        metrics.server.auth_revision.set(gauge(state.auth().load().revision()));
        let view = state.view();
        metrics.mvcc.current_revision.set(view.revision);
        metrics.mvcc.compact_revision.set(view.compacted.max(0));
        // Few changes wait until a count needs them.
        view.key_index.apply_some();
        let index = view.key_index.size();
        let serves = index.phase == IndexPhase::Serving;
        let keys = if serves { index.keys } else { 0 };
        metrics.mvcc.keys.set(gauge(keys as u64));
        metrics.mvcc.key_index_size.set(gauge(index.bytes as u64));
        metrics.mvcc.key_index_serves.set(i64::from(serves));
        metrics.mvcc.watchers.set(gauge(hub.watchers()));
        metrics.mvcc.slow_watchers.set(gauge(hub.lagging_watchers()));
        metrics.mvcc.watch_streams.set(gauge(hub.streams()));
        metrics.mvcc.pending_events.set(gauge(hub.pending_events()));
        let events = &metrics.mvcc.events;
        events.inc_by(hub.events().saturating_sub(events.get()));
        let kinds = [("NOSPACE", NOSPACE), ("CORRUPT", CORRUPT)];
        for (alarm, kind) in kinds {
            let raised = state.has_alarm(kind);
            metrics.server.alarms.with_label_values(&[alarm]).set(raised.into());
        }
        let raised = state.alarms().clone();
        let named = raised.iter().filter_map(|(kind, member)| {
            let (name, _) = kinds.iter().find(|(_, known)| known == kind)?;
            Some((*name, *member))
        });
        metrics.server.set_member_alarms(named);
        let known = members.list();
        metrics
            .network
            .peers
            .set_known(store.member_id, known.iter().map(|member| member.id));
        // The gauges keep their last values if the file system does not answer; the health checks report that.
        if let Some(Ok(disk)) = data_dir.as_deref().map(rustix::fs::statvfs) {
            metrics
                .disk
                .capacity
                .set(gauge(disk.f_blocks.saturating_mul(disk.f_frsize)));
            metrics
                .disk
                .available
                .set(gauge(disk.f_bavail.saturating_mul(disk.f_frsize)));
        }
        metrics.disk.log_size.set(gauge(log_size()));
        let total = size();
        metrics.mvcc.db_total_size.set(gauge(total));
        metrics.mvcc.db_in_use.set(gauge(size_in_use().min(total)));
    }
}
