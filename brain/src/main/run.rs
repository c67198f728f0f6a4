//! What runs over an engine, from the open store to the end of the process.

use std::sync::Arc;
use std::time::Duration;

use brain::api::cluster::Members;
use brain::api::elsewhere::{Elsewhere, Role};
use brain::api::health::StoreHealth;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::flags::{AutoCompaction, Config};
use brain::log::Log;
use brain::member::follow::Follower;
use brain::member::leadership::{self, Cluster, Office};
use brain::member::peer::Followers;
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
use election::{Elector, Lock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

/// How long requests under way may take after SIGTERM; less than a pod's grace period of 30 s.
const GRACE: Duration = Duration::from_secs(15);

/// Serves a store until the end.
pub(crate) async fn serve<L: Log, R: Rows, K: Lock, Q: Space + Clone>(
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
