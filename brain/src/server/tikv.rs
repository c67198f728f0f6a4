//! The engine on a TiKV cluster.

use crate::server::quota::QuotaSpace;
use std::sync::Arc;

use crate::flags::{Config, ElectionLockKind, LeaseOptions, TikvOptions};
use crate::server::{disk_space, ports};
use anyhow::Context as _;
use cluster::discovery::Discovery;
use cluster::forward::Role;
use cluster::lock::{ElectionLock, StorageLock};
use cluster::membership::{ConfiguredMember, JoinRequest, MemberRemoval};
use cluster::peer_auth::{MembersOnly, PeerSecret, SECRET_BYTES};
use cluster::peers::{PeerAddresses, Peers};
use cluster::prefix_owner::{OWNER_REGISTER, OwnerError};
use cluster::{membership, prefix_owner};
use election::{Config as ElectionConfig, LeaseLock};
use engine::cas_register::{Cas, CasRegister as _};
use engine::log::LogObserver;
use engine::log::frame::is_barrier;
use engine_tikv::{ConnectError, ConnectionSupervisor, GcOwner, Tikv, TikvLog, TikvRows};
use net::http::member::StorageInUse;
use net::not_ready::NotReady;
use net::refusal::{Refusal, RefusalCode};
use runtime::own_thread::OwnThread;
use telemetry::metrics::Metrics;
use tokio::sync::watch;

use crate::server::engine::{HeaderIds, OpenEngine, quota};
use crate::server::run::{ClientPorts, Lifecycle, serve};
use crate::server::{first_start, retry};

/// Returns this member as flags name it.
fn configured(config: &Config) -> ConfiguredMember {
    ConfiguredMember {
        name: config.name.clone(),
        initial_cluster: config.initial_cluster.clone(),
        discovery: config.discovery.clone(),
        initial_advertise_peer_urls: config.initial_advertise_peer_urls.clone(),
        advertise_client_urls: config.advertise_client_urls.clone(),
        joins_existing: config.joins_existing,
    }
}

/// Runs one of many members whose store is a TiKV cluster.
pub(crate) async fn run(config: &Config, options: TikvOptions, mut life: Lifecycle) -> anyhow::Result<()> {
    let server = ports::bind_clients(config)?;
    let urls = server.bound()?;
    let peer_server = ports::bind_peers(config)?;
    let server = server.telling_of(&peer_server);
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let book = match &config.discovery {
        Some(discovery) => PeerAddresses::Srv(Box::new(Discovery::new(discovery)?)),
        None => PeerAddresses::Fixed(config.initial_cluster.clone()),
    };
    let peers = Peers::new(
        book,
        (config.peer_tls.clone(), config.tls_policy.clone()),
        config.initial_cluster_token.clone(),
    )
    .tls_only(config.listen_peer_urls.iter().any(|url| url.scheme().is_tls()))
    .with_lease(config.election.lease_duration)
    .measured(metrics.network.peers.clone());
    let waiting = NotReady::new(Refusal::new(RefusalCode::Starting, "connecting to TiKV"));
    let open = life.open(server, waiting.services(metrics.clone()));
    let request = JoinRequest::new(&configured(config));
    let counted = engine_tikv::TikvMetrics::register(metrics.registry()).context("register the metrics of TiKV")?;
    let election_thread = OwnThread::start("election").context("start a thread")?;
    let reached = tokio::select! {
    biased;
    () = life.leave.cancelled() => return life.end().await,
    reached = retry::until_reached(&waiting, async |failures| {
    reach(config, &options, (&request, &counted, &election_thread), failures).await
    }) => reached?,
    };
    let ReachedTikv {
        tikv,
        supervisor,
        election_tikv,
        election_supervisor,
        cluster,
        secret,
        table,
    } = reached;
    let member = peers.id(&config.name);
    let proof = PeerSecret::new(&secret, cluster, member);
    let peers = peers.proving(proof.clone());
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    let thread = election_thread.clone();
    let supervising = election_supervisor.run(life.stop.clone());
    life.tasks
        .spawn("TiKV of the election", async move { thread.run(supervising).await? });
    let members = membership::members(&request, &table, &peers);
    let admission = Arc::new(MembersOnly {
        proof,
        members: members.clone(),
    });
    let remove = Arc::new(MemberRemoval {
        register: Arc::new(tikv.register(MEMBERS_REGISTER)),
        request: request.clone(),
        peers: peers.clone(),
        members: members.clone(),
    });
    let follow = membership::follow(
        Arc::new(tikv.register(MEMBERS_REGISTER)),
        (request, peers.clone()),
        members.clone(),
        life.stop.clone(),
    );
    life.tasks.spawn("members", follow);
    let roles = watch::Sender::new(Role::Nobody);
    let collection = tikv.clone().collect_garbage(
        roles.subscribe(),
        |role| matches!(role, Role::Leading(_)),
        life.stop.clone(),
    );
    life.tasks.spawn("garbage collection", collection);
    let (lock, timing) = lock(config, &election_tikv).await?;
    let disk = metrics.disk.clone();
    let log = TikvLog::keeping(tikv.clone(), is_barrier)
        .observed(LogObserver::new(move |done| disk_space::count_log(done, &disk)));
    let engine = OpenEngine {
        log: Arc::new(log),
        rows: Arc::new(TikvRows::new(tikv.clone())),
        lock,
        timing,
        election_thread,
        space: Arc::new(QuotaSpace(quota(config))),
        ids: HeaderIds { cluster, member },
        storage: StorageInUse {
            kind: "TiKV",
            cluster_id: Some(tikv.cluster_id().to_string()),
            reachable: true,
            directory: None,
        },
        peers: Some((peer_server.admitting(admission), peers)),
        members,
        remove: Some(remove),
        roles,
    };
    let ports = ClientPorts::Answered { open, urls, waiting };
    Box::pin(serve(config, ports, engine, metrics, life)).await
}

