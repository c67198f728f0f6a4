//! Clients of followers while the leader fails: locks and elections continue, and watches end only once neither a leader nor storage
//! answers.

use std::time::Duration;

use bytes::Bytes;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::members::{self, Members};
use programs::server::Program;
use programs::tikv::{MockTikv, Tikv};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};
use wire::v3electionpb::election_client::ElectionClient;
use wire::v3lockpb::lock_client::LockClient;
use wire::{etcdserverpb as pb, v3electionpb as election, v3lockpb as lock};

use crate::harness::deadline;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

struct Cluster {
    members: Members,
}

impl Cluster {
    fn start(pd: &str) -> Self {
        let program = Program::kubebrain().unwrap();
        let members = Members::brains(&program, pd, 3, &members::PATIENT_ELECTION_FLAGS).unwrap();
        Self { members }
    }

    async fn channel(&self, member: usize) -> Channel {
        self.members.server(member).unwrap().connect().await.unwrap()
    }

    async fn lease(&self, member: usize) -> i64 {
        let grant = pb::LeaseGrantRequest { ttl: 600, id: 0 };
        let mut leases = LeaseClient::new(self.channel(member).await);
        leases.lease_grant(grant).await.unwrap().into_inner().id
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(ANSWER_TIMEOUT, future).await.expect("an answer in time")
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Waits until this many keys of a prefix exist: that of the holder, and those of the waiting clients.
async fn until_there_are(count: i64, channel: &Channel, prefix: &str) {
    let range = pb::RangeRequest {
        key: bytes(prefix),
        range_end: bytes(&prefix.replace('/', "0")),
        ..pb::RangeRequest::default()
    };
    let mut kv = KvClient::new(channel.clone());
    within(async { while kv.range(range.clone()).await.unwrap().into_inner().count != count {} }).await;
}

/// The next value of an election's leader.
async fn observed(stream: &mut Streaming<election::LeaderResponse>) -> String {
    let seen = within(stream.message()).await.unwrap().expect("the stream goes on");
    String::from_utf8(seen.kv.unwrap().value.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_waiting_at_a_follower_leaves_nothing_behind() {
    let _deadline = deadline();
    let tikv = Tikv::for_test().unwrap();
    let cluster = Cluster::start(tikv.pd());
    let follower = cluster.members.followers().await.unwrap()[0];
    let channel = cluster.channel(follower).await;
    let (first, second) = (cluster.lease(follower).await, cluster.lease(follower).await);
    let request = |lease| lock::LockRequest {
        name: bytes("lock"),
        lease,
    };
    let campaign = |lease| election::CampaignRequest {
        name: bytes("election"),
        lease,
        value: bytes("value"),
    };
    let (mut locks, mut elections) = (LockClient::new(channel.clone()), ElectionClient::new(channel.clone()));
    within(locks.lock(request(first))).await.unwrap();
    within(elections.campaign(campaign(first))).await.unwrap();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { drop(locks.lock(request(second)).await) });
    waiting.spawn(async move { drop(elections.campaign(campaign(second)).await) });
    for prefix in ["lock/", "election/"] {
        until_there_are(2, &channel, prefix).await;
    }
    // The creator of the keys knows of them by then, and waits.
    let put = pb::PutRequest {
        key: bytes("later"),
        ..pb::PutRequest::default()
    };
    KvClient::new(channel.clone()).put(put).await.unwrap();
    waiting.shutdown().await;
    for prefix in ["lock/", "election/"] {
        until_there_are(1, &channel, prefix).await;
    }
    cluster.members.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_elections_through_followers_outlive_a_change_of_leader() {
    let _deadline = deadline();
    let tikv = Tikv::for_test().unwrap();
    let mut cluster = Cluster::start(tikv.pd());
    let leader = cluster.members.leader().await.unwrap();
    let followers = cluster.members.followers().await.unwrap();
    let (one, two) = (cluster.channel(followers[0]).await, cluster.channel(followers[1]).await);
    let (first, second) = (cluster.lease(followers[0]).await, cluster.lease(followers[1]).await);
    let request = |lease| lock::LockRequest {
        name: bytes("lock"),
        lease,
    };
    let held = within(LockClient::new(one.clone()).lock(request(first))).await.unwrap();
    let mut waiting = JoinSet::new();
    let mut rival = LockClient::new(two.clone());
    waiting.spawn(async move { rival.lock(request(second)).await });

    let mut elections = ElectionClient::new(one.clone());
    let campaign = |lease, value| election::CampaignRequest {
        name: bytes("election"),
        lease,
        value: bytes(value),
    };
    let won = within(elections.campaign(campaign(first, "one"))).await.unwrap();
    let leads = won.into_inner().leader;
    let mut rival = ElectionClient::new(two.clone());
    let watched = rival.observe(election::LeaderRequest {
        name: bytes("election"),
    });
    let mut watched = within(watched).await.unwrap().into_inner();
    assert_eq!(observed(&mut watched).await, "one");
    let mut campaigning = JoinSet::new();
    campaigning.spawn(async move { rival.campaign(campaign(second, "two")).await });

    until_there_are(2, &two, "lock/").await;
    until_there_are(2, &two, "election/").await;
    cluster.members.kill(leader).unwrap();
    let proclaim = election::ProclaimRequest {
        leader: leads.clone(),
        value: bytes("one more"),
    };
    // As with etcd: what was on its way to a leader that was killed may be done or not, and is asked again.
    let proclaimed = async {
        while let Err(status) = elections.proclaim(proclaim.clone()).await {
            assert_eq!(status.message(), "etcdserver: request timed out");
        }
    };
    within(proclaimed).await;
    assert_eq!(observed(&mut watched).await, "one more");
    assert!(waiting.try_join_next().is_none(), "two hold one lock");
    assert!(campaigning.try_join_next().is_none(), "two lead");

    let key = held.into_inner().key;
    within(LockClient::new(one).unlock(lock::UnlockRequest { key }))
        .await
        .unwrap();
    within(waiting.join_next()).await.unwrap().unwrap().unwrap();
    within(elections.resign(election::ResignRequest { leader: leads }))
        .await
        .unwrap();
    within(campaigning.join_next()).await.unwrap().unwrap().unwrap();
    let mut next = observed(&mut watched).await;
    while next == "one more" {
        next = observed(&mut watched).await;
    }
    assert_eq!(next, "two");
    cluster.members.stop().unwrap();
}

/// A request of a client that requires a leader, or of one that does not.
fn told<T>(message: T, is_told: bool) -> Request<T> {
    let mut request = Request::new(message);
    if is_told {
        request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    }
    request
}

async fn watch(channel: Channel, is_told: bool) -> Streaming<pb::WatchResponse> {
    let create = pb::WatchCreateRequest {
        key: bytes("a"),
        ..pb::WatchCreateRequest::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    let requests = futures::StreamExt::chain(futures::stream::iter([create]), futures::stream::pending());
    let opened = WatchClient::new(channel).watch(told(requests, is_told)).await;
    let mut stream = opened.unwrap().into_inner();
    assert!(within(stream.message()).await.unwrap().unwrap().created);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_needs_a_leader_ends_when_leader_and_storage_are_gone_and_not_before() {
    let _deadline = deadline();
    let tikv = MockTikv::start(None, &[]).unwrap();
    let mut cluster = Cluster::start(tikv.pd());
    let leader = cluster.members.leader().await.unwrap();
    let followers = cluster.members.followers().await.unwrap();
    let channel = cluster.channel(followers[0]).await;
    let (mut needs, mut does_not) = (watch(channel.clone(), true).await, watch(channel.clone(), false).await);
    cluster.members.kill(leader).unwrap();
    // Only the next leader takes it.
    let put = pb::PutRequest {
        key: bytes("a"),
        ..pb::PutRequest::default()
    };
    let mut other = KvClient::new(cluster.channel(followers[1]).await);
    within(other.put(put)).await.unwrap();
    for stream in [&mut needs, &mut does_not] {
        let seen = within(stream.message()).await.expect("the watch goes on").unwrap();
        assert_eq!(seen.events.len(), 1, "{seen:?}");
    }
    // No member leads for longer than that without storage.
    drop(tikv);
    let ended = within(needs.message()).await.expect_err("nothing is heard any more");
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
    let range = pb::RangeRequest {
        key: bytes("a"),
        serializable: true,
        ..pb::RangeRequest::default()
    };
    let refused = within(KvClient::new(channel).range(told(range, true)))
        .await
        .unwrap_err();
    assert_eq!(refused.message(), "etcdserver: no leader");
    let still_open = timeout(Duration::from_millis(1), does_not.message()).await;
    assert!(still_open.is_err(), "{still_open:?}");
    // Without storage they complain a lot, and do not end in order.
    drop(cluster.members);
}
