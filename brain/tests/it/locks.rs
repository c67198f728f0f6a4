//! Two members configured for different locks: each lock says that its holder leads. The log decides: no read is stale, no write lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use api::auth::Guard;
use api::context::ApiContext;
use api::kv::KvService;
use api::request::RequestLimits;
use brain::server::node::{self, NodeOptions};
use bytes::Bytes;
use cluster::follow::FollowerIdentity;
use cluster::followers::Followers;
use cluster::forward::{LeaderRouter, Role};
use cluster::leadership;
use cluster::leadership::{CampaignPause, LeadershipLoop, OtherMembers};
use cluster::liveness::Liveness;
use cluster::lock::StorageLock;
use cluster::members::Members;
use cluster::node::EpochAnnouncer;
use cluster::peers::{PeerAddresses, Peers};
use election::{Config as Timing, Elector, Lock as _, Record};
use engine::LogAndRows;
use engine::cas_register::mem::MemRegister;
use engine::log::frame::is_barrier;
use engine::log::{Log, MemLog};
use engine::rows::mem::MemRows;
use futures::future::BoxFuture;
use mvcc::fetch::FetchBudgets;
use pb::kv_server::Kv as _;
use runtime::log_once::LogOnce;
use runtime::tasks::Tasks;
use store::flush::CompactionPace;
use store::sequencer::SequencerOptions;
use telemetry::metrics::Metrics;
use telemetry::slow_requests::ApplyLog;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::Request as Ask;

use crate::engine::Endless;
use crate::wire::pb;

/// The way in which members with different locks learn of each other.
#[derive(Clone)]
pub(crate) enum LockView {
    /// Each reads the log, as holders of Leases do.
    Log,
    /// The first one holds this lock, in whose record the second one announces itself.
    Record(StorageLock),
    /// All compete for this lock.
    Shared(StorageLock),
}

impl LockView {
    /// The lock that a member competes for.
    fn lock(&self, id: u64) -> StorageLock {
        match self {
            LockView::Record(lock) if id == 1 => lock.clone(),
            LockView::Shared(lock) => lock.clone(),
            _ => StorageLock::new(Arc::new(MemRegister::new()), "a lock of its own"),
        }
    }

    fn announce_epoch(&self, id: u64) -> Option<EpochAnnouncer> {
        let LockView::Record(lock) = self.clone() else {
            return None;
        };
        let announce_epoch = move |epoch| -> BoxFuture<'static, _> {
            let lock = lock.clone();
            Box::pin(async move { lock.announce_epoch(epoch).await })
        };
        (id != 1).then(|| Arc::new(announce_epoch) as EpochAnnouncer)
    }

    fn announced_epoch(&self, id: u64) -> Box<dyn Fn() -> Option<u64> + Send + Sync> {
        let view = self.clone();
        Box::new(move || match &view {
            LockView::Record(lock) if id == 1 => Some(lock.announced_epoch()),
            LockView::Shared(lock) => Some(lock.announced_epoch()),
            _ => None,
        })
    }
}

/// A member with a lock of its own.
pub(crate) struct Member {
    pub(crate) kv: KvService,
    pub(crate) roles: watch::Receiver<Role>,
    tasks: Tasks,
    stop: CancellationToken,
    _transfers: mpsc::Sender<leadership::TransferLeader>,
}

/// Small bounds, so that flushes happen within a short test.
fn options(member: u64, flush_interval: Duration, lease: Duration) -> NodeOptions {
    NodeOptions {
        sequencer: SequencerOptions {
            member,
            in_flight: 2,
            batch_requests: 64,
            batch_bytes: 64 << 10,
            flush_bytes: 16 << 10,
            flush_interval,
            memtable_bytes: 256 << 10,
            lease_bytes: usize::MAX,
            disarms_nospace: false,
            compaction: CompactionPace::default(),
        },
        watch: ::watch::WatchLimits::default(),
        fetches: FetchBudgets::default(),
        lease,
    }
}

