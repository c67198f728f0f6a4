//! Runs the server over an engine, from the open store to the end of the process.

use std::sync::Arc;
use std::time::Duration;

use crate::flags::{AutoCompaction, Config};
use crate::server::node::{self, NodeOptions};
use crate::server::process::Signals;
use crate::server::services as member;
use crate::server::services::{MemberHandles, StoreSize};
use crate::server::{ports, process};
use crate::sizing;
use ::watch;
use api::auth::{Authenticator, Guard};
use api::context::ApiContext;
use api::health::StoreHealth;
use api::maintenance::Defragment;
use api::request::RequestLimits;
use cluster::follow::FollowerIdentity;
use cluster::followers::Followers;
use cluster::forward::{LaterLeader, LeaderRouter, Role, StorageCheck};
use cluster::leadership::{CampaignPause, LeadershipLoop, OtherMembers, TransferLeader};
use cluster::liveness::Liveness;
use cluster::lock::ElectionLock;
use cluster::lock_latency::LockLatency;
use cluster::node::Node;
use cluster::peers::name_of;
use cluster::self_hosted_lease::SelfHostedLease;
use cluster::{Renewals, duplicate_member, leadership, liveness};
use election::{Config as ElectionConfig, ElectionState, Elector, Handle as Election};
use engine::LogAndRows;
use engine::log::DynLog;
use engine::rows::DynRows;
use mvcc::fetch::FetchBudgets;
use net::http;
use net::not_ready::NotReady;
use net::refusal::{Refusal, RefusalCode};
use net::serve::{OpenPorts, PortServices, Server, UnaryRpcs};
use runtime::log_once::LogOnce;
use runtime::memory;
use runtime::own_thread::OwnThread;
use runtime::tasks::Tasks;
use store::commit_feed::CommitFeed;
use store::defragment::{self, DefragmentQueue};
use store::flush::CompactionPace;
use store::sequencer::SequencerOptions;
use store::sequencer::auto_compact;
use store::sequencer::auto_compact::Retention;
use store::state::StoreState;
use telemetry::metrics::Metrics;
use telemetry::otel::Tracing;
use telemetry::slow_requests::ApplyLog;
use tokio::sync::{mpsc, watch as watch_channel};
use tokio_util::sync::CancellationToken;

use crate::server::engine::{OpenEngine, quota};
use crate::server::retry;

/// The time for which clients' requests in flight may continue after SIGTERM. Even if something is stuck, the process ends within
/// 10 s, well within a pod's grace period of 30 s: after this time the writer drains, the lock is transferred, and the tasks are
/// aborted.
const CLIENT_GRACE_PERIOD: Duration = Duration::from_secs(4);

/// The time for which requests of peers in flight may continue after this member has stopped leading and following.
const PEER_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The process: its tasks, and the order of its shutdown.
pub(crate) struct Lifecycle {
    pub(crate) tasks: Tasks,
    /// Cancelled first: clients disconnect.
    pub(crate) leave: CancellationToken,
    /// Cancelled when the clients are gone: the store ends. If the store ends before, clients disconnect, too.
    pub(crate) stop: CancellationToken,
}

impl Lifecycle {
    /// Creates it; from now on signals end the process.
    pub(crate) fn begin(signals: Signals) -> Lifecycle {
        let stop = CancellationToken::new();
        let (leave, mut tasks) = (stop.child_token(), Tasks::new(stop.clone()));
        signals.follow(&leave, &stop, &mut tasks);
        Lifecycle { tasks, leave, stop }
    }

    /// Serves on the ports of `server`.
    pub(crate) fn open(&mut self, server: Server, services: PortServices) -> OpenPorts {
        server.start(services, &self.leave, &self.stop, CLIENT_GRACE_PERIOD, &mut self.tasks)
    }

    /// Ends the process before a store was served.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.leave.cancel();
        self.stop.cancel();
        self.tasks.join().await
    }
}

/// The ports for clients.
pub(crate) enum ClientPorts {
    /// Bound, but no connections are accepted before there is a store.
    Bound(Box<Server>),
    /// Already served, with a service that reports why there is no store yet.
    Answered {
        open: OpenPorts,
        urls: Vec<String>,
        waiting: NotReady,
    },
}

