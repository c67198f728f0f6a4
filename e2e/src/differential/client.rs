//! One of the two servers, seen through a script.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::answer::{Answer, order_ties};
use super::request::{NAMED_LEASES, Request};
use super::watching::Stream;
use crate::server::Server;
use crate::wire::etcdserverpb as pb;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::request_op::Request as Op;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections to one server, its watch streams, and its names of leases.
#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    auth: AuthClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    streams: BTreeMap<usize, Stream>,
    leases: BTreeMap<i64, i64>,
}

impl<'a> Client<'a> {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server does not listen.
    pub async fn new(server: &'a Server) -> anyhow::Result<Self> {
        let channel = server.connect().await?;
        Ok(Self {
            server,
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
            streams: BTreeMap::new(),
            leases: BTreeMap::new(),
        })
    }

    /// Sends one request and waits for what it leads to.
    ///
    /// # Errors
    ///
    /// Silence, or an answer that breaks a promise.
    pub async fn call(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let answered = timeout(REQUEST_TIMEOUT, self.send(request)).await;
        let mut answer =
            answered.with_context(|| format!("no answer to {} in {REQUEST_TIMEOUT:?}", request.method()))??;
        let names: BTreeMap<i64, i64> = self.leases.iter().map(|(name, id)| (*id, *name)).collect();
        answer.visit_leases(&mut |id| *id = names.get(id).copied().unwrap_or(*id));
        answer.normalise();
        order_ties(request, &mut answer);
        Ok(answer)
    }

    async fn send(&mut self, request: &Request) -> anyhow::Result<Answer> {
        use Request as R;
        let maintenance = &mut self.maintenance;
        let answer = match request.clone() {
            R::Range(range) => of(self.kv.range(range).await, Answer::Range),
            R::Put(mut put) => {
                put.lease = self.id(put.lease);
                of(self.kv.put(put).await, Answer::Put)
            }
            R::DeleteRange(delete) => of(self.kv.delete_range(delete).await, Answer::DeleteRange),
            R::Txn(mut txn) => {
                self.name_leases(&mut txn);
                of(self.kv.txn(txn).await, Answer::Txn)
            }
            R::Compact(compact) => of(self.kv.compact(compact).await, Answer::Compact),
            R::Grant(..) | R::GrantShort(_) | R::Revoke(_) | R::KeepAlive(_) | R::TimeToLive(_) | R::Leases => {
                self.send_lease(request).await?
            }
            R::MemberList(list) => of(self.cluster.member_list(list).await, Answer::MemberList),
            R::MemberAdd(add) => of(self.cluster.member_add(add).await, Answer::MemberAdd),
            R::MemberRemove(remove) => of(self.cluster.member_remove(remove).await, Answer::MemberRemove),
            R::MemberUpdate(update) => of(self.cluster.member_update(update).await, Answer::MemberUpdate),
            R::MemberPromote(promote) => of(self.cluster.member_promote(promote).await, Answer::MemberPromote),
            R::Status => of(maintenance.status(pb::StatusRequest {}).await, Answer::Status),
            R::Alarm(alarm) => of(maintenance.alarm(alarm).await, Answer::Alarm),
            R::Hash => of(maintenance.hash(pb::HashRequest {}).await, Answer::Hash),
            R::HashKv(hash) => of(maintenance.hash_kv(hash).await, Answer::HashKv),
            R::Defragment => of(
                maintenance.defragment(pb::DefragmentRequest {}).await,
                Answer::Defragment,
            ),
            R::MoveLeader(to) => of(maintenance.move_leader(to).await, Answer::MoveLeader),
            R::Downgrade(downgrade) => of(maintenance.downgrade(downgrade).await, Answer::Downgrade),
            R::AuthStatus => of(
                self.auth.auth_status(pb::AuthStatusRequest {}).await,
                Answer::AuthStatus,
            ),
            R::Watch { stream, fresh, create } => self.watch(stream, fresh, create).await?,
            R::Cancel { stream, id, known } => Answer::Watch(self.stream(stream)?.cancel(id, known).await?),
            R::Settle { stream, revision } => Answer::Watched(self.stream(stream)?.settle(revision).await?),
        };
        Ok(answer)
    }

    async fn send_lease(&mut self, request: &Request) -> anyhow::Result<Answer> {
        Ok(match *request {
            Request::Grant(grant, name) => {
                let response = self.lease.lease_grant(grant).await;
                if let (0, Ok(response)) = (grant.id, &response) {
                    self.leases.insert(name, response.get_ref().id);
                }
                of(response, Answer::Grant)
            }
            Request::GrantShort(grant) => {
                let response = self.lease.lease_grant(grant).await;
                if let Ok(response) = &response {
                    let revoked = self
                        .lease
                        .lease_revoke(pb::LeaseRevokeRequest {
                            id: response.get_ref().id,
                        })
                        .await;
                    if let Err(status) = revoked
                        && status.code() != tonic::Code::NotFound
                    {
                        return Ok(error(&status));
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
            Request::Revoke(id) => {
                let id = self.id(id);
                of(
                    self.lease.lease_revoke(pb::LeaseRevokeRequest { id }).await,
                    Answer::Revoke,
                )
            }
            Request::KeepAlive(id) => self.keep_alive(id).await,
            Request::TimeToLive(mut request) => {
                request.id = self.id(request.id);
                of(self.lease.lease_time_to_live(request).await, Answer::TimeToLive)
            }
            _ => of(self.lease.lease_leases(pb::LeaseLeasesRequest {}).await, Answer::Leases),
        })
    }

    async fn keep_alive(&mut self, id: i64) -> Answer {
        let requests = tokio_stream::once(pb::LeaseKeepAliveRequest { id: self.id(id) });
        match self.lease.lease_keep_alive(requests).await {
            Ok(response) => match response.into_inner().message().await {
                Ok(message) => Answer::KeepAlive(message),
                Err(status) => error(&status),
            },
            Err(status) => error(&status),
        }
    }

    async fn watch(&mut self, at: usize, fresh: bool, create: pb::WatchCreateRequest) -> anyhow::Result<Answer> {
        if fresh {
            self.streams.remove(&at);
            let (stream, created) = Stream::open(self.server.connect().await?, create).await?;
            self.streams.insert(at, stream);
            return Ok(Answer::Watch(Some(created)));
        }
        Ok(Answer::Watch(Some(self.stream(at)?.create(create).await?)))
    }

    fn stream(&mut self, at: usize) -> anyhow::Result<&mut Stream> {
        self.streams
            .get_mut(&at)
            .with_context(|| format!("watch stream {at} could not be opened"))
    }

    /// The server's id of a lease. A name that it never gave out becomes an id that it does not have.
    fn id(&self, name: i64) -> i64 {
        self.leases.get(&name).copied().unwrap_or(name)
    }

    fn name_leases(&self, txn: &mut pb::TxnRequest) {
        for compare in &mut txn.compare {
            if let Some(pb::compare::TargetUnion::Lease(lease)) = &mut compare.target_union {
                *lease = self.id(*lease);
            }
        }
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            match &mut op.request {
                Some(Op::RequestPut(put)) => put.lease = self.id(put.lease),
                Some(Op::RequestTxn(txn)) => self.name_leases(txn),
                _ => {}
            }
        }
    }
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
    }
}
