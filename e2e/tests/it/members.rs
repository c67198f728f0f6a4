//! Three brains on one TiKV cluster: any of them answers, and another one leads when the leader goes.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::server::{Program, Server, free_ports};
use e2e::wire::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tikv_stand_in::{Options, StandIn};
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::harness::deadline;

const PATIENCE: Duration = Duration::from_secs(20);

/// What members may say of an election, on a busy machine too.
const LOST: [&str; 3] = [
    "lost the lead",
    "could not renew the lease in time",
    "no answer from the lock",
];

struct Members {
    tikv: StandIn,
    brains: BTreeMap<usize, Server>,
}

impl Members {
    async fn start() -> Self {
        let tikv = StandIn::start(Options::default().with_stores(3)).await.unwrap();
        let peers: Vec<u16> = (0..3).map(|_| free_ports().unwrap().1).collect();
        let url = |member: usize| format!("http://127.0.0.1:{}", peers[member]);
        let cluster: Vec<String> = (0..3).map(|member| format!("b{member}={}", url(member))).collect();
        let cluster = cluster.join(",");
        let mut brains = BTreeMap::new();
        for member in 0..3 {
            let flags = [
                "--storage=tikv".to_owned(),
                format!("--tikv-pd-endpoints={}", tikv.pd()),
                format!("--name=b{member}"),
                format!("--listen-peer-urls={}", url(member)),
                format!("--initial-advertise-peer-urls={}", url(member)),
                format!("--initial-cluster={cluster}"),
                // Longer than the machine of a test run may stand still.
                "--election-lease-duration=4s".to_owned(),
                "--election-renew-deadline=3s".to_owned(),
            ];
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let program = Program::kubebrain().unwrap();
            // Each waits until there is a leader: the first one leads.
            let brain = tokio::task::spawn_blocking({
                let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
                move || Server::start(&program, &flags.iter().map(String::as_str).collect::<Vec<_>>())
            });
            let brain = LOST
                .iter()
                .fold(brain.await.unwrap().unwrap(), |brain, text| brain.provoked(text));
            brains.insert(member, brain);
        }
        Self { tikv, brains }
    }

    async fn status(&self, member: usize) -> pb::StatusResponse {
        let channel = self.brains[&member].connect().await.unwrap();
        let answer = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await;
        answer.unwrap().into_inner()
    }

    /// The member that leads, by its own word.
    async fn leader(&self) -> usize {
        for member in self.brains.keys() {
            let status = self.status(*member).await;
            if status.leader == status.header.unwrap().member_id {
                return *member;
            }
        }
        panic!("nobody says that it leads");
    }

    fn followers(&self, leader: usize) -> Vec<usize> {
        self.brains.keys().copied().filter(|member| *member != leader).collect()
    }

    async fn kv(&self, member: usize) -> KvClient<Channel> {
        KvClient::new(self.brains[&member].connect().await.unwrap())
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
        timeout(PATIENCE, put).await.expect("a leader in time")
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

    async fn end(self) {
        for (_, brain) in self.brains {
            tokio::task::spawn_blocking(move || brain.stop())
                .await
                .unwrap()
                .unwrap();
        }
        self.tikv.stop().await.unwrap();
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
        let answer = timeout(PATIENCE, stream.message()).await.expect("an event in time");
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
    let mut members = Members::start().await;
    let leader = members.leader().await;
    let followers = members.followers(leader);
    let mut watches = Vec::new();
    for follower in &followers {
        watches.push(watch(&members.brains[follower], 2).await);
    }
    let first = members.put(leader, "a", "1").await;
    assert_eq!(first, 2);
    for (n, follower) in followers.iter().enumerate() {
        assert_eq!(
            members.get(*follower, "a").await.as_deref(),
            Some((n + 1).to_string().as_str())
        );
        members.put(*follower, "a", &(n + 2).to_string()).await;
        assert_eq!(
            members.get(leader, "a").await.as_deref(),
            Some((n + 2).to_string().as_str())
        );
    }
    members.brains.remove(&leader).unwrap().kill().unwrap();
    let mut last = 0;
    for n in 0..20 {
        last = members.put(followers[n % 2], &format!("after/{n}"), "x").await;
    }
    for follower in &followers {
        assert_eq!(members.get(*follower, "after/19").await.as_deref(), Some("x"));
    }
    for stream in &mut watches {
        let seen = revisions(stream, last).await;
        assert_eq!(seen, (2..=last).collect::<Vec<_>>(), "a watch that outlived its leader");
    }
    members.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_moves_on_request_and_nothing_is_refused_meanwhile() {
    let _deadline = deadline();
    let members = Members::start().await;
    let leader = members.leader().await;
    let target = members.followers(leader)[0];
    let id = members.status(target).await.header.unwrap().member_id;
    let mut before = members.put(leader, "a", "1").await;
    let channel = members.brains[&leader].connect().await.unwrap();
    let mut maintenance = MaintenanceClient::new(channel);
    let moved = maintenance.move_leader(pb::MoveLeaderRequest { target_id: id });
    let mut kv = members.kv(members.followers(leader)[1]).await;
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
    let (moved, ()) = tokio::join!(timeout(PATIENCE, moved), writes);
    moved.expect("moved in time").unwrap();
    // Answered when it leads.
    members.put(target, "c", "1").await;
    assert_eq!(members.leader().await, target);
    members.end().await;
}