impl ClientPorts {
    /// Gives clients the services. Returns the URLs of the ports.
    fn open(self, services: PortServices, life: &mut Lifecycle) -> anyhow::Result<Vec<String>> {
        match self {
            ClientPorts::Bound(server) => {
                let urls = server.bound()?;
                life.open(*server, services);
                Ok(urls)
            }
            ClientPorts::Answered { open, urls, .. } => {
                open.replace(services);
                Ok(urls)
            }
        }
    }
}

fn start_upkeep(config: &Config, api: &ApiContext, life: &mut Lifecycle) {
    compact_by_itself(config, api, life);
    index_keys(config, api, life);
    scrub(config, api, life);
}

/// Starts automatic compaction, if the flags ask for it.
fn compact_by_itself(config: &Config, api: &ApiContext, life: &mut Lifecycle) {
    if let Some(retention) = retention(config.auto_compaction) {
        let (state, stop) = (api.state.clone(), life.stop.clone());
        let compaction = auto_compact::run(retention, api.sequencer.clone(), move || state.view().revision, stop);
        life.tasks.spawn("automatic compaction", compaction);
    }
}

/// Starts to check what is stored from time to time, if the flags ask for it.
fn scrub(config: &Config, api: &ApiContext, life: &mut Lifecycle) {
    if let Some(every) = config.corrupt_check_interval {
        let check = api::corruption_check::run(api.clone(), every, life.stop.clone());
        life.tasks.spawn("check of what is stored", check);
    }
}

/// Starts to build the index of keys, unless the flags rule it out.
fn index_keys(config: &Config, api: &ApiContext, life: &mut Lifecycle) {
    if config.key_index_bytes > 0 {
        let index = store::index::run(api.state.clone(), config.key_index_bytes, life.stop.clone());
        life.tasks.spawn("index of keys", index);
        let limit = i64::try_from(config.key_index_bytes).unwrap_or(i64::MAX);
        api.metrics.mvcc.key_index_limit.set(limit);
    }
}

/// Serves a store until the process ends.
pub(crate) async fn serve(
    config: &Config,
    ports: ClientPorts,
    engine: OpenEngine,
    metrics: Arc<Metrics>,
    mut life: Lifecycle,
) -> anyhow::Result<()> {
    let authenticator = Arc::new(Authenticator::new(&config.auth)?);
    let tracing = Tracing::start(config.tracing.as_ref())?;
    let (ids, lone) = (engine.ids, engine.peers.is_none());
    let options = options(config, ids.member, lone, &engine.timing);
    let (log, rows) = (engine.log.clone(), engine.rows.clone());
    let opening = async {
        let open = async || {
            let space = engine.space.clone();

            let stored = LogAndRows {
                log: log.clone(),
                rows: rows.clone(),
            };
            node::open(stored, options.clone(), &metrics, space).await
        };
        match &ports {
            ClientPorts::Bound(_) => open().await,
            ClientPorts::Answered { waiting, .. } => retry::until_reached(waiting, async |_| open().await).await,
        }
    };
    let (running, node) = tokio::select! {
    biased;
    () = life.leave.cancelled() => return life.end().await,
    opened = opening => opened?,
    };
    if let ClientPorts::Answered { waiting, .. } = &ports {
        waiting.because(Refusal::new(RefusalCode::NoLeader, "there is no leader yet"));
    }
    let mut role = engine.roles.subscribe();
    let later = leadership::later_leader(log.clone(), running.state.clone(), node.unanswered.clone());
    let later = Some(later).filter(|_| config.strict_reads && !lone);
    let (transfers, transfer_requests) = mpsc::channel(1);
    let router = router(role.clone(), later, &engine.timing, &mut life).traced(tracing.clone());
    let router = router.measured(metrics.network.peers.clone());
    let api = ApiContext {
        guard: Guard::new(&running.state, &router, authenticator),
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        router,
        limits: RequestLimits::new(config.limits.max_txn_ops, config.limits.max_request_bytes, &*rows),
        min_ttl: config.min_lease_ttl(),
        members: engine.members.clone(),
        stop: life.leave.clone(),
        cluster_id: ids.cluster,
        member_id: ids.member,
        metrics: metrics.clone(),
        slow: ApplyLog::new(config.slow_requests.apply, metrics.server.slow_apply.clone()),
    };
    let (members, storage) = (engine.members.clone(), engine.storage.clone());
    let remove = engine.remove.clone();
    let self_hosted_lease = engine.lock.self_hosted_lease();
    if let Some(self_hosted_lease) = &self_hosted_lease {
        tokio::select! {
        biased;
        () = life.leave.cancelled() => return life.end().await,
        checked = self_hosted_lease.check_before(&running.state) => checked?,
        }
    }
    let liveness = Liveness::default();
    let checks = LeaderChecks {
        self_hosted_lease,
        liveness: liveness.clone(),
    };
    let store = (&api, &running.feed, &metrics);
    start_leadership(config, engine, store, node, (transfer_requests, checks), &mut life)?;
    life.tasks
        .spawn("watch hub", running.hub.clone().run(life.stop.clone()));
    if !has_begun(&mut role, &life.leave).await {
        return life.end().await;
    }
    start_upkeep(config, &api, &mut life);
    let (shown, has_leader) = watch_channel::channel(true);
    let liveness = liveness::run(liveness, role, config.election_timeout, shown, life.stop.clone());
    life.tasks.spawn("liveness", liveness);
    count_snapshots(rows.clone(), &metrics);
    let member = MemberHandles {
        store: api,
        hub: running.hub,
        history: running.history,
        has_leader,
        defragment: defragmentations(config, (&log, &rows, &running.state), &mut life),
        log_size: log_size(log, &rows),
        size_in_use: size_in_use(rows.clone(), running.state.clone()),
        space_to_come: space_to_come(rows.clone()),
        size: total_size(rows, running.state.clone()),
        members,
        remove,
        storage,
        transfers,
        leave: life.leave.clone(),
    };
    let services = member::services(config, member, (&mut life.tasks, &life.stop));
    let urls = ports.open(services, &mut life)?;
    process::ready(&urls);
    let outcome = life.tasks.join().await;
    tracing.end().await;
    outcome
}

