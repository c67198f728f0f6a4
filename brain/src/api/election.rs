//! The service `v3electionpb.Election`: the part that was created first leads, and its value is what it proclaims.

use std::pin::Pin;
use std::sync::Arc;

use async_stream::try_stream;
use bytes::Bytes;
use futures::Stream;
use tonic::{Request, Response, Status};

use super::contest::{Contests, Part, delete, first_of, found, if_created, key_of, point, prefix, put};
use super::kv::meter;
use super::response::key_value;
use crate::budget::Meter;
use crate::mvcc::EventKind;
use crate::pb::etcdserverpb::request_op::Request as Wire;
use crate::pb::etcdserverpb::{ResponseHeader, TxnResponse};
use crate::pb::mvccpb::KeyValue;
use crate::pb::v3electionpb as pb;
use crate::rows::Rows;
use crate::watch::{History, Kinds};

/// The service over contests.
pub struct ElectionService<H, R: Rows>(pub Arc<Contests<H, R>>);

#[tonic::async_trait]
impl<H: History, R: Rows> pb::election_server::Election for ElectionService<H, R> {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaderResponse, Status>> + Send>>;

    async fn campaign(&self, request: Request<pb::CampaignRequest>) -> Result<Response<pb::CampaignResponse>, Status> {
        let meter = meter(&request);
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let lease = self.0.lease(lease).await?;
        let prefix = prefix(&name);
        let part = self.enter((key_of(&prefix, lease), value, lease), &meter).await?;
        let waiting = self.0.waiting(&part);
        let before = self.0.before(&prefix, &part, &meter).await?;
        self.0.turn(&prefix, &part, before, &meter).await?;
        waiting.done();
        let leader = pb::LeaderKey {
            name,
            key: part.key,
            rev: part.revision,
            lease,
        };
        Ok(Response::new(pb::CampaignResponse {
            header: part.header,
            leader: Some(leader),
        }))
    }

    async fn proclaim(&self, request: Request<pb::ProclaimRequest>) -> Result<Response<pb::ProclaimResponse>, Status> {
        let meter = meter(&request);
        let pb::ProclaimRequest { leader, value } = request.into_inner();
        let leader = leader.ok_or_else(leader_missing)?;
        let lease = self.0.lease(leader.lease).await?;
        let txn = self.replace((leader.key, leader.rev), value, lease, &meter).await?;
        Ok(Response::new(pb::ProclaimResponse { header: txn.header }))
    }

    async fn leader(&self, request: Request<pb::LeaderRequest>) -> Result<Response<pb::LeaderResponse>, Status> {
        let meter = meter(&request);
        let range = self
            .0
            .range(first_of(&prefix(&request.into_inner().name)), &meter)
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
        let meter = meter(&request).another();
        let prefix = prefix(&request.into_inner().name);
        Ok(Response::new(Box::pin(observe(Arc::clone(&self.0), prefix, meter))))
    }

    async fn resign(&self, request: Request<pb::ResignRequest>) -> Result<Response<pb::ResignResponse>, Status> {
        let meter = meter(&request);
        let leader = request.into_inner().leader.ok_or_else(leader_missing)?;
        // As in etcd, who names no lease is granted one.
        self.0.lease(leader.lease).await?;
        let resign = vec![Wire::RequestDeleteRange(delete(leader.key.clone()))];
        let txn = self
            .0
            .txn(if_created(leader.key, leader.rev, resign, Vec::new()), &meter)
            .await?;
        Ok(Response::new(pb::ResignResponse { header: txn.header }))
    }
}

impl<H: History, R: Rows> ElectionService<H, R> {
    /// Takes part, or goes on with the part that the lease has already: with this value either way.
    async fn enter(&self, (key, value, lease): (Bytes, Bytes, i64), meter: &Meter) -> Result<Part, Status> {
        let enter = vec![Wire::RequestPut(put(key.clone(), value.clone(), lease))];
        let look = vec![Wire::RequestRange(point(key.clone()))];
        let txn = self.0.txn(if_created(key.clone(), 0, enter, look), meter).await?;
        let mut part = Part {
            key,
            revision: txn.header.map_or(0, |header| header.revision),
            header: txn.header,
        };
        if let (false, Some(mine)) = (txn.succeeded, found(&txn, 0).first()) {
            part.revision = mine.create_revision;
            if mine.value != value {
                let waiting = self.0.waiting(&part);
                self.replace((part.key.clone(), part.revision), value, lease, meter)
                    .await?;
                waiting.done();
            }
        }
        Ok(part)
    }

    /// Gives a part another value.
    async fn replace(
        &self,
        (key, revision): (Bytes, i64),
        value: Bytes,
        lease: i64,
        meter: &Meter,
    ) -> Result<TxnResponse, Status> {
        let replace = vec![Wire::RequestPut(put(key.clone(), value, lease))];
        let txn = self
            .0
            .txn(if_created(key, revision, replace, Vec::new()), meter)
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

/// The leader's value, and every later one of it; then the next leader's. Values may be left out where leaders change.
fn observe<H: History, R: Rows>(
    contests: Arc<Contests<H, R>>,
    prefix: Bytes,
    meter: Meter,
) -> impl Stream<Item = Result<pb::LeaderResponse, Status>> {
    try_stream! {
        loop {
            let Some((header, kv)) = leading(&contests, &prefix, &meter).await? else { return };
            let (key, from) = (kv.key.clone(), header.revision + 1);
            yield pb::LeaderResponse { header: Some(header), kv: Some(kv) };
            let mut events = contests.watch(key, Bytes::new(), Kinds::ALL, from, &meter)?;
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

/// Who leads, or is the first to; `None` when what comes next was compacted.
async fn leading<H: History, R: Rows>(
    contests: &Contests<H, R>,
    prefix: &Bytes,
    meter: &Meter,
) -> Result<Option<(ResponseHeader, KeyValue)>, Status> {
    let range = contests.range(first_of(prefix), meter).await?;
    let header = range.header.unwrap_or_default();
    if let Some(kv) = range.kvs.into_iter().next() {
        return Ok(Some((header, kv)));
    }
    let mut events = contests.watch_all(prefix, header.revision, meter)?;
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
