//! Three brains on one TiKV cluster: any of them answers, and another one leads when the leader goes.

use std::time::Duration;

use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::members::{self, Members};
use programs::server::{Program, Server};
use programs::tikv::Tikv;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::harness::deadline;

const ELECTION_TIMEOUT: Duration = Duration::from_secs(20);

/// Three brains, and what they store in.
struct Cluster {
    members: Members,
    _tikv: Tikv,
}

impl Cluster {
    fn start() -> Self {
        let tikv = Tikv::for_test().unwrap();
        let program = Program::kubebrain().unwrap();
        let members = Members::brains(&program, tikv.pd(), 3, &members::PATIENT_ELECTION_FLAGS).unwrap();
        Self { members, _tikv: tikv }
    }

    async fn kv(&self, member: usize) -> KvClient<Channel> {
        KvClient::new(self.members.server(member).unwrap().connect().await.unwrap())
    }

    async fn put(&self, member: usize, key: &str, value: &str) -> i64 {
        let put = pb::PutRequest {
            key: key.as_bytes().to_vec().into(),
            value: value.as_bytes().to_vec().into(),
            ..pb::PutRequest::default()
        };
        let mut kv = self.kv(member).await;
        // An answer may be lost with its leader; the value is the same.
        let put = async {
            loop {
                match kv.put(put.clone()).await {
                    Ok(answer) => return answer.into_inner().header.unwrap().revision,
                    Err(status) => assert!(
                        ["etcdserver: request timed out", "etcdserver: leader changed"].contains(&status.message()),
                        "{status:?}"
                    ),
                }
            }
        };
        timeout(ELECTION_TIMEOUT, put).await.expect("a leader in time")
    }

    async fn get(&self, member: usize, key: &str) -> Option<String> {
        let range = pb::RangeRequest {
            key: key.as_bytes().to_vec().into(),
            ..pb::RangeRequest::default()
        };
        let answer = self.kv(member).await.range(range).await.unwrap().into_inner();
        answer
            .kvs
            .first()
            .map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
    }
}

/// A watch of every key, and the sending side that keeps it open.
async fn watch(server: &Server, from: i64) -> Streaming<pb::WatchResponse> {
    let create = pb::WatchCreateRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        start_revision: from,
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    let request = pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    let requests = futures::StreamExt::chain(futures::stream::iter([request]), futures::stream::pending());
    let mut client = WatchClient::new(server.connect().await.unwrap());
    client.watch(requests).await.unwrap().into_inner()
}