/// Waits until this member leads or follows. Returns false if it is to leave before.
async fn has_begun(role: &mut watch_channel::Receiver<Role>, leave: &CancellationToken) -> bool {
    tokio::select! {
    begun = role.wait_for(|role| !matches!(role, Role::Nobody)) => {
    matches!(begun.as_deref(), Ok(Role::Leading(_) | Role::Following(_)))
    }
    () = leave.cancelled() => false,
    }
}

/// The memtables that a quota has room for, and the size below which none is flushed for it.
const MEMTABLES_PER_QUOTA: u64 = 16;
const MIN_FLUSH_BYTES: usize = 64 << 10;

/// Returns the options to open the store with. A single member leads without a lease.
fn options(config: &Config, member: u64, lone: bool, timing: &ElectionConfig) -> NodeOptions {
    let bounds = bounds(member, lone);
    // Versions that are not flushed count against the quota of a data directory, compacted or not.
    let share = match quota(config) {
        Some(quota) if lone => usize::try_from(quota / MEMTABLES_PER_QUOTA)
            .unwrap_or(usize::MAX)
            .max(MIN_FLUSH_BYTES),
        _ => usize::MAX,
    };
    NodeOptions {
        sequencer: SequencerOptions {
            compaction: config.compaction,
            disarms_nospace: config.limits.disarms_nospace,
            flush_bytes: bounds.flush_bytes.min(share),
            ..bounds
        },
        watch: watch::WatchLimits::default(),
        fetches: FetchBudgets::within(memory::available()),
        lease: if lone { Duration::ZERO } else { timing.lease_duration },
    }
}

/// Counts the open snapshots of rows at each scrape, if they hold anything.
fn count_snapshots(rows: DynRows, metrics: &Metrics) {
    metrics.before_render(move |metrics| {
        if let Some(open) = rows.open_snapshots() {
            metrics.open_snapshots().set(i64::try_from(open).unwrap_or(i64::MAX));
        }
    });
}

/// Returns the size of a member's own log in bytes; 0 if all members share one log.
fn log_size(log: DynLog, rows: &DynRows) -> StoreSize {
    let is_own = rows.size().is_some();
    Arc::new(move || if is_own { log.size() } else { 0 })
}

/// Returns the size of the store in bytes.
fn total_size(rows: DynRows, state: Arc<StoreState>) -> StoreSize {
    Arc::new(move || state.total_size(&rows))
}

