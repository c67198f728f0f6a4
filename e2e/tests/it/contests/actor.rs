//! One server under the script, asked as its clients ask.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;
use programs::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};
use wire::v3electionpb::election_client::ElectionClient;
use wire::v3lockpb::lock_client::LockClient;
use wire::{etcdserverpb as pb, mvccpb, v3electionpb as election, v3lockpb as lock};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// One server under the script, and what it answered.
pub(super) struct Actor {
    pub(super) lock: LockClient<Channel>,
    pub(super) election: ElectionClient<Channel>,
    pub(super) auth: AuthClient<Channel>,
    pub(super) kv: KvClient<Channel>,
    pub(super) leases: LeaseClient<Channel>,
    pub(super) watch: WatchClient<Channel>,
    pub(super) maintenance: MaintenanceClient<Channel>,
    pub(super) cluster: ClusterClient<Channel>,
    pub(super) answers: Vec<String>,
}

/// A call that runs while others are made.
pub(super) struct Apart<T>(JoinSet<T>);

impl<T: Send + 'static> Apart<T> {
    pub(super) fn start(call: impl Future<Output = T> + Send + 'static) -> Self {
        let mut set = JoinSet::new();
        set.spawn(call);
        Self(set)
    }

    pub(super) fn goes_on(&mut self) -> bool {
        self.0.try_join_next().is_none()
    }

    pub(super) async fn end(mut self) -> T {
        within(self.0.join_next())
            .await
            .expect("it was not taken before")
            .unwrap()
    }
}

pub(super) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Returns the one field of a header that depends on the store alone.
pub(super) fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.expect("a header").revision
}

pub(super) fn text(kv: Option<mvccpb::KeyValue>) -> String {
    let kv = kv.expect("a pair");
    format!("{:?}={:?} {} {}", kv.key, kv.value, kv.create_revision, kv.lease)
}

pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(ANSWER_TIMEOUT, future).await.expect("an answer in time")
}

impl Actor {
    pub(super) async fn new(server: &Server) -> Self {
        let channel = server.connect().await.unwrap();
        Self {
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            kv: KvClient::new(channel.clone()),
            leases: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            cluster: ClusterClient::new(channel),
            answers: Vec::new(),
        }
    }

    pub(super) fn note<T, D: Debug>(
        &mut self,
        what: &str,
        answer: Result<Response<T>, Status>,
        see: impl FnOnce(T) -> D,
    ) {
        let seen = match answer {
            Ok(answer) => format!("{:?}", see(answer.into_inner())),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        self.answers.push(format!("{what}: {seen}"));
    }

    pub(super) async fn count(&mut self, key: &str) -> i64 {
        let range = pb::RangeRequest {
            key: bytes(key),
            ..pb::RangeRequest::default()
        };
        self.kv.range(range).await.unwrap().into_inner().count
    }

    /// Waits until this many keys of this name exist: none or one.
    pub(super) async fn until(&mut self, key: &str, count: i64) {
        within(async { while self.count(key).await != count {} }).await;
    }

    pub(super) async fn locks(&mut self, what: &str, name: &str, lease: i64) {
        let request = lock::LockRequest {
            name: bytes(name),
            lease,
        };
        let answer = within(self.lock.lock(request)).await;
        self.note(what, answer, |it| (revision(it.header), it.key));
    }

    /// Asks for a lock that others hold.
    pub(super) fn waits(&self, name: &str, lease: i64) -> Apart<Result<Response<lock::LockResponse>, Status>> {
        let (mut client, name) = (self.lock.clone(), bytes(name));
        Apart::start(async move { client.lock(lock::LockRequest { name, lease }).await })
    }

    pub(super) async fn unlocks(&mut self, what: &str, key: &str) {
        let answer = within(self.lock.unlock(lock::UnlockRequest { key: bytes(key) })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    pub(super) fn campaign(
        &self,
        name: &str,
        lease: i64,
        value: &str,
    ) -> Apart<Result<Response<election::CampaignResponse>, Status>> {
        let (mut client, name, value) = (self.election.clone(), bytes(name), bytes(value));
        Apart::start(async move {
            let request = election::CampaignRequest { name, lease, value };
            client.campaign(request).await
        })
    }

    pub(super) async fn proclaims(&mut self, what: &str, leader: Option<election::LeaderKey>, value: &str) {
        let value = bytes(value);
        let answer = within(self.election.proclaim(election::ProclaimRequest { leader, value })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    pub(super) async fn resigns(&mut self, what: &str, leader: Option<election::LeaderKey>) {
        let answer = within(self.election.resign(election::ResignRequest { leader })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    pub(super) async fn leads(&mut self, what: &str, name: &str) {
        let answer = within(self.election.leader(election::LeaderRequest { name: bytes(name) })).await;
        self.note(what, answer, |it| (revision(it.header), text(it.kv)));
    }
}
