//! A member that follows another one in this process, over a real connection, or the log alone.

use ::engine::log::DynLog;
use ::engine::rows::DynRows;
use std::sync::Arc;
use std::time::Duration;

use ::engine::cas_register::mem::MemRegister;
use ::engine::log::frame::is_barrier;
use ::engine::log::{Log, MemLog, Slot};
use ::engine::rows::Rows;
use ::engine::rows::mem::MemRows;
use ::watch::PrevKv;
use brain::server::node::NodeHandles;
use cluster::follow::FollowerIdentity;
use cluster::followers::Followers;
use cluster::forward::{LeaderLease, LeaderRouter, Role};
use cluster::liveness::Liveness;
use cluster::lock::StorageLock;
use cluster::members::Members;
use cluster::node::Node;
use cluster::peer::PeerService;
use election::{Config as Timing, Elector, Handle as Election};
use etcd_types::pb::peerpb::peer_server::PeerServer;
use mvcc::op::Span;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use runtime::log_once::LogOnce;
use runtime::tasks::Owned;
use store::replica::{Replica, RowsRefresher};
use telemetry::metrics::{Metrics, PeerMetrics};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use crate::engine::{self, Engine};
use crate::key_index;
use crate::pausable_rows::{Gates, PausableRows};
use crate::wire::pb;

mod hooked_log;
mod rejoin;
mod slow_follower;

/// Timeout of each step of a test.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Puts before a compaction.
const PUTS_BEFORE_COMPACTION: usize = 40;

/// Puts after it.
const PUTS_AFTER_COMPACTION: usize = 5;

/// The revision that is compacted: its slot is before those that a follower notes last.
const COMPACTED_REVISION: i64 = 10;

/// A log and rows in memory, which a leader writes to.
pub(crate) struct Leading {
    log: MemLog,
    rows: MemRows,
    pub(crate) engine: Engine,
    roles: watch::Sender<Role>,
}

impl Leading {
    pub(crate) async fn start() -> Self {
        let (log, rows) = (MemLog::keeping(is_barrier), MemRows::new());
        let engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        let roles = watch::Sender::new(Role::Leading(LeaderLease::unbounded()));
        Self {
            log,
            rows,
            engine,
            roles,
        }
    }

    fn revision(&self) -> i64 {
        self.engine.store.state.view().revision
    }

    /// Compacts, and continues: slots in the index of a follower are destroyed.
    async fn compact_and_go_on(&mut self) {
        let first = self.log.read(Slot::FIRST, 0).await.unwrap()[0].0;
        self.engine.compact_at(COMPACTED_REVISION).await;
        assert!(self.log.watermark().await.unwrap() > first);
        self.engine.puts(PUTS_AFTER_COMPACTION).await;
    }

    /// Listens as the leader.
    pub(crate) async fn listen(&self) -> (Owned<Result<(), tonic::transport::Error>>, Channel) {
        let service = PeerService {
            cluster_id: 7,
            state: self.engine.store.state.clone(),
            feed: self.engine.store.feed.clone(),
            router: LeaderRouter::new(self.roles.subscribe()),
            renewals: watch::channel(None).1,
            members: Members::new([]),
            followers: Followers::default(),
            member_id: 1,
            metrics: PeerMetrics::default(),
            log_once: LogOnce::hourly(),
            stop: CancellationToken::new(),
        };
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", incoming.local_addr().unwrap());
        let server = Server::builder().add_service(PeerServer::new(service));
        let serving = Owned::start(server.serve_with_incoming(incoming));
        (serving, Endpoint::new(url).unwrap().connect().await.unwrap())
    }
}

/// Another member of the same store.
struct Other {
    store: NodeHandles,
    node: Node,
    refresher: RowsRefresher,
    roles: watch::Sender<Role>,
    election: Election,
}

impl Other {
    async fn open(log: impl Log, rows: impl Rows) -> Self {
        let rows: DynRows = Arc::new(rows);
        let metrics = Arc::new(Metrics::new(false));
        let (store, node) = engine::open((Arc::new(log), rows.clone()), &metrics).await.unwrap();
        // No member is elected here.
        let lock = StorageLock::new(Arc::new(MemRegister::new()), "a lock that nobody takes");
        let (_, election) = Elector::new(lock, Timing::storage("other")).unwrap();
        Self {
            store,
            node,
            refresher: RowsRefresher::new(rows),
            roles: watch::Sender::new(Role::Nobody),
            election,
        }
    }

    /// Follows while something is done.
    async fn follow<T>(&mut self, channel: Channel, done: impl Future<Output = T>) -> T {
        let follower = FollowerIdentity {
            member: pb::Member::default(),
            members: Members::new([]),
            identity: "other".to_owned(),
            lease_duration: Duration::ZERO,
            cluster_id: 7,
        };
        let shown = (&self.roles, &self.election, &mut self.refresher);
        let metrics = PeerMetrics::default();
        tokio::select! {
        ended = self.node.follow(channel, &follower, (1, &metrics), shown) => panic!("{ended:?}"),
        done = timeout(STEP_TIMEOUT, done) => done.expect("it takes too long"),
        }
    }

    /// Reads the log once.
    async fn tail(&mut self) {
        let (liveness, now) = (Liveness::default(), Some(Instant::now()));
        let read = self.node.tail(&liveness, &mut self.refresher, now);
        timeout(STEP_TIMEOUT, read).await.expect("it takes too long").unwrap();
    }

