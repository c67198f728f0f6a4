//! One of the two servers, seen through a script.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use programs::server::Server;
use tokio::time::timeout;
use tonic::metadata::MetadataKey;
use tonic::transport::Channel;
use tonic::{Response, Status};
use wire::etcdserverpb as pb;
use wire::v3electionpb::election_client::ElectionClient;
use wire::v3electionpb::{CampaignResponse, LeaderKey, ProclaimRequest, ResignRequest};
use wire::v3lockpb::lock_client::LockClient;

use super::answer::{Answer, order_ties, snapshot};
use super::gateway::Gateway;
use super::request::{By, NAMED_LEASES, OWN_MEMBER, OWN_PEER_URLS, Request, Step, with_unary_methods};
use super::watching::OpenStream;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::request_op::Request as Op;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A token in the form of etcd's that it never gave.
const NO_TOKEN: &str = "abcdefghijklmnop.1";

/// Connections to one server, its watch streams, and its names of leases.
#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    auth: AuthClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    lock: LockClient<Channel>,
    election: ElectionClient<Channel>,
    gateway: Gateway,
    /// The member that it is.
    member: pb::Member,
    /// The newest token of each user.
    tokens: BTreeMap<String, String>,
    /// The leader keys that campaigns returned, by the name of the election and the lease.
    leaders: BTreeMap<(Bytes, i64), LeaderKey>,
    streams: BTreeMap<usize, OpenStream>,
    leases: BTreeMap<i64, i64>,
}

