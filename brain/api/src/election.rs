//! The service `v3electionpb.Election`: the waiter that was created first leads, and its value is its proclamation.

use std::pin::Pin;
use std::sync::Arc;

use async_stream::try_stream;
use bytes::Bytes;
use futures::Stream;
use tonic::{Request, Response, Status};

use super::concurrency::{
    Concurrency, SessionClient, Waiter, delete, first_of, found, if_created, key_of, point, prefix, put,
};
use super::response::key_value;
use ::watch::EventFilter;
use etcd_types::pb::etcdserverpb::request_op::Request as Wire;
use etcd_types::pb::etcdserverpb::{ResponseHeader, TxnResponse};
use etcd_types::pb::mvccpb::KeyValue;
use etcd_types::pb::v3electionpb as pb;
use etcd_types::types::EventKind;

/// The service.
pub struct ElectionService(pub Arc<Concurrency>);

#[tonic::async_trait]
impl pb::election_server::Election for ElectionService {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaderResponse, Status>> + Send>>;

    async fn campaign(&self, request: Request<pb::CampaignRequest>) -> Result<Response<pb::CampaignResponse>, Status> {
        let client = SessionClient::of(&request);
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let lease = self.0.lease(lease, &client).await?;
        let prefix = prefix(&name);
        let waiter = self.enter((key_of(&prefix, lease), value, lease), &client).await?;
        let waiting = self.0.cleanup_guard(&waiter);
        let before = self.0.before(&prefix, &waiter, &client).await?;
        self.0.wait_turn(&prefix, &waiter, before, &client).await?;
        waiting.done();
        let leader = pb::LeaderKey {
            name,
            key: waiter.key,
            rev: waiter.revision,
            lease,
        };
        Ok(Response::new(pb::CampaignResponse {
            header: waiter.header,
            leader: Some(leader),
        }))
    }

    async fn proclaim(&self, request: Request<pb::ProclaimRequest>) -> Result<Response<pb::ProclaimResponse>, Status> {
        let client = SessionClient::of(&request);
        let pb::ProclaimRequest { leader, value } = request.into_inner();
        let leader = leader.ok_or_else(leader_missing)?;
        let lease = self.0.lease(leader.lease, &client).await?;
        let txn = self.replace((leader.key, leader.rev), value, lease, &client).await?;
        Ok(Response::new(pb::ProclaimResponse { header: txn.header }))
    }

    async fn leader(&self, request: Request<pb::LeaderRequest>) -> Result<Response<pb::LeaderResponse>, Status> {
        let client = SessionClient::of(&request);
        let range = self
            .0
            .range(first_of(&prefix(&request.into_inner().name)), &client)
            .await?;
        match range.kvs.into_iter().next() {
            Some(kv) => Ok(Response::new(pb::LeaderResponse {
                header: range.header,
                kv: Some(kv),
            })),
            None => Err(Status::unknown("election: no leader")),
        }
    }

    async fn observe(&self, request: Request<pb::LeaderRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        let client = SessionClient::of(&request).another();
        let prefix = prefix(&request.into_inner().name);
        Ok(Response::new(Box::pin(observe(Arc::clone(&self.0), prefix, client))))
    }

    async fn resign(&self, request: Request<pb::ResignRequest>) -> Result<Response<pb::ResignResponse>, Status> {
        let client = SessionClient::of(&request);
        let leader = request.into_inner().leader.ok_or_else(leader_missing)?;
        // As in etcd, a client that names no lease is granted one.
        self.0.lease(leader.lease, &client).await?;
        let resign = vec![Wire::RequestDeleteRange(delete(leader.key.clone()))];
        let txn = self
            .0
            .txn(if_created(leader.key, leader.rev, resign, Vec::new()), &client)
            .await?;
        Ok(Response::new(pb::ResignResponse { header: txn.header }))
    }
}

impl ElectionService {
    /// Creates the waiter's key, or takes the key that the lease already has; the key gets this value either way.
    async fn enter(&self, (key, value, lease): (Bytes, Bytes, i64), client: &SessionClient) -> Result<Waiter, Status> {
        let enter = vec![Wire::RequestPut(put(key.clone(), value.clone(), lease))];
        let look = vec![Wire::RequestRange(point(key.clone()))];
        let txn = self.0.txn(if_created(key.clone(), 0, enter, look), client).await?;
        let mut waiter = Waiter {
            key,
            revision: txn.header.map_or(0, |header| header.revision),
            header: txn.header,
        };
        if let (false, Some(mine)) = (txn.succeeded, found(&txn, 0).first()) {
            waiter.revision = mine.create_revision;
            if mine.value != value {
                let waiting = self.0.cleanup_guard(&waiter);
                self.replace((waiter.key.clone(), waiter.revision), value, lease, client)
                    .await?;
                waiting.done();
            }
        }
        Ok(waiter)
    }

    /// Replaces the value of a waiter.
    async fn replace(
        &self,
        (key, revision): (Bytes, i64),
        value: Bytes,
        lease: i64,
        client: &SessionClient,
    ) -> Result<TxnResponse, Status> {
        let replace = vec![Wire::RequestPut(put(key.clone(), value, lease))];
        let txn = self
            .0
            .txn(if_created(key, revision, replace, Vec::new()), client)
            .await?;
        if txn.succeeded {
            Ok(txn)
        } else {
            Err(Status::unknown("election: not leader"))
        }
    }
}

fn leader_missing() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

/// Returns the leader's value and every later one of it, then those of the next leader. Values may be skipped when leaders change.
fn observe(
    concurrency: Arc<Concurrency>,
    prefix: Bytes,
    client: SessionClient,
) -> impl Stream<Item = Result<pb::LeaderResponse, Status>> {
    try_stream! {
    loop {
    let Some((header, kv)) = leading(&concurrency, &prefix, &client).await? else { return };
    let (key, from) = (kv.key.clone(), header.revision + 1);
    yield pb::LeaderResponse { header: Some(header), kv: Some(kv) };
    let mut events = concurrency.watch(key, Bytes::new(), EventFilter::ALL, from, &client)?;
    let mut leads = true;
    while leads {
    let Some((entries, revision)) = events.next().await? else { return };
    for entry in entries {
    if entry.event().kind == EventKind::Delete {
    leads = false;
    break;
    }
    let header = ResponseHeader { revision, ..header };
    yield pb::LeaderResponse { header: Some(header), kv: Some(key_value(entry.event().kv.clone())) };
    }
    }
    }
    }
}

/// Returns the key of the leader, now or as soon as there is one; `None` if the revisions in between were compacted.
async fn leading(
    concurrency: &Concurrency,
    prefix: &Bytes,
    client: &SessionClient,
) -> Result<Option<(ResponseHeader, KeyValue)>, Status> {
    let range = concurrency.range(first_of(prefix), client).await?;
    let header = range.header.unwrap_or_default();
    if let Some(kv) = range.kvs.into_iter().next() {
        return Ok(Some((header, kv)));
    }
    let mut events = concurrency.watch_all(prefix, header.revision, client)?;
    while let Some((entries, _)) = events.next().await? {
        let first = entries.iter().find(|entry| entry.event().kind == EventKind::Put);
        if let Some(entry) = first {
            let header = ResponseHeader {
                revision: entry.revision(),
                ..header
            };
            return Ok(Some((header, key_value(entry.event().kv.clone()))));
        }
    }
    Ok(None)
}