/// Returns the election lock, and the timing of the election.
async fn lock(config: &Config, tikv: &Tikv) -> anyhow::Result<(ElectionLock, ElectionConfig)> {
    let options = &config.election;
    let identity = ElectionConfig::unique(&config.name);
    let defaults = match options.lock {
        ElectionLockKind::Storage => ElectionConfig::storage(identity),
        ElectionLockKind::Lease(_) => ElectionConfig::lease(identity),
    };
    let timing = ElectionConfig {
        lease_duration: options.lease_duration,
        renew_deadline: options.renew_deadline,
        retry_period: options.retry_period,
        call_timeout: match options.lock {
            // The register itself asks another connection when one is silent.
            ElectionLockKind::Storage => options.renew_deadline,
            ElectionLockKind::Lease(_) => options.renew_deadline / 2,
        },
        ..defaults
    };
    let register = tikv.election_register(LEADER_REGISTER, options.renew_deadline);
    // The first renewals, too, must be one request to TiKV each.
    register.warm_up().await;
    let record = StorageLock::new(Arc::new(register), "TiKV");
    let LeaseOptions {
        kubeconfig,
        namespace,
        name,
    } = match &options.lock {
        ElectionLockKind::Lease(lease) => lease,
        ElectionLockKind::Storage => return Ok((ElectionLock::Storage(record), timing)),
    };
    // TLS requires a default provider if several are linked; if one is already installed, it is kept.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (kubeconfig, namespace) = (kubeconfig.as_deref(), namespace.as_deref());
    let lease = LeaseLock::connect(kubeconfig, namespace, name, timing.call_timeout).await;
    let lease = Box::new(lease.context("--election lease")?);
    Ok((ElectionLock::Lease(lease, record), timing))
}

/// A connection to TiKV, and the data that was read first.
struct ReachedTikv {
    tikv: Tikv,
    supervisor: ConnectionSupervisor,
    /// Connections of the election's own, whose tasks are in its thread.
    election_tikv: Tikv,
    election_supervisor: ConnectionSupervisor,
    /// The id of the cluster that owns the key prefix.
    cluster: u64,
    /// The secret by which members prove that they belong to the cluster.
    secret: [u8; SECRET_BYTES],
    table: membership::MemberTable,
}

/// The register with the election's record.
pub(crate) const LEADER_REGISTER: &str = "leader";

/// The register with the rows of members.
const MEMBERS_REGISTER: &str = "members";

/// The timeouts of a start double with each attempt that was too slow, at most this number of times: single requests may take a minute
/// then.
const MAX_TIMEOUT_DOUBLINGS: u32 = 5;

