//! Streams of many leases and watchers, and connections of strangers.

use std::collections::HashMap;

use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::peerpb::FollowRequest;
use etcd_types::pb::peerpb::peer_client::PeerClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

const LEASES: i64 = 500;

/// Keep-alives of each lease.
const KEEP_ALIVES_PER_LEASE: i64 = 8;

/// A machine with little time to spare does not change the leader.
const PATIENT_ELECTION_FLAGS: &[&str] = &["--election-lease-duration=60s", "--election-renew-deadline=45s"];

/// Streams of keep-alives that a member was asked for, by clients and by other members.
async fn keep_alive_streams(member: &Process) -> u64 {
    let (_, metrics) = member.get("/metrics").await;
    let count = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let is_it = name.starts_with("grpc_server_started_total{") && name.contains("\"LeaseKeepAlive\"");
        is_it.then(|| value.parse::<u64>().unwrap())
    };
    metrics.lines().filter_map(count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_forwards_keep_alives_in_bulk() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, PATIENT_ELECTION_FLAGS).await;
    let follower = site.start(1, 2, PATIENT_ELECTION_FLAGS).await;
    let channel = Endpoint::new(site.client_url(1)).unwrap().connect().await.unwrap();
    let mut grants = JoinSet::new();
    for id in 1..=LEASES {
        let mut client = LeaseClient::new(channel.clone());
        grants.spawn(async move {
            client
                .lease_grant(pb::LeaseGrantRequest { id, ttl: 600 })
                .await
                .unwrap()
        });
    }
    grants.join_all().await;
    let before = keep_alive_streams(&leader).await;
    let asked = (0..LEASES * KEEP_ALIVES_PER_LEASE).map(|n| pb::LeaseKeepAliveRequest { id: 1 + n % LEASES });
    let answers = LeaseClient::new(channel.clone())
        .lease_keep_alive(tokio_stream::iter(asked))
        .await;
    let mut answers = answers.unwrap().into_inner();
    let mut renewed: HashMap<i64, i64> = HashMap::new();
    while let Some(answer) = timeout(STEP_TIMEOUT, answers.message()).await.unwrap().unwrap() {
        assert_eq!(answer.ttl, 600);
        *renewed.entry(answer.id).or_default() += 1;
    }
    assert_eq!(renewed.len(), usize::try_from(LEASES).unwrap());
    assert!(renewed.values().all(|times| *times == KEEP_ALIVES_PER_LEASE));
    let forwarded = keep_alive_streams(&leader).await - before;
    assert!(
        forwarded <= 40,
        "{forwarded} requests for {} keep-alives",
        LEASES * KEEP_ALIVES_PER_LEASE
    );

    // Many streams of one keep-alive each share requests, too.
    let before = keep_alive_streams(&leader).await;
    let mut once = JoinSet::new();
    for id in 1..=LEASES {
        let mut client = LeaseClient::new(channel.clone());
        once.spawn(async move {
            let asked = tokio_stream::iter([pb::LeaseKeepAliveRequest { id }]);
            let mut answers = client.lease_keep_alive(asked).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().ttl
        });
    }
    assert!(once.join_all().await.into_iter().all(|ttl| ttl == 600));
    let forwarded = keep_alive_streams(&leader).await - before;
    assert!(
        forwarded < LEASES.unsigned_abs() / 2,
        "{forwarded} requests for {LEASES} streams"
    );
    drop((leader, follower));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_takes_twenty_thousand_watchers() {
    const WATCHERS: usize = 20_000;
    let site = Site::new(1).await;
    let member = site.lone().await;
    let channel = Endpoint::new(site.client_url(0)).unwrap().connect().await.unwrap();
    let creates = (0..WATCHERS).map(|n| pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: format!("key-{n}").into(),
            ..Default::default()
        })),
    });
    // The client may send more: its half of the stream stays open.
    let creates = tokio_stream::StreamExt::chain(tokio_stream::iter(creates), tokio_stream::pending());
    let mut answers = WatchClient::new(channel.clone())
        .watch(creates)
        .await
        .unwrap()
        .into_inner();
    for _ in 0..WATCHERS {
        let answer = timeout(STEP_TIMEOUT, answers.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(answer.created && !answer.canceled);
    }
    let put = pb::PutRequest {
        key: "key-777".into(),
        ..Default::default()
    };
    KvClient::new(channel).put(put).await.unwrap();
    let answer = timeout(STEP_TIMEOUT, answers.message())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(answer.events.len(), 1);
    drop(member);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_leaves_before_its_proof_is_no_stranger() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    let address = site.peer_url(0).trim_start_matches("http://").to_owned();
    let mut peer = TcpStream::connect(address).await.unwrap();
    peer.write_all(b"kbpeer\0\x01").await.unwrap();
    drop(peer);
    member.says("a peer disconnected before it was authenticated").await;
    assert_eq!(member.said(r#""level":"warn""#), 0);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_nothing_from_the_peer_port() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    let put = pb::PutRequest {
        key: "stranger".into(),
        ..Default::default()
    };
    let follow = FollowRequest {
        member: Some(pb::Member {
            id: 4711,
            name: "stranger".to_owned(),
            ..Default::default()
        }),
        identity: "stranger_1".to_owned(),
        cluster_id: 0,
        cannot_lead: false,
    };
    if let Ok(channel) = Endpoint::new(site.peer_url(0)).unwrap().connect().await {
        let wrote = KvClient::new(channel.clone()).put(put).await;
        assert!(wrote.is_err(), "a stranger put a key through the peer port");
        assert!(PeerClient::new(channel.clone()).follow(follow).await.is_err());
    }
    member
        .says("rejected peer connection: not a member of this cluster")
        .await;
    let channel = Endpoint::new(site.client_url(0)).unwrap().connect().await.unwrap();
    let range = pb::RangeRequest {
        key: "stranger".into(),
        ..Default::default()
    };
    assert_eq!(
        KvClient::new(channel.clone())
            .range(range)
            .await
            .unwrap()
            .get_ref()
            .count,
        0
    );
    let members = ClusterClient::new(channel)
        .member_list(pb::MemberListRequest::default())
        .await;
    let names: Vec<String> = members
        .unwrap()
        .into_inner()
        .members
        .into_iter()
        .map(|member| member.name)
        .collect();
    assert_eq!(names, ["b0"]);
}
