//! Answers of a leader that append no record: a txn that changes nothing does not prove leadership.

use std::sync::Arc;
use std::time::Duration;

use api::auth::Guard;
use api::cluster::ClusterService;
use api::kv::KvService;
use api::lease::LeaseService;
use api::maintenance::{HashLimit, MaintenanceService, SnapshotSender};
use backup::snapshot::Spool;
use bytes::Bytes;
use cluster::forward::{LeaderLease, LeaderRouter, Role};
use cluster::members::Members;
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use etcd_types::REQUEST_TIMEOUT;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use pb::cluster_server::Cluster as _;
use pb::kv_server::Kv as _;
use pb::lease_server::Lease as _;
use pb::maintenance_server::Maintenance as _;
use runtime::clock::since_boot;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::engine::Engine;

const KEY: &[u8] = b"key";

/// Time after which the lease that requests wait for is renewed.
const RENEWAL_DELAY: Duration = Duration::from_millis(300);

/// A leader that answers a follower, and the sender that sets its lease.
struct Asked {
    engine: Engine,
    kv: KvService,
    maintenance: MaintenanceService,
    roles: watch::Sender<Role>,
}

impl Asked {
    async fn start(lease: &LeaderLease) -> Self {
        let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
        let roles = watch::Sender::new(Role::Leading(lease.clone()));
        let mut store = engine.kv.store.clone();
        store.router = LeaderRouter::new(roles.subscribe()).local_only();
        let maintenance = MaintenanceService {
            snapshots: SnapshotSender::new(Spool::new(&std::env::temp_dir())),
            hashes: HashLimit::default(),
            store: store.clone(),
            size: Arc::new(|| 0),
            size_in_use: Arc::new(|| 0),
            defragment: Arc::new(|| Box::pin(async { Ok(()) })),
            quota: 0,
            move_leader: Arc::new(|_| Box::pin(async { Err(Error::NotLeader) })),
        };
        let kv = KvService { store };
        Self {
            engine,
            kv,
            maintenance,
            roles,
        }
    }

    async fn put(&self) -> Result<Response<pb::PutResponse>, Status> {
        self.kv.put(put()).await
    }

    /// A put under a condition that does not hold.
    async fn fail(&self) -> Result<Response<pb::TxnResponse>, Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            ..pb::PutRequest::default()
        };
        let txn = pb::TxnRequest {
            compare: vec![pb::Compare {
                target: pb::compare::CompareTarget::Version as i32,
                key: Bytes::from_static(KEY),
                target_union: Some(pb::compare::TargetUnion::Version(100)),
                ..pb::Compare::default()
            }],
            success: vec![pb::RequestOp {
                request: Some(pb::request_op::Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        self.kv.txn(Request::new(txn)).await
    }

    /// Begins another term of this member: another one may have led in between.
    async fn ends(&self) {
        tokio::task::yield_now().await;
        let next = LeaderLease::none();
        next.extend(since_boot() + Duration::from_secs(3_600));
        self.roles.send_replace(Role::Leading(next));
    }

    /// A put that is refused because of what is stored.
    async fn refused(&self) -> Result<Response<pb::PutResponse>, Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            lease: 4711,
            ..pb::PutRequest::default()
        };
        self.kv.put(Request::new(put)).await
    }
}

fn put() -> Request<pb::PutRequest> {
    Request::new(pb::PutRequest {
        key: Bytes::from_static(KEY),
        ..pb::PutRequest::default()
    })
}

fn message<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    answer.unwrap_err().message().to_owned()
}

#[tokio::test(start_paused = true)]
async fn deposed_leader_answers_nothing_from_memory() {
    let lease = LeaderLease::none();
    let asked = Asked::start(&lease).await;
    asked.put().await.expect("a record proves it");
    let (failed, refused, ()) = tokio::join!(asked.fail(), asked.refused(), asked.ends());
    assert_eq!(message(failed), "etcdserver: not leader");
    assert_eq!(message(refused), "etcdserver: not leader");
    asked.engine.stop().await.unwrap();
}

