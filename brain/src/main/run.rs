//! What runs over an engine, from the open store to the end of the process.

use std::sync::Arc;
use std::time::Duration;

use brain::api::cluster::Members;
use brain::api::elsewhere::{Elsewhere, LaterLeader, Role, StorageCheck};
use brain::api::health::StoreHealth;
use brain::api::maintenance::Defragment;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::cell::Cell;
use brain::feed::Feed;
use brain::flags::{AutoCompaction, Config};
use brain::http;
use brain::leader::Leader;
use brain::log::Log;
use brain::member::circle::Circle;
use brain::member::contact::{self, Contact};
use brain::member::follow::Follower;
use brain::member::followers::Followers;
use brain::member::leadership::{self, Cluster, Move, Office, Rest};
use brain::member::lock::AnyLock;
use brain::member::peers::name_of;
use brain::member::waiting::Waiting;
use brain::member::{self, Member, Renewals, Size, namesake};
use brain::metrics::Metrics;
use brain::mvcc::auto_compact::{self, Retention};
use brain::process::{self, Signals};
use brain::rows::Rows;
use brain::said::Said;
use brain::sequencer::{Options as SequencerOptions, Space};
use brain::serve::{Open, Server, Services};
use brain::state::State;
use brain::store;
use brain::tasks::Tasks;
use brain::watch;
use election::{Config as ElectionConfig, Elector, Handle as Election, Standing};
use tokio::sync::{mpsc, watch as watch_channel};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::patience;

/// How long clients' requests under way may take after SIGTERM. Whatever is stuck, the process ends within 10 s, well within a
/// pod's grace period of 30 s: then the writer drains, the lock is handed over, and the tasks are ended where they stand.
const GRACE: Duration = Duration::from_secs(4);

/// How long requests of peers may take that are under way when nobody leads here any more.
const PEER_GRACE: Duration = Duration::from_secs(1);

/// The process: what runs in it, and how it ends.
pub(crate) struct Life {
    pub(crate) tasks: Tasks,
    /// Clients leave first.
    pub(crate) leave: CancellationToken,
    /// The store ends when they are gone; if it ends before, they leave too.
    pub(crate) stop: CancellationToken,
}

impl Life {
    /// From now on signals end it.
    pub(crate) fn begin(signals: Signals) -> Life {
        let stop = CancellationToken::new();
        let (leave, mut tasks) = (stop.child_token(), Tasks::new(stop.clone()));
        signals.follow(&leave, &stop, &mut tasks);
        Life { tasks, leave, stop }
    }

    /// Serves on these ports.
    pub(crate) fn open(&mut self, server: Server, services: Services) -> Open {
        server.start(services, &self.leave, &self.stop, GRACE, &mut self.tasks)
    }

    /// Ends before anything was served from a store.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.leave.cancel();
        self.stop.cancel();
        self.tasks.join().await
    }
}

/// The ports for clients.
pub(crate) enum Ports {
    /// Whoever dials waits until there is a store.
    Bound(Box<Server>),
    /// They are answered already, by one who has no store yet.
    Answered {
        open: Open,
        urls: Vec<String>,
        waiting: Waiting,
    },
}