impl Member {
    pub(crate) async fn start(id: u64, (log, rows): (impl Log, MemRows), view: &LockView, flush: Duration) -> Self {
        let lock = view.lock(id);
        // An earlier holder released it: the next holder need not wait for earlier holders of this lock.
        let released = Record {
            renew_time: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            ..Record::default()
        };
        let created = lock.create(&released).await;
        let is_shared = matches!(view, LockView::Shared(_));
        assert!(created.is_ok() || is_shared);
        let known = |id| pb::Member {
            id,
            ..pb::Member::default()
        };
        let members = Members::new([1, 2].into_iter().filter(|_| is_shared).map(known));
        let millis = Duration::from_millis;
        let timing = Timing {
            lease_duration: millis(600),
            renew_deadline: millis(500),
            retry_period: millis(40),
            call_timeout: millis(100),
            ..Timing::storage(Timing::unique(&format!("m{id}")))
        };
        let metrics = Arc::new(Metrics::new(false));
        let limits = RequestLimits::new(128, 1_572_864, &rows);
        let engine = LogAndRows::new(log, rows);
        let options = options(id, flush, timing.lease_duration);
        let opened = node::open(engine, options, &metrics, Arc::new(Endless)).await;
        let (running, mut node) = opened.unwrap();
        node.announce_epoch = view.announce_epoch(id);
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let (roles, role) = watch::channel(Role::Nobody);
        let (transfers, transfer_requests) = mpsc::channel(1);
        let (elector, election) = Elector::new(lock, timing.clone()).unwrap();
        let leadership = LeadershipLoop {
            election,
            renew_deadline: timing.renew_deadline,
            roles,
            cluster: Some(OtherMembers {
                peers: Peers::new(PeerAddresses::Fixed(BTreeMap::new()), Default::default(), String::new()),
                follower: FollowerIdentity {
                    member: pb::Member::default(),
                    members: members.clone(),
                    identity: timing.identity.clone(),
                    lease_duration: timing.lease_duration,
                    cluster_id: 7,
                },
                followers: Followers::default(),
                log_once: LogOnce::hourly(),
            }),
            transfers: transfer_requests,
            lock: Box::new(move || if is_shared { 0 } else { id }),
            announced_epoch: view.announced_epoch(id),
            self_hosted_lease: None,
            liveness: Liveness::default(),
            rest: CampaignPause::default(),
        };
        let led = CancellationToken::new();
        let elected = elector.run(led.clone());
        tasks.spawn("election", async move { Ok(elected.await?) });
        tasks.spawn("leadership", leadership::run(node, leadership, stop.clone(), led));
        tasks.spawn("watch hub", running.hub.clone().run(stop.clone()));
        let store = ApiContext {
            guard: Guard::simple(running.state.auth().clone()).unwrap(),
            state: running.state,
            sequencer: running.sequencer,
            router: LeaderRouter::new(role.clone()),
            limits,
            min_ttl: 2,
            members: members.clone(),
            stop: stop.clone(),
            cluster_id: 7,
            member_id: id,
            slow: ApplyLog::new(Duration::from_millis(100), metrics.server.slow_apply.clone()),
            metrics,
        };
        let kv = KvService { store };
        Self {
            kv,
            roles: role,
            tasks,
            stop,
            _transfers: transfers,
        }
    }

    /// Waits until it leads, and answers reads.
    pub(crate) async fn leads(&self) {
        let mut roles = self.roles.clone();
        roles.wait_for(|role| matches!(role, Role::Leading(_))).await.unwrap();
        while self.read().await.is_none() {
            tokio::task::yield_now().await;
        }
    }