impl<'a> Client<'a> {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server does not listen, or is no member.
    pub async fn new(server: &'a Server) -> anyhow::Result<Self> {
        let channel = server.connect().await?;
        let member = own(&mut ClusterClient::new(channel.clone())).await?;
        Ok(Self {
            server,
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel),
            gateway: Gateway::new(server.endpoint()),
            member,
            tokens: BTreeMap::new(),
            leaders: BTreeMap::new(),
            streams: BTreeMap::new(),
            leases: BTreeMap::new(),
        })
    }

    /// Takes one step and waits for what it leads to.
    ///
    /// # Errors
    ///
    /// Silence, or an answer that breaks a promise.
    pub async fn call(&mut self, step: &Step) -> anyhow::Result<Answer> {
        let mut request = step.request.clone();
        self.insert_ids(&mut request);
        let answered = timeout(REQUEST_TIMEOUT, self.send(&request, step)).await;
        let mut answer =
            answered.with_context(|| format!("no answer to {} in {REQUEST_TIMEOUT:?}", request.method()))??;
        self.learn(&step.request, &answer);
        let names: BTreeMap<i64, i64> = self.leases.iter().map(|(name, id)| (*id, *name)).collect();
        answer.visit_leases(&mut |id| *id = names.get(id).copied().unwrap_or(*id));
        answer.normalise();
        order_ties(&step.request, &mut answer);
        Ok(answer)
    }

    fn learn(&mut self, request: &Request, answer: &Answer) {
        match (request, answer) {
            (Request::Authenticate(request), Answer::Authenticate(response)) => {
                self.tokens.insert(request.name.clone(), response.token.clone());
            }
            (Request::Grant(grant, name), Answer::Grant(response)) if grant.id == 0 => {
                self.leases.insert(*name, response.id);
            }
            (
                Request::Campaign(campaign) | Request::CampaignBehind(campaign, _),
                Answer::Campaign(CampaignResponse {
                    leader: Some(leader), ..
                }),
            ) => {
                self.leaders
                    .insert((campaign.name.clone(), campaign.lease), leader.clone());
            }
            _ => {}
        }
    }

    async fn send(&mut self, request: &Request, step: &Step) -> anyhow::Result<Answer> {
        let credentials = self.credentials(step.by.as_ref());
        if let (true, Some((rpc, bytes))) = (step.gateway, request.as_json()) {
            return self.gateway.call(rpc, request, &bytes, credentials.as_ref()).await;
        }
        if let Some(answer) = self.unary(request, credentials.as_ref()).await {
            return Ok(answer);
        }
        match request.clone() {
            Request::Grant(grant, _) => Ok(of(
                self.lease.lease_grant(with(grant, credentials.as_ref())).await,
                Answer::Grant,
            )),
            Request::GrantShort(grant) => Ok(self.grant_short(grant, credentials.as_ref()).await),
            Request::KeepAlive(keep) => Ok(self.keep_alive(keep, credentials.as_ref()).await),
            Request::Watch { stream, fresh, create } => self.watch(stream, fresh, create, credentials.as_ref()).await,
            Request::Cancel { stream, id, known } => Ok(Answer::Watch(self.stream(stream)?.cancel(id, known).await?)),
            Request::Settle { stream, revision } => Ok(Answer::Watched(self.stream(stream)?.settle(revision).await?)),
            Request::LockBehind(lock, unlock) => {
                let (mut waiting, mut ahead) = (self.lock.clone(), self.lock.clone());
                let waits = waiting.lock(with(lock.clone(), credentials.as_ref()));
                let ends = ahead.unlock(with(unlock, credentials.as_ref()));
                let answer = behind(waits, self.two_of(&lock.name, credentials.as_ref()), ends).await?;
                Ok(of(answer, Answer::Lock))
            }
            Request::CampaignBehind(campaign, resign) => {
                let (mut waiting, mut ahead) = (self.election.clone(), self.election.clone());
                let waits = waiting.campaign(with(campaign.clone(), credentials.as_ref()));
                let ends = ahead.resign(with(resign, credentials.as_ref()));
                let answer = behind(waits, self.two_of(&campaign.name, credentials.as_ref()), ends).await?;
                Ok(of(answer, Answer::Campaign))
            }
            Request::Observe(observe) => match self.election.observe(with(observe, credentials.as_ref())).await {
                Ok(response) => {
                    let first = response.into_inner().message().await;
                    Ok(first.map_or_else(
                        |status| error(&status),
                        |first| Answer::Leader(first.unwrap_or_default()),
                    ))
                }
                Err(status) => Ok(error(&status)),
            },
            Request::Snapshot => Ok(self.snapshot(credentials.as_ref()).await),
            other => bail!("{} is not sent", other.method()),
        }
    }

    /// Waits until two candidates have keys below a name.
    async fn two_of(&self, name: &Bytes, credentials: Option<&Credentials>) -> anyhow::Result<()> {
        let mut kv = self.kv.clone();
        let (mut key, mut range_end) = (name.to_vec(), name.to_vec());
        key.push(b'/');
        range_end.push(b'/' + 1);
        let range = pb::RangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            count_only: true,
            ..pb::RangeRequest::default()
        };
        while kv.range(with(range.clone(), credentials)).await?.into_inner().count < 2 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn grant_short(&mut self, grant: pb::LeaseGrantRequest, credentials: Option<&Credentials>) -> Answer {
        let response = self.lease.lease_grant(with(grant, credentials)).await;
        if let Ok(response) = &response {
            let id = response.get_ref().id;
            let revoked = self
                .lease
                .lease_revoke(with(pb::LeaseRevokeRequest { id }, credentials))
                .await;
            if let Err(status) = revoked
                && status.code() != tonic::Code::NotFound
            {
                return error(&status);
            }
        }
        of(response, |mut response| {
            response.id = if grant.id == 0 {
                response.id.signum()
            } else {
                response.id
            };
            Answer::Grant(response)
        })
    }

    async fn keep_alive(&mut self, keep: pb::LeaseKeepAliveRequest, credentials: Option<&Credentials>) -> Answer {
        let requests = with(tokio_stream::once(keep), credentials);
        match self.lease.lease_keep_alive(requests).await {
            Ok(response) => match response.into_inner().message().await {
                Ok(message) => Answer::KeepAlive(message),
                Err(status) => error(&status),
            },
            Err(status) => error(&status),
        }
    }

    async fn snapshot(&mut self, credentials: Option<&Credentials>) -> Answer {
        let request = with(pb::SnapshotRequest {}, credentials);
        let mut messages = match self.maintenance.snapshot(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return error(&status),
        };
        let mut reader = snapshot::Reader::default();
        loop {
            match messages.message().await {
                Ok(Some(message)) => {
                    if let Err(broken) = reader.push(message) {
                        return Answer::Broken(broken);
                    }
                }
                Ok(None) => return reader.end().map_or_else(Answer::Broken, Answer::Snapshot),
                Err(status) => return error(&status),
            }
        }
    }

    async fn watch(
        &mut self,
        at: usize,
        fresh: bool,
        create: pb::WatchCreateRequest,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Answer> {
        if fresh {
            self.streams.remove(&at);
            let (stream, created) = OpenStream::open(self.server.connect().await?, create, credentials).await?;
            self.streams.insert(at, stream);
            return Ok(Answer::Watch(Some(created)));
        }
        Ok(Answer::Watch(Some(self.stream(at)?.create(create).await?)))
    }

    fn credentials(&self, by: Option<&By>) -> Option<Credentials> {
        by.map(|by| Credentials {
            header: by.header.clone(),
            token: self
                .tokens
                .get(&by.user)
                .cloned()
                .unwrap_or_else(|| NO_TOKEN.to_owned()),
        })
    }

    fn stream(&mut self, at: usize) -> anyhow::Result<&mut OpenStream> {
        self.streams
            .get_mut(&at)
            .with_context(|| format!("watch stream {at} could not be opened"))
    }

    /// The server's id of a lease. A name that it never gave out becomes an id that it does not have.
    fn id(&self, name: i64) -> i64 {
        self.leases.get(&name).copied().unwrap_or(name)
    }

    fn member_id(&self, id: u64) -> u64 {
        if id == OWN_MEMBER { self.member.id } else { id }
    }

    fn peer_urls(&self, urls: &[String]) -> Vec<String> {
        let own = |url: &String| match url.as_str() {
            OWN_PEER_URLS => self.member.peer_ur_ls.clone(),
            _ => vec![url.clone()],
        };
        urls.iter().flat_map(own).collect()
    }

    /// Replaces names of leases and what stands for the server's own, and puts in what a campaign gave.
    fn insert_ids(&self, request: &mut Request) {
        match request {
            Request::Put(put) => put.lease = self.id(put.lease),
            Request::Txn(txn) => self.insert_txn_ids(txn),
            Request::Revoke(revoke) => revoke.id = self.id(revoke.id),
            Request::KeepAlive(keep) => keep.id = self.id(keep.id),
            Request::TimeToLive(request) => request.id = self.id(request.id),
            Request::MemberAdd(add) => add.peer_ur_ls = self.peer_urls(&add.peer_ur_ls),
            Request::MemberRemove(remove) => remove.id = self.member_id(remove.id),
            Request::MemberPromote(promote) => promote.id = self.member_id(promote.id),
            Request::MemberUpdate(update) => {
                update.id = self.member_id(update.id);
                update.peer_ur_ls = self.peer_urls(&update.peer_ur_ls);
            }
            Request::Proclaim(ProclaimRequest {
                leader: Some(leader), ..
            })
            | Request::Resign(ResignRequest { leader: Some(leader) })
            | Request::CampaignBehind(_, ResignRequest { leader: Some(leader) }) => {
                if let Some(known) = self.leaders.get(&(leader.name.clone(), leader.lease)) {
                    *leader = known.clone();
                }
            }
            _ => {}
        }
    }

    fn insert_txn_ids(&self, txn: &mut pb::TxnRequest) {
        for compare in &mut txn.compare {
            if let Some(pb::compare::TargetUnion::Lease(lease)) = &mut compare.target_union {
                *lease = self.id(*lease);
            }
        }
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            match &mut op.request {
                Some(Op::RequestPut(put)) => put.lease = self.id(put.lease),
                Some(Op::RequestTxn(txn)) => self.insert_txn_ids(txn),
                _ => {}
            }
        }
    }
}