/// Returns the bytes of the disk that rows need for their next merge.
fn space_to_come(rows: DynRows) -> StoreSize {
    Arc::new(move || rows.to_come())
}

/// Returns the bytes of it that live and retained versions take.
fn size_in_use(rows: DynRows, state: Arc<StoreState>) -> StoreSize {
    Arc::new(move || state.size_in_use(&rows))
}

/// Starts the task that reclaims space that rows and log do not need, once now if the flags ask for it.
fn defragmentations(
    config: &Config,
    (log, rows, state): (&DynLog, &DynRows, &Arc<StoreState>),
    life: &mut Lifecycle,
) -> Defragment {
    let (log, rows, state) = (log.clone(), rows.clone(), state.clone());
    let store = (rows.clone(), state.clone());
    let (asked, work) = DefragmentQueue::new(move || {
        let (log, rows, state) = (log.clone(), rows.clone(), state.clone());
        async move { defragment::defragment(&log, &rows, &state).await }
    });
    let stop = life.stop.clone();
    if let Some(threshold) = config.bootstrap_defrag_bytes {
        let (asked, stop) = (asked.clone(), stop.clone());
        life.tasks.spawn("defragmentation at the start", async move {
            tokio::select! {
            () = defragment::at_start(&asked, &store.0, &store.1, threshold) => stop.cancelled().await,
            () = stop.cancelled() => {}
            }
            Ok(())
        });
    }
    life.tasks.spawn("defragmentation", async move {
        tokio::select! {
        () = work => stop.cancelled().await,
        () = stop.cancelled() => {}
        }
        Ok(())
    });
    Arc::new(move || {
        let asked = asked.clone();
        Box::pin(async move { asked.ask().await })
    })
}

/// Creates the router for requests that only a leader answers; strict reads check `later`.
fn router(
    role: watch_channel::Receiver<Role>,
    later: Option<LaterLeader>,
    timing: &ElectionConfig,
    life: &mut Lifecycle,
) -> LeaderRouter {
    let router = LeaderRouter::new(role).with_lease_duration(timing.lease_duration);
    let Some(later) = later else { return router };
    let (check, asking) = StorageCheck::new(later, timing.renew_deadline);
    let stop = life.stop.clone();
    life.tasks.spawn("strict reads", async move {
        tokio::select! {
        () = asking => stop.cancelled().await,
        () = stop.cancelled() => {}
        }
        Ok(())
    });
    router.strict(check)
}

/// Checks of whether this member may lead, and whether there is a leader.
struct LeaderChecks {
    self_hosted_lease: Option<SelfHostedLease>,
    liveness: Liveness,
}

/// Starts leading or following, and serving peers.
fn start_leadership(
    config: &Config,
    engine: OpenEngine,
    (api, feed, metrics): (&ApiContext, &CommitFeed, &Arc<Metrics>),
    mut node: Node,
    (transfers, checks): (mpsc::Receiver<TransferLeader>, LeaderChecks),
    life: &mut Lifecycle,
) -> anyhow::Result<()> {
    let OpenEngine {
        lock,
        timing,
        election_thread,
        ids,
        members,
        roles,
        peers,
        ..
    } = engine;
    // The lock is needed until this member has stopped leading and following; peers are served as long.
    let led = CancellationToken::new();
    let competing = (lock.clone(), timing.clone(), election_thread);
    let election = compete(config, competing, (metrics, &led, &mut life.tasks))?;
    let cluster = peers.map(|(server, peers)| {
        let duplicate_member =
            duplicate_member::watch(lock.clone(), timing.identity.clone(), timing.retry_period, led.clone());
        life.tasks.spawn("duplicate member", duplicate_member);
        let followers = Followers::default();
        let told = (feed.clone(), election.renewals(), followers.clone());
        let services = for_peers(config, api, told, (metrics, &led));
        server.start(services, &led, &led, PEER_GRACE_PERIOD, &mut life.tasks);
        let follower = FollowerIdentity {
            member: member::describe(config, ids.member),
            members,
            identity: timing.identity.clone(),
            lease_duration: timing.lease_duration,
            cluster_id: ids.cluster,
        };
        OtherMembers {
            peers,
            follower,
            followers,
            log_once: LogOnce::hourly(),
        }
    });
    node.announce_epoch = Some(Arc::new({
        let lock = lock.clone();
        move |epoch| {
            let lock = lock.clone();
            Box::pin(async move { lock.announce_epoch(epoch).await })
        }
    }));
    let leadership = LeadershipLoop {
        renew_deadline: timing.renew_deadline,
        election,
        roles,
        cluster,
        transfers,
        announced_epoch: Box::new({
            let lock = lock.clone();
            move || lock.announced_epoch()
        }),
        lock: Box::new(move || lock.id()),
        self_hosted_lease: checks.self_hosted_lease,
        liveness: checks.liveness,
        rest: CampaignPause::default(),
    };
    let leading = leadership::run(node, leadership, life.stop.clone(), led);
    life.tasks.spawn("leadership", leading);
    Ok(())
}