/// Serves a store until the end.
pub(crate) async fn serve<L: Log, R: Rows, C: Cell, Q: Space + Clone>(
    config: &Config,
    ports: Ports,
    engine: Engine<L, R, C, Q>,
    metrics: Arc<Metrics>,
    mut life: Life,
) -> anyhow::Result<()> {
    let (ids, lone) = (engine.ids, engine.peers.is_none());
    let options = options(ids.member, lone, &engine.timing);
    let (log, rows) = (engine.log.clone(), engine.rows.clone());
    let opening = async {
        let open = async || {
            let space = engine.space.clone();
            store::open((log.clone(), rows.clone()), options.clone(), &metrics, space).await
        };
        match &ports {
            Ports::Bound(_) => open().await,
            Ports::Answered { waiting, .. } => patience::outlast(waiting, async |_| open().await).await,
        }
    };
    let (running, leader) = tokio::select! {
        biased;
        () = life.leave.cancelled() => return life.end().await,
        opened = opening => opened?,
    };
    if let Ports::Answered { waiting, .. } = &ports {
        waiting.because("there is no leader yet".to_owned());
    }
    let mut role = engine.roles.subscribe();
    let later = leadership::later_leader(log.clone(), running.state.clone(), leader.unanswered.clone());
    let later = Some(later).filter(|_| config.strict_reads && !lone);
    let (moves, moved) = mpsc::channel(1);
    let api = Store {
        state: running.state.clone(),
        sequencer: running.sequencer.clone(),
        elsewhere: elsewhere(role.clone(), later, &mut life),
        limits: Limits::new(config.limits.max_txn_ops, config.limits.max_request_bytes, &rows),
        cluster_id: ids.cluster,
        member_id: ids.member,
        metrics: metrics.clone(),
    };
    let (members, storage) = (engine.members.clone(), engine.storage.clone());
    let circle = engine.lock.circle();
    if let Some(circle) = &circle {
        tokio::select! {
            biased;
            () = life.leave.cancelled() => return life.end().await,
            checked = circle.check_before(&running.state) => checked?,
        }
    }
    let contact = Contact::default();
    let seen = Seen {
        circle,
        contact: contact.clone(),
    };
    let store = (&api, &running.feed, &metrics);
    take_office(config, engine, store, leader, (moved, seen), &mut life)?;
    life.tasks
        .spawn("watch hub", running.hub.clone().run(life.stop.clone()));
    let leads = role.wait_for(|role| !matches!(role, Role::Nobody));
    let begun = tokio::select! {
        begun = leads => matches!(begun.as_deref(), Ok(Role::Leading(_) | Role::Following(_))),
        () = life.leave.cancelled() => false,
    };
    if !begun {
        return life.end().await;
    }
    if let Some(retention) = retention(config.auto_compaction) {
        let (state, stop) = (api.state.clone(), life.stop.clone());
        let compaction = auto_compact::run(retention, api.sequencer.clone(), move || state.view().revision, stop);
        life.tasks.spawn("automatic compaction", compaction);
    }
    let (shown, has_leader) = watch_channel::channel(true);
    let contact = contact::run(contact, role, config.election_timeout, shown, life.stop.clone());
    life.tasks.spawn("contact", contact);
    let member = Member {
        store: api,
        hub: running.hub,
        history: running.history,
        has_leader,
        defragment: defragment(&log, &rows, &running.state),
        log_size: log_size(log, &rows),
        size: {
            let state = running.state.clone();
            Arc::new(move || state.total_size(&rows))
        },
        members,
        storage,
        moves,
        leave: life.leave.clone(),
    };
    let services = member::services(config, member, (&mut life.tasks, &life.stop));
    let urls = match ports {
        Ports::Bound(server) => {
            let urls = server.bound()?;
            life.open(*server, services);
            urls
        }
        Ports::Answered { open, urls, .. } => {
            open.replace(services);
            urls
        }
    };
    process::ready(&urls);
    life.tasks.join().await
}

/// How a store is opened. A lead needs no lease where nobody else can lead.
fn options(member: u64, lone: bool, timing: &ElectionConfig) -> store::Options {
    store::Options {
        sequencer: bounds(member, lone),
        watch: watch::Options::default(),
        lease: if lone { Duration::ZERO } else { timing.lease_duration },
    }
}

/// Bytes of a log of one's own; none where all members share one.
fn log_size<L: Log, R: Rows>(log: L, rows: &R) -> Size {
    let is_own = rows.size().is_some();
    Arc::new(move || if is_own { log.size() } else { 0 })
}

/// Gives back the space that rows and log do not need.
fn defragment<L: Log, R: Rows>(log: &L, rows: &R, state: &Arc<State<R>>) -> Defragment {
    let (log, rows, state) = (log.clone(), rows.clone(), state.clone());
    Arc::new(move || {
        let (log, rows, state) = (log.clone(), rows.clone(), state.clone());
        Box::pin(async move { brain::mvcc::defragment::defragment(&log, &rows, &state).await })
    })
}