macro_rules! calls {
    ($($name:ident, $method:literal, $path:literal, $request:ty, $response:ty, $client:ident.$call:ident;)*) => {
        impl Client<'_> {
            /// The answer to a request with one response, `None` for others.
            async fn unary(&mut self, request: &Request, credentials: Option<&Credentials>) -> Option<Answer> {
                Some(match request {
                    $(Request::$name(message) => {
                        of(self.$client.$call(with(message.clone(), credentials)).await, Answer::$name)
                    })*
                    _ => return None,
                })
            }
        }
    };
}
with_unary_methods!(calls);

/// The member that a server is.
async fn own(cluster: &mut ClusterClient<Channel>) -> anyhow::Result<pb::Member> {
    let list = cluster
        .member_list(pb::MemberListRequest::default())
        .await?
        .into_inner();
    let id = list.header.map(|header| header.member_id);
    let own = list.members.into_iter().find(|member| Some(member.id) == id);
    own.context("the server is not a member")
}

/// How a client says who it is.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The header.
    pub header: String,
    /// Its value.
    pub token: String,
}

/// A message with the credentials of its sender.
pub fn with<T>(message: T, credentials: Option<&Credentials>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(Credentials { header, token }) = credentials
        && let (Ok(name), Ok(value)) = (MetadataKey::from_bytes(header.as_bytes()), token.parse())
    {
        request.metadata_mut().insert(name, value);
    }
    request
}

/// Waits for an answer that comes only when another call ends what it waits for: that call is made when it waits.
async fn behind<T, U>(
    waits: impl Future<Output = Result<Response<T>, Status>>,
    is_waiting: impl Future<Output = anyhow::Result<()>>,
    ends: impl Future<Output = Result<Response<U>, Status>>,
) -> anyhow::Result<Result<Response<T>, Status>> {
    let mut waits = pin!(waits);
    tokio::select! {
        answer = &mut waits => return Ok(answer),
        waiting = is_waiting => waiting?,
    }
    ends.await?;
    Ok(waits.await)
}

/// Returns true if an id is a name that a script gave.
pub fn is_name(id: i64) -> bool {
    id >= NAMED_LEASES
}

fn of<T>(response: Result<Response<T>, Status>, wrap: impl FnOnce(T) -> Answer) -> Answer {
    match response {
        Ok(response) => wrap(response.into_inner()),
        Err(status) => error(&status),
    }
}

fn error(status: &Status) -> Answer {
    Answer::Error {
        code: status.code(),
        message: status.message().to_owned(),
        http: None,
    }
}
