//! Metrics of a member while there is no leader, or while another member leads.

use std::time::Duration;

use api::kv::KvService;
use bytes::Bytes;
use cluster::forward::{LeaderClient, LeaderRouter, ReadIndexBatcher, Role};
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use etcd_types::REQUEST_TIMEOUT;
use etcd_types::pb::etcdserverpb as pb;
use pb::kv_server::Kv as _;
use telemetry::metrics::ServerMetrics;
use tokio::sync::watch;
use tonic::{Request, Status};

use crate::engine::Engine;
use crate::follow::Leading;

/// A member that does not lead, or not yet.
struct Member {
    engine: Engine,
    kv: KvService,
    roles: watch::Sender<Role>,
}

impl Member {
    async fn start() -> Self {
        let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
        let roles = watch::Sender::new(Role::Nobody);
        let mut store = engine.kv.store.clone();
        store.router = LeaderRouter::new(roles.subscribe());
        let kv = KvService { store };
        Self { engine, kv, roles }
    }

    fn server(&self) -> &ServerMetrics {
        &self.kv.store.metrics.server
    }

    async fn put(&self) -> Result<(), Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(b"key"),
            ..pb::PutRequest::default()
        };
        self.kv.put(Request::new(put)).await.map(drop)
    }

    async fn range(&self) -> Result<(), Status> {
        let range = pb::RangeRequest {
            key: Bytes::from_static(b"key"),
            ..pb::RangeRequest::default()
        };
        self.kv.range(Request::new(range)).await.map(drop)
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_leader_are_pending_and_those_that_find_none_have_failed() {
    let member = Member::start().await;
    let server = member.server();
    let mut put = Box::pin(member.put());
    assert!(futures::poll!(&mut put).is_pending());
    assert_eq!((server.proposals_pending.get(), server.proposals_failed.get()), (1, 0));
    assert_eq!(put.await.unwrap_err().message(), "etcdserver: request timed out");
    assert_eq!((server.proposals_pending.get(), server.proposals_failed.get()), (0, 1));
    let mut given_up = Box::pin(member.put());
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    assert_eq!((server.proposals_pending.get(), server.proposals_failed.get()), (0, 1));
    member.engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reads_that_wait_long_for_a_leader_are_slow_and_those_that_find_none_have_failed() {
    let member = Member::start().await;
    let server = member.server();
    let counted = || (server.slow_read_indexes.get(), server.read_indexes_failed.get());
    let leads = async |after: Duration| {
        tokio::time::sleep(after).await;
        member.roles.send_replace(LeaderRouter::single_member().role());
    };
    assert!(member.range().await.is_err());
    assert_eq!(counted(), (1, 1));
    let (read, ()) = tokio::join!(member.range(), leads(REQUEST_TIMEOUT / 2));
    read.unwrap();
    assert_eq!(counted(), (2, 1));
    member.range().await.unwrap();
    assert_eq!(counted(), (2, 1));
    assert_eq!(member.kv.store.metrics.mvcc.ranges.get(), 3);
    member.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_member_lags_as_far_as_its_leader_says_until_it_has_caught_up() {
    let mut leading = Leading::start().await;
    leading.engine.puts(3).await;
    let (_serving, channel) = leading.listen().await;
    let member = Member::start().await;
    let state = &member.kv.store.state;
    assert_eq!(state.lag(), 0);
    let ahead = leading.engine.store.state.committed().0 - state.committed().0;
    assert!(ahead >= 3, "{ahead}");
    let (reads, asking) = ReadIndexBatcher::new(channel.clone(), 1 << 20, Duration::ZERO);
    let leader = LeaderClient {
        member: 2,
        channel,
        reads,
    };
    member.roles.send_replace(Role::Following(leader));
    let heard = async {
        while state.lag() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = heard => {}
        () = asking => panic!("the leader did not answer"),
        read = member.range() => panic!("a read of what is not known: {read:?}"),
    }
    assert_eq!(state.lag(), ahead);
    member.engine.stop().await.unwrap();
}