/// Joins the election until `led`, and serves the leader's name over HTTP if configured.
fn compete(
    config: &Config,
    (lock, timing, thread): (ElectionLock, ElectionConfig, OwnThread),
    (metrics, led, tasks): (&Metrics, &CancellationToken, &mut Tasks),
) -> anyhow::Result<Election> {
    let latency = LockLatency::new(&metrics.server, timing.clone());
    let (elector, election) = Elector::new(lock, timing)?;
    let elector = elector.observed(move |call| latency.observe(call));
    let renewing = election.clone();
    metrics.before_render(move |metrics| {
        let failures = &metrics.server.heartbeat_failures;
        failures.inc_by(renewing.failed_renewals().saturating_sub(failures.get()));
    });
    let running = elector.run(led.clone());
    tasks.spawn("election", async move { Ok(thread.run(running).await??) });
    if config.leader_http.is_some() {
        let told = ports::bind_leader(config)?;
        let leader = leader_name(config.name.clone(), election.watch());
        told.start_http(http::leader::routes(leader), metrics, led, tasks);
    }
    Ok(election)
}

/// Returns the services for peers.
fn for_peers(
    config: &Config,
    api: &ApiContext,
    told: (CommitFeed, Renewals, Followers),
    (metrics, led): (&Arc<Metrics>, &CancellationToken),
) -> PortServices {
    PortServices {
        routes: member::peer_services(config, api.clone(), told, led.clone()),
        unary: UnaryRpcs::default(),
        health: Arc::new(StoreHealth(api.clone())),
        member: Err(Arc::new(|| {
            Refusal::new(RefusalCode::Failed, "members can only be queried on their client port")
        })),
        metrics: metrics.clone(),
        has_leader: None,
        slow: None,
        tracing: api.router.tracing().clone().continues_only(),
        is_open: true,
    }
}

/// Returns the leader's name, by the last record that the elector saw.
fn leader_name(own: String, election_state: watch_channel::Receiver<ElectionState>) -> http::leader::LeaderName {
    Arc::new(move || match &*election_state.borrow() {
        ElectionState::Leading(_) => own.clone(),
        ElectionState::Following { leader } => name_of(leader).to_owned(),
        ElectionState::NoLeader => String::new(),
    })
}

/// Returns the bounds of the write path. Appends to another machine take longer: more of them are in flight.
fn bounds(member: u64, lone: bool) -> SequencerOptions {
    let memtable_bytes = sizing::MEMTABLES.of_available();
    SequencerOptions {
        member,
        in_flight: if lone { 2 } else { 7 },
        batch_requests: 2_048,
        batch_bytes: 4 << 20,
        // Local rows write what a flush brings to a table, which must not be small.
        flush_bytes: if lone {
            (16 << 20).min(memtable_bytes / 2)
        } else {
            8 << 20
        },
        flush_interval: Duration::from_secs(10),
        memtable_bytes,
        lease_bytes: sizing::LEASES.of_available(),
        disarms_nospace: false,
        compaction: CompactionPace::default(),
    }
}

/// Returns the retention by `--auto-compaction-mode` and `--auto-compaction-retention`.
fn retention(flags: AutoCompaction) -> Option<Retention> {
    match flags {
        AutoCompaction::Off => None,
        AutoCompaction::Periodic(age) => Some(Retention::Age(age)),
        AutoCompaction::Revision(kept) => Some(Retention::Revisions(kept)),
    }
}