/// The revisions that a watch tells, up to one.
async fn revisions(stream: &mut Streaming<pb::WatchResponse>, last: i64) -> Vec<i64> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        let answer = timeout(ELECTION_TIMEOUT, stream.message())
            .await
            .expect("an event in time");
        let answer = answer.unwrap().expect("the stream goes on");
        assert!(!answer.canceled, "{answer:?}");
        seen.extend(
            answer
                .events
                .iter()
                .map(|event| event.kv.as_ref().unwrap().mod_revision),
        );
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn any_member_answers_and_another_leads_when_the_leader_is_killed() {
    let _deadline = deadline();
    let mut cluster = Cluster::start();
    let leader = cluster.members.leader().await.unwrap();
    let followers = cluster.members.followers().await.unwrap();
    let mut watches = Vec::new();
    for follower in &followers {
        watches.push(watch(cluster.members.server(*follower).unwrap(), 2).await);
    }
    let first = cluster.put(leader, "a", "1").await;
    assert_eq!(first, 2);
    for (n, follower) in followers.iter().enumerate() {
        assert_eq!(
            cluster.get(*follower, "a").await.as_deref(),
            Some((n + 1).to_string().as_str())
        );
        cluster.put(*follower, "a", &(n + 2).to_string()).await;
        assert_eq!(
            cluster.get(leader, "a").await.as_deref(),
            Some((n + 2).to_string().as_str())
        );
    }
    cluster.members.kill(leader).unwrap();
    let mut last = 0;
    for n in 0..20 {
        last = cluster.put(followers[n % 2], &format!("after/{n}"), "x").await;
    }
    for follower in &followers {
        assert_eq!(cluster.get(*follower, "after/19").await.as_deref(), Some("x"));
    }
    for stream in &mut watches {
        let seen = revisions(stream, last).await;
        assert_eq!(seen, (2..=last).collect::<Vec<_>>(), "a watch that outlived its leader");
    }
    cluster.members.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_moves_on_request_and_nothing_is_refused_meanwhile() {
    let _deadline = deadline();
    let cluster = Cluster::start();
    let leader = cluster.members.leader().await.unwrap();
    let followers = cluster.members.followers().await.unwrap();
    let target = followers[0];
    let id = cluster.members.status(target).await.unwrap().header.unwrap().member_id;
    let mut before = cluster.put(leader, "a", "1").await;
    let channel = cluster.members.server(leader).unwrap().connect().await.unwrap();
    let mut maintenance = MaintenanceClient::new(channel);
    let moved = maintenance.move_leader(pb::MoveLeaderRequest { target_id: id });
    let mut kv = cluster.kv(followers[1]).await;
    let writes = async {
        let put = pb::PutRequest {
            key: b"b".to_vec().into(),
            ..pb::PutRequest::default()
        };
        for _ in 0..200 {
            let revision = kv.put(put.clone()).await.unwrap().into_inner().header.unwrap().revision;
            assert_eq!(revision, before + 1);
            before = revision;
        }
    };
    let (moved, ()) = tokio::join!(timeout(ELECTION_TIMEOUT, moved), writes);
    moved.expect("moved in time").unwrap();
    // Answered when it leads.
    cluster.put(target, "c", "1").await;
    assert_eq!(cluster.members.leader().await.unwrap(), target);
    cluster.members.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_hands_over_and_nothing_is_refused_meanwhile() {
    let _deadline = deadline();
    let mut cluster = Cluster::start();
    for _ in 0..3 {
        let leader = cluster.members.leader().await.unwrap();
        let follower = cluster.members.followers().await.unwrap()[0];
        let mut kv = cluster.kv(follower).await;
        let mut revision = cluster.put(follower, "a", "1").await;
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let mut writes = JoinSet::new();
        writes.spawn(async move {
            let put = pb::PutRequest {
                key: b"b".to_vec().into(),
                ..pb::PutRequest::default()
            };
            while !ended.is_cancelled() {
                let written = kv.put(put.clone()).await?.into_inner().header.unwrap().revision;
                assert_eq!(written, revision + 1);
                revision = written;
            }
            Ok::<_, tonic::Status>(revision)
        });
        tokio::task::block_in_place(|| cluster.members.end(leader)).unwrap();
        assert_ne!(cluster.members.leader().await.unwrap(), leader);
        stop.cancel();
        let last = writes.join_next().await.unwrap().unwrap().expect("no write is refused");
        cluster.members.start(leader).unwrap();
        assert_eq!(cluster.put(leader, "c", "1").await, last + 1);
    }
    cluster.members.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_through_a_follower_is_read_there_at_once() {
    let _deadline = deadline();
    let cluster = Cluster::start();
    let follower = cluster.members.followers().await.unwrap()[0];
    let mut kv = cluster.kv(follower).await;
    let put = pb::PutRequest {
        key: b"a".to_vec().into(),
        ..pb::PutRequest::default()
    };
    let range = pb::RangeRequest {
        key: b"a".to_vec().into(),
        serializable: true,
        ..pb::RangeRequest::default()
    };
    for _ in 0..200 {
        let written = kv.put(put.clone()).await.unwrap().into_inner().header.unwrap().revision;
        let read = kv.range(range.clone()).await.unwrap().into_inner();
        assert_eq!(read.kvs[0].mod_revision, written);
    }
    cluster.members.stop().unwrap();
}
