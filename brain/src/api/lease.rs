//! The service `etcdserverpb.Lease`.

use std::pin::Pin;
use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::leaderless::{is_required, lost};
use super::status::Error;
use super::store::Store;
use crate::lease::MAX_TTL;
use crate::metrics::Metrics;
use crate::mvcc::LeaseId;
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;
use crate::sequencer::command::Request as Command;
use crate::state::{CORRUPT, NOSPACE, since_boot};

/// The service over a store.
pub struct LeaseService<R: Rows> {
    /// The store.
    pub store: Store<R>,
    /// The shortest time to live that is granted, in seconds: etcd raises shorter ones to 1.5 election timeouts.
    pub min_ttl: i64,
    /// Ends streams of keep-alives.
    pub stop: CancellationToken,
    /// Counts renewals.
    pub metrics: Arc<Metrics>,
    /// Whether there is a leader, for streams of clients that want to be told; `None` for other members.
    pub has_leader: Option<watch::Receiver<bool>>,
}

#[tonic::async_trait]
impl<R: Rows> pb::lease_server::Lease for LeaseService<R> {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        by_leader!(self.grant_here, client.lease_grant, request)
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        by_leader!(self.revoke_here, client.lease_revoke, request)
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let told = is_required(request.metadata().as_ref());
        let has_leader = self.has_leader.clone().filter(|_| told);
        let mut requests = request.into_inner();
        let (store, metrics, stop) = (self.store.clone(), self.metrics.clone(), self.stop.clone());
        let answers = try_stream! {
            loop {
                let request = tokio::select! {
                    request = requests.message() => request,
                    () = stop.cancelled() => Err(Error::Stopped.into()),
                    () = lost(has_leader.clone()) => Err(Error::NoLeader.into()),
                }?;
                let Some(request) = request else { break };
                let answer = tokio::select! {
                    answer = keep_alive(&store, request) => answer,
                    () = lost(has_leader.clone()) => Err(Error::NoLeader.into()),
                }?;
                if answer.ttl > 0 {
                    metrics.lease.renewed.inc();
                }
                yield answer;
            }
        };
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        by_leader!(self.time_to_live_here, client.lease_time_to_live, request)
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        by_leader!(self.leases_here, client.lease_leases, request)
    }
}

impl<R: Rows> LeaseService<R> {
    async fn grant_here(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        if self.store.state.has_alarm(CORRUPT) {
            return Err(self.store.refuse(Error::Corrupt).await);
        }
        if self.store.state.has_alarm(NOSPACE) {
            return Err(self.store.refuse(Error::NoSpace).await);
        }
        if request.ttl > MAX_TTL {
            return Err(Error::LeaseTtlTooLarge.into());
        }
        let ttl = request.ttl.max(self.min_ttl);
        let id = if request.id == 0 { self.free_id() } else { request.id };
        let answer = self.store.ask(Command::Grant(LeaseId(id), ttl), 64).await?;
        let header = Some(self.store.header(answer.revision));
        Ok(Response::new(pb::LeaseGrantResponse {
            header,
            id,
            ttl,
            error: String::new(),
        }))
    }

    async fn revoke_here(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = LeaseId(request.get_ref().id);
        let answer = self.store.ask(Command::Revoke { id, expired: false }, 64).await?;
        Ok(Response::new(pb::LeaseRevokeResponse {
            header: Some(self.store.header(answer.revision)),
        }))
    }

    async fn time_to_live_here(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let right = self.store.elsewhere.right();
        let header = Some(self.store.header(self.store.linearizable().await?.revision));
        let info = self.store.state.leases().info(LeaseId(request.id), since_boot());
        // Whoever leads next hears of keep-alives that this member never does.
        self.store.elsewhere.confirm(right).await?;
        let answer = match info {
            None => pb::LeaseTimeToLiveResponse {
                header,
                id: request.id,
                ttl: -1,
                ..Default::default()
            },
            Some(info) => pb::LeaseTimeToLiveResponse {
                header,
                id: request.id,
                ttl: i64::try_from(info.remaining.as_secs()).unwrap_or(i64::MAX),
                granted_ttl: info.granted_ttl,
                keys: if request.keys { info.keys } else { Vec::new() },
            },
        };
        Ok(Response::new(answer))
    }

    async fn leases_here(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let header = Some(self.store.header(self.store.linearizable().await?.revision));
        let leases = self
            .store
            .state
            .leases()
            .ids()
            .map(|id| pb::LeaseStatus { id: id.0 })
            .collect();
        Ok(Response::new(pb::LeaseLeasesResponse { header, leases }))
    }

    /// Answers one keep-alive of a stream.
    ///
    /// # Errors
    /// With etcd's status.
    pub async fn keep_alive(&self, request: pb::LeaseKeepAliveRequest) -> Result<pb::LeaseKeepAliveResponse, Status> {
        keep_alive(&self.store, request).await
    }

    /// A positive id that no lease has.
    fn free_id(&self) -> i64 {
        let leases = self.store.state.leases();
        loop {
            let id = rand::random::<i64>() & i64::MAX;
            if id != 0 && !leases.contains(LeaseId(id)) {
                return id;
            }
        }
    }
}

/// Has the leader answer one keep-alive.
async fn keep_alive<R: Rows>(
    store: &Store<R>,
    request: pb::LeaseKeepAliveRequest,
) -> Result<pb::LeaseKeepAliveResponse, Status> {
    let here = |request: Request<pb::LeaseKeepAliveRequest>| async move {
        keep_alive_here(store, request.get_ref().id).await.map(Response::new)
    };
    let there = |leader, request: Request<pb::LeaseKeepAliveRequest>| async move {
        let asked = futures::stream::iter([request.into_inner()]);
        let mut answers = client(leader).lease_keep_alive(asked).await?.into_inner();
        let mut answer = answers.message().await?.ok_or(Error::TimeoutDueToLeaderFail)?;
        store.own(&mut answer.header);
        Ok(Response::new(answer))
    };
    let answer = store.answer(Request::new(request), here, there).await?;
    Ok(answer.into_inner())
}

/// Answers one keep-alive: a lease that is gone has no time to live.
async fn keep_alive_here<R: Rows>(store: &Store<R>, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
    // Like etcd's, the header is older than the renewal.
    let header = Some(store.header(store.view()?.revision));
    let ttl = renew(store, LeaseId(id)).await?;
    // Whoever leads next counts from what it knows: only a leader may promise that time.
    if !store.elsewhere.holds() {
        return Err(Error::NotLeader.into());
    }
    Ok(pb::LeaseKeepAliveResponse { header, id, ttl })
}

/// The same service of the leader.
fn client(leader: Channel) -> pb::lease_client::LeaseClient<Channel> {
    pb::lease_client::LeaseClient::new(leader).max_decoding_message_size(usize::MAX)
}

/// Renews a lease; answers with its time to live, or 0 if there is none.
async fn renew<R: Rows>(store: &Store<R>, id: LeaseId) -> Result<i64, Status> {
    let Some(renewed) = store.state.leases().renew(id, since_boot()) else {
        return Ok(0);
    };
    if renewed.clear_checkpoint {
        // A restart must not expire earlier what was renewed now.
        store.ask(Command::Checkpoint(vec![(id, 0)]), 64).await?;
    }
    Ok(renewed.ttl)
}