    /// Ends in order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        drop(self.kv);
        self.tasks.join().await.unwrap();
    }

    /// Reads the counter: its value, and the revision that set it.
    pub(crate) async fn read(&self) -> Option<(i64, i64)> {
        let range = pb::RangeRequest {
            key: Bytes::from_static(KEY),
            ..Default::default()
        };
        // A member that does not lead for long says so.
        let answer = self.kv.range(Ask::new(range)).await.ok()?.into_inner();
        Some(answer.kvs.first().map_or((0, 0), |kv| {
            (
                std::str::from_utf8(&kv.value).unwrap().parse().unwrap(),
                kv.mod_revision,
            )
        }))
    }

    /// Adds one if the counter has not changed since; returns the revision of the change, or `None` if it has changed.
    pub(crate) async fn add(&self, (value, revision): (i64, i64)) -> Result<Option<i64>, tonic::Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            value: (value + 1).to_string().into(),
            ..Default::default()
        };
        let txn = pb::TxnRequest {
            compare: vec![pb::Compare {
                result: pb::compare::CompareResult::Equal.into(),
                target: pb::compare::CompareTarget::Mod.into(),
                key: Bytes::from_static(KEY),
                target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
                ..Default::default()
            }],
            success: vec![pb::RequestOp {
                request: Some(pb::request_op::Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        let answer = self.kv.txn(Ask::new(txn)).await?.into_inner();
        Ok(answer.succeeded.then(|| answer.header.unwrap().revision))
    }
}

const KEY: &[u8] = b"counter";

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Number of changes of the leader before the test ends.
const LEADER_CHANGES: usize = 8;

/// The shared knowledge of the clients.
#[derive(Default)]
struct Known {
    /// The newest revision that was acknowledged.
    newest: AtomicI64,
    /// Additions of unknown outcome.
    unknown: AtomicI64,
    enough: AtomicBool,
}

/// Adds until the test has seen enough; returns the acknowledged revisions.
async fn writer(member: Arc<Member>, known: Arc<Known>) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    while !known.enough.load(Ordering::Relaxed) {
        let Some(seen) = member.read().await else { continue };
        match member.add(seen).await {
            Ok(Some(revision)) => {
                known.newest.fetch_max(revision, Ordering::SeqCst);
                acknowledged.push(revision);
            }
            Ok(None) => {}
            Err(_) => {
                known.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::task::yield_now().await;
    }
    acknowledged
}

/// Reads as long as it takes; answers with how often it did.
async fn reader(member: Arc<Member>, known: Arc<Known>) -> usize {
    let mut reads = 0;
    while !known.enough.load(Ordering::Relaxed) {
        let newest = known.newest.load(Ordering::SeqCst);
        if let Some((value, revision)) = member.read().await {
            assert!(
                revision >= newest,
                "a stale read: {value} at {revision}, when {newest} was acknowledged"
            );
            reads += 1;
        }
        tokio::task::yield_now().await;
    }
    reads
}

/// Waits until the lead has changed often enough.
async fn changes(members: &[Arc<Member>]) {
    let mut last = None;
    let mut changes = 0;
    while changes < LEADER_CHANGES {
        for (at, member) in members.iter().enumerate() {
            if last != Some(at) && matches!(&*member.roles.borrow(), Role::Leading(_)) {
                last = Some(at);
                changes += 1;
            }
        }
        let waits = members.iter().map(|member| {
            let mut roles = member.roles.clone();
            roles.mark_unchanged();
            Box::pin(async move { roles.changed().await.unwrap() })
        });
        futures::future::select_all(waits).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_different_locks_lose_no_write_and_answer_no_stale_read() {
    let (log, rows) = (MemLog::keeping(is_barrier), MemRows::new());
    let mut members = Vec::new();
    for id in [1, 2] {
        members.push(Arc::new(
            Member::start(id, (log.clone(), rows.clone()), &LockView::Log, FLUSH_INTERVAL).await,
        ));
    }
    let known = Arc::new(Known::default());
    let mut writers = tokio::task::JoinSet::new();
    let mut readers = tokio::task::JoinSet::new();
    for member in &members {
        writers.spawn(writer(member.clone(), known.clone()));
        readers.spawn(reader(member.clone(), known.clone()));
    }
    let changed = tokio::time::timeout(Duration::from_secs(120), changes(&members));
    tokio::select! {
    changed = changed => changed.expect("the lead changes"),
    Some(failed) = readers.join_next() => panic!("a reader ended: {failed:?}"),
    }
    known.enough.store(true, Ordering::Relaxed);
    let acknowledged: Vec<i64> = writers.join_all().await.into_iter().flatten().collect();
    let reads: usize = readers.join_all().await.into_iter().sum();
    let (value, revision) = loop {
        if let Some(read) = members[0].read().await {
            break read;
        }
    };
    let (count, unknown) = (acknowledged.len(), known.unknown.load(Ordering::Relaxed));
    eprintln!("{count} additions, {unknown} of unknown outcome, {reads} reads");
    let distinct: BTreeSet<i64> = acknowledged.iter().copied().collect();
    assert_eq!(distinct.len(), count, "two additions at one revision");
    let count = i64::try_from(count).unwrap();
    assert!(
        (count..=count + unknown).contains(&value),
        "{value} after {count} additions, and {unknown} that may have happened"
    );
    assert_eq!(revision, value + 1, "revisions are dense");
    assert!(count > 100 && reads > 100, "{count} additions, {reads} reads");
    for member in members {
        Arc::into_inner(member).expect("the clients are gone").stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_leader_learns_of_a_leader_by_another_lock() {
    let record = LockView::Record(StorageLock::new(Arc::new(MemRegister::new()), "the storage lock"));
    for view in [LockView::Log, record] {
        let (log, rows) = (MemLog::keeping(is_barrier), MemRows::new());
        let first = Member::start(1, (log.clone(), rows.clone()), &view, Duration::MAX).await;
        first.leads().await;
        assert_eq!(first.add((0, 0)).await.unwrap(), Some(2));
        let second = Member::start(2, (log, rows), &view, Duration::MAX).await;
        second.leads().await;
        // The first one writes nothing, so neither a slot nor the fence shows it the later leader.
        assert_eq!(second.add((1, 2)).await.unwrap(), Some(3));
        let read = first.read().await;
        assert!(read.is_none_or(|read| read == (2, 3)), "a stale read: {read:?}");
        for member in [first, second] {
            member.stop().await;
        }
    }
}
