//! The service `v3lockpb.Lock`: the part that was created first holds the lock, the others wait for it to go.

use std::sync::Arc;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::contest::{Contests, Part, first_of, found, if_created, key_of, point, prefix, put};
use crate::pb::etcdserverpb::request_op::Request as Wire;
use crate::pb::v3lockpb as pb;
use crate::rows::Rows;
use crate::watch::History;

/// The service over contests.
pub struct LockService<H, R: Rows>(pub Arc<Contests<H, R>>);

#[tonic::async_trait]
impl<H: History, R: Rows> pb::lock_server::Lock for LockService<H, R> {
    async fn lock(&self, request: Request<pb::LockRequest>) -> Result<Response<pb::LockResponse>, Status> {
        let request = request.into_inner();
        let lease = self.0.lease(request.lease).await?;
        let prefix = prefix(&request.name);
        let key = key_of(&prefix, lease);
        let owner = || Wire::RequestRange(first_of(&prefix));
        let txn = if_created(
            key.clone(),
            0,
            vec![Wire::RequestPut(put(key.clone(), Bytes::new(), lease)), owner()],
            vec![Wire::RequestRange(point(key.clone())), owner()],
        );
        let txn = self.0.txn(txn).await?;
        let part = Part {
            revision: match txn.succeeded {
                true => txn.header.map_or(0, |header| header.revision),
                false => found(&txn, 0).first().map_or(0, |kv| kv.create_revision),
            },
            header: txn.header,
            key,
        };
        let is_owner = found(&txn, 1)
            .first()
            .is_none_or(|owner| owner.create_revision == part.revision);
        let header = if is_owner {
            part.header
        } else {
            self.wait(&prefix, &part).await?
        };
        Ok(Response::new(pb::LockResponse { header, key: part.key }))
    }

    async fn unlock(&self, request: Request<pb::UnlockRequest>) -> Result<Response<pb::UnlockResponse>, Status> {
        let deleted = self.0.delete(request.into_inner().key).await?;
        Ok(Response::new(pb::UnlockResponse { header: deleted.header }))
    }
}

impl<H: History, R: Rows> LockService<H, R> {
    /// Waits for the turn of a part, which may have lost its lease meanwhile.
    async fn wait(
        &self,
        prefix: &Bytes,
        part: &Part,
    ) -> Result<Option<crate::pb::etcdserverpb::ResponseHeader>, Status> {
        let waiting = self.0.waiting(part);
        self.0.turn(prefix, part).await?;
        let mine = self.0.range(point(part.key.clone())).await?;
        waiting.done();
        if mine.kvs.is_empty() {
            return Err(Status::unknown("mutex: session is expired"));
        }
        Ok(mine.header)
    }
}