/// The same for a program that tries to connect only once: a slow cluster is waited for.
pub(crate) const ONE_ATTEMPT_DOUBLINGS: u32 = 2;

/// Connects, with timeouts that grow with the number of attempts that were too slow, and takes this member's place in the cluster that owns the key
/// prefix.
async fn reach(
    config: &Config,
    options: &TikvOptions,
    (request, metrics, election_thread): (&JoinRequest, &engine_tikv::TikvMetrics, &OwnThread),
    failures: u32,
) -> anyhow::Result<ReachedTikv> {
    let mut connection = connection(options, failures);
    connection.metrics = metrics.clone();
    // Two renewals fit into the renew deadline if each is answered in half of it.
    connection.slowest_answer = config.election.renew_deadline / 2;
    let attaching = election_thread.clone().run(Tikv::attach(connection.clone()));
    let (attached, election_attached) = tokio::join!(Tikv::attach(connection), attaching);
    let (tikv, supervisor) = attached?;
    let (election_tikv, election_supervisor) = election_attached??;
    // Before anything is written.
    check_first_start(config, &tikv).await?;
    tikv.pin().await?;
    let cluster = prefix_owner::claim(&tikv.register(OWNER_REGISTER), &config.initial_cluster_token).await;
    let cluster = cluster.map_err(of_owner)?;
    let secret = secret(&tikv).await?;
    let table = membership::enter(&tikv.register(MEMBERS_REGISTER), request).await;
    let table = table.map_err(of_members)?;
    Ok(ReachedTikv {
        tikv,
        supervisor,
        election_tikv,
        election_supervisor,
        cluster,
        secret,
        table,
    })
}

/// Refuses to begin a store where there must be one, and a member that never started by flags that do not fit.
async fn check_first_start(config: &Config, tikv: &Tikv) -> anyhow::Result<()> {
    if config.joins_existing
        && !prefix_owner::is_owned(&tikv.register(OWNER_REGISTER))
            .await
            .map_err(of_owner)?
    {
        return Err(OwnerError::NoStore.into());
    }
    let members = tikv.register(MEMBERS_REGISTER);
    if membership::has_row(&members, &config.name).await.map_err(of_members)? {
        first_start::ignore(&config.bootstrap);
        return Ok(());
    }
    first_start::check(&config.bootstrap).await
}

fn of_owner(error: OwnerError) -> anyhow::Error {
    match error {
        OwnerError::Unreachable(error) => ConnectError::Unreachable(error).into(),
        error => error.into(),
    }
}

fn of_members(error: membership::EnterError) -> anyhow::Error {
    match error {
        membership::EnterError::Unreachable(error) => ConnectError::Unreachable(error).into(),
        error => error.into(),
    }
}

/// Returns the options of the connection to TiKV, given the number of attempts so far that were too slow.
pub(crate) fn connection(options: &TikvOptions, failures: u32) -> engine_tikv::ConnectOptions {
    let mut connection = engine_tikv::ConnectOptions::new(options.pd_endpoints.clone(), options.key_prefix.clone());
    connection.cluster_id = options.cluster_id;
    connection.gc_window = options.gc_window;
    connection.patience = 2u32.pow(failures.min(MAX_TIMEOUT_DOUBLINGS));
    connection.tls = options
        .tls
        .clone()
        .map(|(ca, cert, key)| engine_tikv::TikvTls { ca, cert, key });
    if !options.gc_interval.is_zero() {
        connection.gc = GcOwner::Every(options.gc_interval);
    }
    connection
}

/// Returns the secret of the cluster, which its first member creates.
async fn secret(tikv: &Tikv) -> anyhow::Result<[u8; SECRET_BYTES]> {
    let register = tikv.register("secret");
    loop {
        let stored = register.get().await.context("read the secret of the cluster");
        if let Some(secret) = stored.map_err(ConnectError::Unreachable)? {
            let secret: Result<[u8; SECRET_BYTES], _> = secret.as_ref().try_into();
            return secret
                .context("the secret of the cluster is damaged: remove its key from TiKV and restart all members");
        }
        let secret: [u8; SECRET_BYTES] = rand::random();
        if let Cas::Unknown(error) = register.compare_and_set(None, Some(secret.to_vec().into())).await {
            return Err(ConnectError::Unreachable(error.context("store the secret of the cluster")).into());
        }
    }
}
