//! `kubebrain`: reads the flags, opens the store, serves. The only file that names a storage engine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use brain::api::cluster::Members;
use brain::api::elsewhere::{Elsewhere, Role};
use brain::api::health::StoreHealth;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::cell::mem::MemCell;
use brain::cell::{Cell as _, Swap};
use brain::data_dir::{DataDir, Identity};
use brain::flags::{AutoCompaction, Config, Quota, Storage, TikvOptions};
use brain::log::frame::is_barrier;
use brain::log::{FileLog, Log, SyncObserver, TikvLog};
use brain::member::follow::Follower;
use brain::member::leadership::{self, Cluster, Office};
use brain::member::lock::StorageLock;
use brain::member::peer::Followers;
use brain::member::peers::Peers;
use brain::member::{self, Member};
use brain::metrics::Metrics;
use brain::mvcc::auto_compact::{self, Retention};
use brain::process;
use brain::rows::fjall::FjallRows;
use brain::rows::{Rows, TikvRows};
use brain::sequencer::{Options as SequencerOptions, Space};
use brain::serve::{Server, Services};
use brain::store::{self, DiskSpace};
use brain::tasks::Tasks;
use brain::tikv::{ConnectError, Gc, Keeper, Tikv};
use brain::watch;
use election::{Config as ElectionConfig, Elector, Lock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long requests under way may take after SIGTERM; less than a pod's grace period of 30 s.
const GRACE: Duration = Duration::from_secs(15);

/// How long to wait before TiKV is tried again at the start, at first and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

fn main() -> ExitCode {
    process::run(|config| async move {
        match &config.storage {
            Storage::Embedded => embedded(&config).await,
            Storage::Tikv(options) => tikv(&config, options.clone()).await,
        }
    })
}

/// What an engine brings.
struct Engine<L, R, K, Q> {
    log: L,
    rows: R,
    lock: K,
    timing: ElectionConfig,
    space: Q,
    ids: Ids,
    /// The others, where there are any.
    peers: Option<(Server, Peers)>,
}

/// Told in every answer.
#[derive(Clone, Copy)]
struct Ids {
    cluster: u64,
    member: u64,
}

/// A member whose store is a directory of its own: nobody else can lead.
async fn embedded(config: &Config) -> anyhow::Result<()> {
    let server = Server::bind(config)?;
    let dir = DataDir::open(&config.data_dir, || Identity {
        format: brain::data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
    })?;
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let quota = quota(config);
    let (log, rows) = open(config, &dir, quota, &metrics)?;
    let engine = Engine {
        log,
        rows,
        // The directory's lock shuts out everybody else: the record need not outlive the process, nor be seen by another.
        lock: StorageLock::new(MemCell::new(), "data directory"),
        timing: ElectionConfig::lease(ElectionConfig::unique(&config.name)),
        space: DiskSpace::new(dir.path(), quota)?,
        ids: Ids {
            cluster: dir.identity().cluster_id,
            member: dir.identity().member_id,
        },
        peers: None,
    };
    let stop = CancellationToken::new();
    serve(config, server, engine, metrics, Tasks::new(stop.clone()), stop).await
}

/// One of many members whose store is a TiKV cluster.
async fn tikv(config: &Config, options: TikvOptions) -> anyhow::Result<()> {
    let server = Server::bind(config)?;
    let peer_server = Server::bind_peers(config)?;
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let peers = Peers::new(
        config.initial_cluster.clone(),
        config.peer_tls.clone(),
        config.initial_cluster_token.clone(),
    );
    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    let (tikv, keeper) = connect(&options).await?;
    tasks.spawn("TiKV", keeper.run(stop.clone()));
    let cluster = claim(&tikv, &config.initial_cluster_token).await?;
    let (lease_duration, renew_deadline, retry_period) = config.election;
    let storage = ElectionConfig::storage(ElectionConfig::unique(&config.name));
    let engine = Engine {
        log: TikvLog::keeping(tikv.clone(), is_barrier),
        rows: TikvRows::new(tikv.clone()),
        lock: StorageLock::new(tikv.cell("leader"), "TiKV"),
        timing: ElectionConfig {
            lease_duration,
            renew_deadline,
            retry_period,
            call_timeout: storage.call_timeout.min(renew_deadline / 2),
            ..storage
        },
        space: QuotaSpace(quota(config)),
        ids: Ids {
            cluster,
            member: peers.id(&config.name),
        },
        peers: Some((peer_server, peers)),
    };
    serve(config, server, engine, metrics, tasks, stop).await
}

/// Connects, however long it takes until TiKV is there.
async fn connect(options: &TikvOptions) -> anyhow::Result<(Tikv, Keeper)> {
    let mut connection = brain::tikv::Options::new(options.pd_endpoints.clone(), options.key_prefix.clone());
    connection.gc_window = options.gc_window;
    connection.tls = options
        .tls
        .clone()
        .map(|(ca, cert, key)| brain::tikv::Tls { ca, cert, key });
    if !options.gc_interval.is_zero() {
        connection.gc = Gc::Every(options.gc_interval);
    }
    let mut pause = RECONNECT.0;
    loop {
        match Tikv::connect(connection.clone()).await {
            Err(ConnectError::Unreachable(error)) => {
                tracing::warn!(error = format!("{error:#}"), again_in = ?pause, "TiKV cannot be reached");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RECONNECT.1);
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Makes the key prefix this cluster's, or finds that it is. Answers with the cluster's id.
async fn claim(tikv: &Tikv, token: &str) -> anyhow::Result<u64> {
    let cell = tikv.cell("owner");
    loop {
        if let Some(owner) = cell.get().await.context("ask whose the key prefix is")? {
            let (id, name) = owner
                .split_first_chunk()
                .context("the key prefix belongs to something else")?;
            anyhow::ensure!(
                name == token.as_bytes(),
                "the key prefix belongs to the cluster with the token {:?}, not {token:?}: choose another --tikv-key-prefix",
                String::from_utf8_lossy(name)
            );
            return Ok(u64::from_be_bytes(*id));
        }
        let id: u64 = rand::random();
        let owner = [&id.to_be_bytes(), token.as_bytes()].concat();
        if let Swap::Unknown(error) = cell.compare_and_set(None, Some(owner.into())).await {
            return Err(error.context("claim the key prefix"));
        }
    }
}

/// Serves a store until the end.
async fn serve<L: Log, R: Rows, K: Lock, Q: Space + Clone>(
    config: &Config,
    server: Server,
    engine: Engine<L, R, K, Q>,
    metrics: Arc<Metrics>,
    mut tasks: Tasks,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Engine {
        log,
        rows,
        lock,
        timing,
        space,
        ids,
        peers,
    } = engine;
    let lone = peers.is_none();
    let options = store::Options {
        sequencer: bounds(ids.member, lone),
        watch: watch::Options::default(),
        lease: if lone { Duration::ZERO } else { timing.lease_duration },
    };
    let (running, leader) = store::open((log.clone(), rows.clone()), options, &metrics, space).await?;
    let (roles, mut role) = tokio::sync::watch::channel(Role::Nobody);
    let (moves, moved) = mpsc::channel(1);
    let members = Members::new([member::describe(config, ids.member)]);
    let followers = Followers::default();
    let follower = Follower {
        member: member::describe(config, ids.member),
        members: members.clone(),
        identity: timing.identity.clone(),
        cluster_id: ids.cluster,
    };
    let renew_deadline = timing.renew_deadline;
    let (elector, election) = Elector::new(lock, timing)?;
    let (peer_server, peers) = peers.unzip();
    let office = Office {
        election,
        renew_deadline,
        roles,
        cluster: peers.map(|peers| Cluster {
            peers,
            follower,
            followers: followers.clone(),
        }),
        moves: moved,
    };
    // The lock is needed until nobody leads here any more; peers are answered as long.
    let led = CancellationToken::new();
    tasks.spawn("election", {
        let led = led.clone();
        async move { Ok(elector.run(led).await?) }
    });
    tasks.spawn("leadership", leadership::run(leader, office, stop.clone(), led.clone()));
    tasks.spawn("watch hub", running.hub.clone().run(stop.clone()));
    let api = Store {
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        elsewhere: Elsewhere::new(role.clone()),
        limits: limits(config, &rows),
        cluster_id: ids.cluster,
        member_id: ids.member,
    };
    // Clients leave first, the store ends when they are gone; if it ends before, they leave too.
    let leave = stop.child_token();
    process::follow_signals(&leave, &stop, &mut tasks)?;
    if let Some(peer_server) = peer_server {
        let told = (running.feed.clone(), members.clone(), followers);
        let services = Services {
            routes: member::peer_services(config, api.clone(), told, (metrics.clone(), led.clone())),
            health: Arc::new(StoreHealth(api.clone())),
            metrics: metrics.clone(),
        };
        peer_server.start(services, &led, &led, GRACE, &mut tasks);
    }
    let leads = role.wait_for(|role| !matches!(role, Role::Nobody));
    let begun = tokio::select! {
        begun = leads => matches!(begun.as_deref(), Ok(Role::Leading(_) | Role::Following(_))),
        () = leave.cancelled() => false,
    };
    if !begun {
        stop.cancel();
        return tasks.join().await;
    }
    if let Some(retention) = retention(config.auto_compaction) {
        let (state, stop) = (api.state.clone(), stop.clone());
        let compaction = auto_compact::run(retention, api.sequencer.clone(), move || state.view().revision, stop);
        tasks.spawn("automatic compaction", compaction);
    }
    let (_leader, has_leader) = tokio::sync::watch::channel(true);
    let member = Member {
        store: api,
        hub: running.hub,
        history: running.history,
        has_leader,
        size: Arc::new(move || log.size() + rows.size()),
        members,
        moves,
        metrics,
        leave: leave.clone(),
    };
    let services = member::services(config, member);
    let urls = server.bound()?;
    server.start(services, &leave, &stop, GRACE, &mut tasks);
    process::ready(&urls);
    tasks.join().await
}

/// What requests may be.
fn limits<R: Rows>(config: &Config, rows: &R) -> Limits {
    Limits {
        txn_ops: config.limits.max_txn_ops,
        request_bytes: config.limits.max_request_bytes,
        key_bytes: rows.max_key_len().saturating_sub(64) / 2,
    }
}

/// The bytes that the store may occupy.
fn quota(config: &Config) -> Option<u64> {
    match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    }
}

/// A quota alone: the medium is somebody else's.
#[derive(Debug, Clone)]
struct QuotaSpace(Option<u64>);

impl Space for QuotaSpace {
    fn exceeded(&mut self, size: u64) -> bool {
        self.0.is_some_and(|quota| size > quota)
    }
}

/// The engine in a data directory.
fn open(
    config: &Config,
    dir: &DataDir,
    quota: Option<u64>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(FileLog, FjallRows)> {
    let fsync = metrics.disk.wal_fsync.clone();
    let segment_bytes = store::segment_bytes(dir.path(), quota)?;
    let log_options = brain::log::Options {
        first_segment_bytes: segment_bytes.min(4 << 20),
        segment_bytes,
        unsafe_no_fsync: config.unsafe_no_fsync,
    };
    let on_sync = SyncObserver::new(move |took| fsync.observe(took.as_secs_f64()));
    let log = FileLog::open_observed(&dir.path().join("log"), log_options, on_sync).context("open the log")?;
    let rows =
        FjallRows::open(&dir.path().join("rows"), brain::rows::fjall::Options::default()).context("open the rows")?;
    Ok((log, rows))
}

/// Bounds of the write path. Records to another machine take longer: more of them are under way.
fn bounds(member: u64, lone: bool) -> SequencerOptions {
    SequencerOptions {
        member,
        in_flight: if lone { 2 } else { 7 },
        batch_requests: 2_048,
        batch_bytes: 4 << 20,
        flush_bytes: 8 << 20,
        flush_interval: Duration::from_secs(10),
        recent_bytes: 64 << 20,
    }
}

/// What `--auto-compaction-mode` and `--auto-compaction-retention` ask for.
fn retention(flags: AutoCompaction) -> Option<Retention> {
    match flags {
        AutoCompaction::Off => None,
        AutoCompaction::Periodic(age) => Some(Retention::Age(age)),
        AutoCompaction::Revision(kept) => Some(Retention::Revisions(kept)),
    }
}