#[tokio::test]
async fn request_that_a_stopped_member_did_not_begin_is_for_the_next_leader() {
    let Asked { engine, kv, roles, .. } = Asked::start(&LeaderLease::none()).await;
    engine.stop().await.unwrap();
    assert!(
        matches!(&*roles.borrow(), Role::Leading(_)),
        "it was let in while the member led"
    );
    assert_eq!(message(kv.put(put()).await), "etcdserver: not leader");
}

#[tokio::test(start_paused = true)]
async fn answer_from_memory_waits_for_the_leader_lease() {
    let lease = LeaderLease::none();
    let asked = Asked::start(&lease).await;
    asked.put().await.unwrap();
    let renewed = async {
        tokio::time::sleep(RENEWAL_DELAY).await;
        lease.extend(since_boot() + Duration::from_secs(3_600));
    };
    let begun = Instant::now();
    let (failed, ()) = tokio::join!(asked.fail(), renewed);
    assert!(!failed.unwrap().get_ref().succeeded);
    assert!(begun.elapsed() >= RENEWAL_DELAY, "{:?}", begun.elapsed());
    assert_eq!(message(asked.refused().await), "etcdserver: requested lease not found");
    asked.engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn alarms_are_listed_by_who_leads() {
    let lease = LeaderLease::none();
    let asked = Asked::start(&lease).await;
    let list = asked.maintenance.alarm(Request::new(pb::AlarmRequest::default()));
    let (listed, ()) = tokio::join!(list, asked.ends());
    assert_eq!(message(listed), "etcdserver: not leader");
    let again = asked.maintenance.alarm(Request::new(pb::AlarmRequest::default()));
    assert!(again.await.unwrap().get_ref().alarms.is_empty());
    asked.engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_said_to_be_over_by_who_led_before() {
    let asked = Asked::start(&LeaderLease::none()).await;
    let mut store = asked.kv.store.clone();
    // Requested by a client: it waits until there is a leader.
    store.router = LeaderRouter::new(asked.roles.subscribe());
    let leases = LeaseService::new(store, None);
    let request = pb::LeaseTimeToLiveRequest { id: 4711, keys: false };
    let granted = async {
        asked.ends().await;
        let grant = pb::LeaseGrantRequest { ttl: 60, id: 4711 };
        leases.lease_grant(Request::new(grant)).await.unwrap();
    };
    let (answered, ()) = tokio::join!(leases.lease_time_to_live(Request::new(request)), granted);
    assert!(answered.unwrap().get_ref().ttl > 0);
    asked.engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clients_never_hear_that_a_member_does_not_lead() {
    let roles = watch::Sender::new(Role::Leading(LeaderLease::none()));
    let router = LeaderRouter::new(roles.subscribe());
    let mut attempts = router.attempts(&pb::PutRequest::default(), false).unwrap();
    assert!(attempts.leader().await.unwrap().is_none(), "no other member leads");
    tokio::time::sleep(REQUEST_TIMEOUT).await;
    let answered = attempts.retry(Error::NotLeader.into()).await;
    assert_eq!(message(answered), "etcdserver: request timed out");
}

#[tokio::test(start_paused = true)]
async fn a_linearizable_list_of_members_needs_a_leader() {
    let roles = watch::Sender::new(Role::Nobody);
    let cluster = ClusterService {
        id: 1,
        members: Members::new([]),
        cluster_id: 7,
        epoch: Arc::default(),
        router: LeaderRouter::new(roles.subscribe()),
        guard: Guard::simple(Arc::default()).unwrap(),
        remove: None,
    };
    let list = |linearizable| cluster.member_list(Request::new(pb::MemberListRequest { linearizable }));
    assert_eq!(message(list(true).await), "etcdserver: request timed out");
    list(false).await.unwrap();
}