/// Who answers; `later` is what strict reads ask.
fn elsewhere(role: watch_channel::Receiver<Role>, later: Option<LaterLeader>, life: &mut Life) -> Elsewhere {
    let elsewhere = Elsewhere::new(role);
    let Some(later) = later else { return elsewhere };
    let (check, asking) = StorageCheck::new(later);
    let stop = life.stop.clone();
    life.tasks.spawn("strict reads", async move {
        tokio::select! {
            () = asking => stop.cancelled().await,
            () = stop.cancelled() => {}
        }
        Ok(())
    });
    elsewhere.strict(check)
}

/// What a member looks at to know whether it may lead, and whether there is a leader.
struct Seen {
    circle: Option<Circle>,
    contact: Contact,
}

/// Begins to lead or to follow, and to answer peers.
fn take_office<L: Log, R: Rows, C: Cell, Q: Space + Clone>(
    config: &Config,
    engine: Engine<L, R, C, Q>,
    (api, feed, metrics): (&Store<R>, &Feed, &Arc<Metrics>),
    mut leader: Leader<L, R, Q>,
    (moves, seen): (mpsc::Receiver<Move>, Seen),
    life: &mut Life,
) -> anyhow::Result<()> {
    let Engine {
        lock,
        timing,
        ids,
        members,
        roles,
        peers,
        ..
    } = engine;
    // The lock is needed until nobody leads here any more; peers are answered as long.
    let led = CancellationToken::new();
    let competing = (lock.clone(), timing.clone());
    let election = compete(config, competing, (metrics, &led, &mut life.tasks))?;
    let cluster = peers.map(|(server, peers)| {
        let namesake = namesake::watch(lock.clone(), timing.identity.clone(), timing.retry_period, led.clone());
        life.tasks.spawn("namesake", namesake);
        let followers = Followers::default();
        let told = (feed.clone(), election.renewals(), members.clone(), followers.clone());
        let services = for_peers(config, api, told, (metrics, &led));
        server.start(services, &led, &led, PEER_GRACE, &mut life.tasks);
        let follower = Follower {
            member: member::describe(config, ids.member),
            members,
            identity: timing.identity.clone(),
            cluster_id: ids.cluster,
        };
        Cluster {
            peers,
            follower,
            followers,
            said: Said::default(),
        }
    });
    leader.herald = Some(Arc::new({
        let lock = lock.clone();
        move |epoch| {
            let lock = lock.clone();
            Box::pin(async move { lock.announce(epoch).await })
        }
    }));
    let office = Office {
        renew_deadline: timing.renew_deadline,
        election,
        roles,
        cluster,
        moves,
        overruled: Box::new({
            let lock = lock.clone();
            move || lock.overruled()
        }),
        lock: Box::new(move || lock.id()),
        circle: seen.circle,
        contact: seen.contact,
        rest: Rest::default(),
    };
    let leading = leadership::run(leader, office, life.stop.clone(), led);
    life.tasks.spawn("leadership", leading);
    Ok(())
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
    told: (Feed, Renewals, Members, Followers),
    (metrics, led): (&Arc<Metrics>, &CancellationToken),
) -> Services {
    Services {
        routes: member::peer_services(config, api.clone(), told, (metrics.clone(), led.clone())),
        health: Arc::new(StoreHealth(api.clone())),
        member: Err(Arc::new(|| "members are asked on their client port".to_owned())),
        metrics: metrics.clone(),
        has_leader: None,
    }
}

/// The leader's name, by the last record that the elector saw.
fn leader_name(own: String, standing: watch_channel::Receiver<Standing>) -> http::leader::Leader {
    Arc::new(move || match &*standing.borrow() {
        Standing::Leading(_) => own.clone(),
        Standing::Following { leader } => name_of(leader).to_owned(),
        Standing::NoLeader => String::new(),
    })
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
