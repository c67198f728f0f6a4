//! The engine on a TiKV cluster.

use std::sync::Arc;

use anyhow::Context as _;
use brain::api::elsewhere::Role;
use brain::cell::{Cell as _, Swap};
use brain::flags::{Config, ElectionLock, LeaseOptions, TikvOptions};
use brain::http::member::StorageInUse;
use brain::log::frame::is_barrier;
use brain::log::{SyncObserver, TikvLog};
use brain::member::discovery::Discovery;
use brain::member::lock::{AnyLock, StorageLock};
use brain::member::peers::{Book, Peers};
use brain::member::proof::{MembersOnly, Proof, SECRET};
use brain::member::roster::{self, Applicant};
use brain::member::waiting::Waiting;
use brain::metrics::Metrics;
use brain::rows::TikvRows;
use brain::sequencer::Space;
use brain::serve::Server;
use brain::tikv::{ConnectError, Gc, Keeper, Tikv, TikvCell, connect_timeout};
use election::{Config as ElectionConfig, LeaseLock};
use tokio::sync::watch;

use crate::engine::{Engine, Ids, quota};
use crate::patience;
use crate::run::{Life, Ports, serve};

/// One of many members whose store is a TiKV cluster.
pub(crate) async fn run(config: &Config, options: TikvOptions, mut life: Life) -> anyhow::Result<()> {
    let server = Server::bind(config)?;
    let urls = server.bound()?;
    let peer_server = Server::bind_peers(config)?;
    let server = server.telling_of(&peer_server);
    let metrics = Arc::new(Metrics::new(config.extensive_metrics));
    let book = match &config.discovery {
        Some(discovery) => Book::Srv(Box::new(Discovery::new(discovery)?)),
        None => Book::Fixed(config.initial_cluster.clone()),
    };
    let peers = Peers::new(
        book,
        (config.peer_tls.clone(), config.tls_policy.clone()),
        config.initial_cluster_token.clone(),
    )
    .tls_only(config.listen_peer_urls.iter().any(|url| url.scheme().is_tls()));
    let waiting = Waiting::new("TiKV is being connected to");
    let open = life.open(server, waiting.services(metrics.clone()));
    let applicant = Applicant::new(config);
    let reached = tokio::select! {
        biased;
        () = life.leave.cancelled() => return life.end().await,
        reached = patience::outlast(&waiting, async |failures| {
            reach(config, &options, (&applicant, &metrics), failures).await
        }) => reached?,
    };
    let Reached {
        tikv,
        keeper,
        cluster,
        secret,
        table,
    } = reached;
    let member = peers.id(&config.name);
    let proof = Proof::new(&secret, cluster, member);
    let peers = peers.proving(proof.clone());
    life.tasks.spawn("TiKV", keeper.run(life.stop.clone()));
    let members = roster::members(&applicant, &table, &peers);
    let admission = Arc::new(MembersOnly {
        proof,
        members: members.clone(),
    });
    let follow = roster::follow(
        tikv.cell(ROSTER),
        (applicant, peers.clone()),
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
    let (lock, timing) = lock(config, &tikv).await?;
    // What a sync is to a log in files, an append is here.
    let appends = metrics.disk.wal_fsync.clone();
    let engine = Engine {
        log: TikvLog::keeping(tikv.clone(), is_barrier)
            .observed(SyncObserver::new(move |took| appends.observe(took.as_secs_f64()))),
        rows: TikvRows::new(tikv.clone()),
        lock,
        timing,
        space: QuotaSpace(quota(config)),
        ids: Ids { cluster, member },
        storage: StorageInUse {
            kind: "TiKV",
            cluster_id: Some(tikv.cluster_id().to_string()),
            reachable: true,
        },
        peers: Some((peer_server.admitting(admission), peers)),
        members,
        roles,
    };
    serve(config, Ports::Answered { open, urls, waiting }, engine, metrics, life).await
}

/// What is competed for, and how long everything lasts.
async fn lock(config: &Config, tikv: &Tikv) -> anyhow::Result<(AnyLock<TikvCell>, ElectionConfig)> {
    let options = &config.election;
    let identity = ElectionConfig::unique(&config.name);
    let defaults = match options.lock {
        ElectionLock::Storage => ElectionConfig::storage(identity),
        ElectionLock::Lease(_) => ElectionConfig::lease(identity),
    };
    let timing = ElectionConfig {
        lease_duration: options.lease_duration,
        renew_deadline: options.renew_deadline,
        retry_period: options.retry_period,
        call_timeout: defaults.call_timeout.min(options.renew_deadline / 2),
        ..defaults
    };
    let record = StorageLock::new(tikv.cell("leader"), "TiKV");
    let LeaseOptions {
        kubeconfig,
        namespace,
        name,
    } = match &options.lock {
        ElectionLock::Lease(lease) => lease,
        ElectionLock::Storage => return Ok((AnyLock::Storage(record), timing)),
    };
    // TLS asks for it when several are linked; set before means set well.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (kubeconfig, namespace) = (kubeconfig.as_deref(), namespace.as_deref());
    let lease = LeaseLock::connect(kubeconfig, namespace, name, timing.call_timeout).await;
    let lease = Box::new(lease.context("--election lease")?);
    Ok((AnyLock::Lease(lease, record), timing))
}

/// What is known once TiKV answers.
struct Reached {
    tikv: Tikv,
    keeper: Keeper,
    /// The id of the cluster that the key prefix belongs to.
    cluster: u64,
    /// What its members prove themselves with.
    secret: [u8; SECRET],
    table: roster::Table,
}

/// The cell with the rows of members.
const ROSTER: &str = "members";

/// Connects, the more patiently the more often that failed, and takes this member's place in the cluster that the key prefix
/// belongs to.
async fn reach(
    config: &Config,
    options: &TikvOptions,
    (applicant, metrics): (&Applicant, &Metrics),
    failures: u32,
) -> anyhow::Result<Reached> {
    let mut connection = brain::tikv::Options::new(options.pd_endpoints.clone(), options.key_prefix.clone());
    connection.metrics = metrics.tikv();
    connection.gc_window = options.gc_window;
    connection.connect_timeout = connect_timeout(failures);
    connection.tls = options
        .tls
        .clone()
        .map(|(ca, cert, key)| brain::tikv::Tls { ca, cert, key });
    if !options.gc_interval.is_zero() {
        connection.gc = Gc::Every(options.gc_interval);
    }
    let (tikv, keeper) = Tikv::connect(connection).await?;
    let cluster = claim(&tikv, &config.initial_cluster_token).await?;
    let secret = secret(&tikv).await?;
    let table = roster::enter(&tikv.cell(ROSTER), applicant).await;
    let table = table.map_err(|error| match error {
        roster::EnterError::Unreachable(error) => ConnectError::Unreachable(error).into(),
        error => anyhow::Error::from(error),
    })?;
    Ok(Reached {
        tikv,
        keeper,
        cluster,
        secret,
        table,
    })
}

/// Makes the key prefix this cluster's, or finds that it is. Answers with the cluster's id.
async fn claim(tikv: &Tikv, token: &str) -> anyhow::Result<u64> {
    let cell = tikv.cell("owner");
    loop {
        let stored = cell.get().await.context("ask whose the key prefix is");
        if let Some(owner) = stored.map_err(ConnectError::Unreachable)? {
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
            return Err(ConnectError::Unreachable(error.context("claim the key prefix")).into());
        }
    }
}

/// The secret of the cluster, which its first member makes.
async fn secret(tikv: &Tikv) -> anyhow::Result<[u8; SECRET]> {
    let cell = tikv.cell("secret");
    loop {
        let stored = cell.get().await.context("read the secret of the cluster");
        if let Some(secret) = stored.map_err(ConnectError::Unreachable)? {
            let secret: Result<[u8; SECRET], _> = secret.as_ref().try_into();
            return secret
                .context("the secret of the cluster is damaged: remove its cell from TiKV and restart all members");
        }
        let secret: [u8; SECRET] = rand::random();
        if let Swap::Unknown(error) = cell.compare_and_set(None, Some(secret.to_vec().into())).await {
            return Err(ConnectError::Unreachable(error.context("store the secret of the cluster")).into());
        }
    }
}

/// A quota alone: the medium is somebody else's.
#[derive(Debug, Clone)]
struct QuotaSpace(Option<u64>);

impl Space for QuotaSpace {
    fn exceeded(&mut self, size: u64, _: &impl brain::rows::Rows) -> bool {
        self.0.is_some_and(|quota| size > quota)
    }
}