    /// Asserts that the view is that of the leader, that watchers have received it, and that history has all revisions since compaction.
    async fn has_all_of(&self, leading: &Leading) {
        let revision = leading.revision();
        assert_eq!(self.store.state.view().revision, revision);
        assert_eq!(self.store.hub.revision(), revision);
        let read = self
            .store
            .history
            .read(COMPACTED_REVISION, usize::MAX, PrevKv::Included)
            .await
            .unwrap();
        let found: Vec<i64> = read.iter().map(|committed| committed.revision).collect();
        assert_eq!(found, (COMPACTED_REVISION..=revision).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn new_follower_behind_a_compaction_gets_missed_commits() {
    let mut leading = Leading::start().await;
    let (_serving, channel) = leading.listen().await;
    let mut other = Other::open(leading.log.clone(), leading.rows.clone()).await;
    let state = other.store.state.clone();
    let before = async {
        leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
        state.wait_applied(leading.engine.store.state.committed()).await;
    };
    other.follow(channel.clone(), before).await;
    leading.compact_and_go_on().await;
    other.roles.send_replace(Role::Nobody);
    let mut role = other.roles.subscribe();
    let follows = async { role.wait_for(|role| matches!(role, Role::Following(_))).await.map(drop) };
    other.follow(channel, follows).await.unwrap();
    other.has_all_of(&leading).await;
    leading.engine.stop().await.unwrap();
}

/// The index of a member follows it through all that it reads its state from: a leader, the log, and rows that are ahead of both.
#[tokio::test]
async fn index_of_a_member_counts_as_its_rows_do_wherever_its_records_come_from() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut leading = Leading::start().await;
    let (_serving, channel) = leading.listen().await;
    let mut other = Other::open(leading.log.clone(), leading.rows.clone()).await;
    let state = other.store.state.clone();
    let stop = CancellationToken::new();
    let mut index = Owned::start(store::index::run(state.clone(), 64 << 20, stop.clone()));
    key_index::served(&state).await;
    let first = Arc::downgrade(&state.view().key_index);
    let before = async {
        leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
        state.wait_applied(leading.engine.store.state.committed()).await;
    };
    other.follow(channel.clone(), before).await;
    assert_eq!(key_index::compare(&state, &mut rng).await, 3);
    // The log loses what the member lacks.
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    leading.engine.compact().await;
    leading.engine.puts(PUTS_AFTER_COMPACTION).await;
    assert!(leading.log.watermark().await.unwrap() > state.committed());
    other.roles.send_replace(Role::Nobody);
    let mut role = other.roles.subscribe();
    let follows = async {
        role.wait_for(|role| matches!(role, Role::Following(_)))
            .await
            .map(drop)
            .unwrap();
        state.wait_applied(leading.engine.store.state.committed()).await;
    };
    other.follow(channel, follows).await;
    key_index::served(&state).await;
    assert!(
        first.upgrade().is_none(),
        "the index of the state that was replaced is still there"
    );
    assert!(key_index::compare(&state, &mut rng).await > 0);
    leading.engine.put(b"a", b"").await.unwrap();
    leading.engine.stop().await.unwrap();
    leading.engine = Engine::start(leading.log.clone(), leading.rows.clone()).await.unwrap();
    other.tail().await;
    let view = state.view();
    let all = Span {
        key: "\0".into(),
        end: "\0".into(),
    };
    assert_eq!(view.count_in_index(&all, view.revision).await, Some(18));
    assert!(key_index::compare(&state, &mut rng).await > 0);
    stop.cancel();
    index.end().await.unwrap().unwrap();
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn log_tail_behind_a_compaction_gets_missed_commits() {
    let mut leading = Leading::start().await;
    let mut other = Other::open(leading.log.clone(), leading.rows.clone()).await;
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    other.tail().await;
    leading.compact_and_go_on().await;
    // Its barrier proves that everything before it is committed.
    leading.engine.stop().await.unwrap();
    leading.engine = Engine::start(leading.log.clone(), leading.rows.clone()).await.unwrap();
    other.tail().await;
    other.has_all_of(&leading).await;
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_follower_hears_of_what_is_committed_while_rows_take_long() {
    let mut leading = Leading::start().await;
    let (_serving, channel) = leading.listen().await;
    let rows = PausableRows::new(leading.rows.clone(), Gates::default());
    let mut other = Other::open(leading.log.clone(), rows.clone()).await;
    let state = other.store.state.clone();
    let before = rows.hooks.snapshot.hold();
    let heard = async {
        leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
        leading.engine.compact_at(COMPACTED_REVISION).await;
        rows.hooks.snapshot.reached(before).await;
        leading.engine.puts(PUTS_AFTER_COMPACTION).await;
        state.wait_applied(leading.engine.store.state.committed()).await;
        rows.hooks.snapshot.release();
        state
            .compaction_progress()
            .wait_for(|deletion| deletion.up_to == COMPACTED_REVISION)
            .await
            .map(drop)
    };
    other.follow(channel, heard).await.unwrap();
    other.has_all_of(&leading).await;
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn rows_that_took_long_do_not_take_the_place_of_later_ones() {
    let mut leading = Leading::start().await;
    let (log, rows): (DynLog, DynRows) = (Arc::new(leading.log.clone()), Arc::new(leading.rows.clone()));
    let mut replica = Replica::load(&log, &rows).await.unwrap();
    let mut refresher = RowsRefresher::new(Arc::new(leading.rows.clone()));
    refresher.want();
    let old = refresher.next().await.unwrap();
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    leading.engine.compact().await;
    replica.reset_from_snapshot(&log, &rows).await.unwrap();
    let (before, next) = (replica.state().view().rows_revision, replica.next());
    replica.refresh(old);
    assert_eq!((replica.state().view().rows_revision, replica.next()), (before, next));
    assert!(before > 1, "nothing was flushed");
    leading.engine.stop().await.unwrap();
}
