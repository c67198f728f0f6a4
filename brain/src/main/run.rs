//! What runs over an engine, from the open store to the end of the process.

use std::sync::Arc;
use std::time::Duration;

use brain::api::cluster::Members;
use brain::api::elsewhere::{Elsewhere, Role};
use brain::api::health::StoreHealth;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::cell::Cell;
use brain::feed::Feed;
use brain::flags::{AutoCompaction, Config};
use brain::http;
use brain::log::Log;
use brain::member::contact::{self, Contact};
use brain::member::follow::Follower;
use brain::member::leadership::{self, Cluster, Office};
use brain::member::lock::AnyLock;
use brain::member::peer::Followers;
use brain::member::peers::name_of;
use brain::member::{self, Member};
use brain::metrics::Metrics;
use brain::mvcc::auto_compact::{self, Retention};
use brain::process;
use brain::rows::Rows;
use brain::sequencer::{Options as SequencerOptions, Space};
use brain::serve::{Server, Services};
use brain::store;
use brain::tasks::Tasks;
use brain::watch;
use election::{Config as ElectionConfig, Elector, Handle as Election, Standing};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

/// How long requests under way may take after SIGTERM; less than a pod's grace period of 30 s.
const GRACE: Duration = Duration::from_secs(15);

/// Serves a store until the end.
pub(crate) async fn serve<L: Log, R: Rows, C: Cell, Q: Space + Clone>(
    config: &Config,
    server: Server,
    engine: Engine<L, R, C, Q>,
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
    let circle = lock.circle();
    if let Some(circle) = &circle {
        circle.check_before(&running.state).await?;
    }
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
    let (peer_server, peers) = peers.unzip();
    let contact = Contact::default();
    // The lock is needed until nobody leads here any more; peers are answered as long.
    let led = CancellationToken::new();
    let office = Office {
        renew_deadline: timing.renew_deadline,
        election: compete(config, (lock.clone(), timing), (&metrics, &led, &mut tasks))?,
        roles,
        cluster: peers.map(|peers| Cluster {
            peers,
            follower,
            followers: followers.clone(),
        }),
        moves: moved,
        lock: Box::new(move || lock.id()),
        circle,
        contact: contact.clone(),
    };
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
        let services = for_peers(config, &api, told, (&metrics, &led));
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
    let (shown, has_leader) = tokio::sync::watch::channel(true);
    let contact = contact::run(contact, role, config.election_timeout, shown, stop.clone());
    tasks.spawn("contact", contact);
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

/// Begins to compete until `led` ends, and to tell who leads where it is to be told.
fn compete<C: Cell>(
    config: &Config,
    (lock, timing): (AnyLock<C>, ElectionConfig),
    (metrics, led, tasks): (&Metrics, &CancellationToken, &mut Tasks),
) -> anyhow::Result<Election> {
    let (elector, election) = Elector::new(lock, timing)?;
    let running = elector.run(led.clone());
    tasks.spawn("election", async move { Ok(running.await?) });
    if config.leader_http.is_some() {
        let told = Server::bind_leader(config)?;
        let leader = leader_name(config.name.clone(), election.watch());
        told.start_http(http::leader::routes(leader), metrics, led, tasks);
    }
    Ok(election)
}

/// What peers are answered with.
fn for_peers<R: Rows>(
    config: &Config,
    api: &Store<R>,
    told: (Feed, Members, Followers),
    (metrics, led): (&Arc<Metrics>, &CancellationToken),
) -> Services {
    Services {
        routes: member::peer_services(config, api.clone(), told, (metrics.clone(), led.clone())),
        health: Arc::new(StoreHealth(api.clone())),
        metrics: metrics.clone(),
        has_leader: None,
    }
}

/// The leader's name, by the last record that the elector saw.
fn leader_name(own: String, standing: tokio::sync::watch::Receiver<Standing>) -> http::leader::Leader {
    Arc::new(move || match &*standing.borrow() {
        Standing::Leading(_) => own.clone(),
        Standing::Following { leader } => name_of(leader).to_owned(),
        Standing::NoLeader => String::new(),
    })
}

/// What requests may be.
fn limits<R: Rows>(config: &Config, rows: &R) -> Limits {
    Limits {
        txn_ops: config.limits.max_txn_ops,
        request_bytes: config.limits.max_request_bytes,
        key_bytes: rows.max_key_len().saturating_sub(64) / 2,
    }
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
