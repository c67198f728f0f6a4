//! The service `v3lockpb.Lock`: the waiter that was created first holds the lock, and the others wait until its key is gone.

use std::sync::Arc;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::concurrency::{Concurrency, SessionClient, Waiter, found, if_created, key_of, point, prefix, put};
use etcd_types::pb::etcdserverpb::request_op::Request as Wire;
use etcd_types::pb::v3lockpb as pb;

/// The service.
pub struct LockService(pub Arc<Concurrency>);

#[tonic::async_trait]
impl pb::lock_server::Lock for LockService {
    async fn lock(&self, request: Request<pb::LockRequest>) -> Result<Response<pb::LockResponse>, Status> {
        let client = SessionClient::of(&request);
        let request = request.into_inner();
        let lease = self.0.lease(request.lease, &client).await?;
        let prefix = prefix(&request.name);
        let key = key_of(&prefix, lease);
        let txn = if_created(
            key.clone(),
            0,
            vec![Wire::RequestPut(put(key.clone(), Bytes::new(), lease))],
            vec![Wire::RequestRange(point(key.clone()))],
        );
        let txn = self.0.txn(txn, &client).await?;
        let waiter = Waiter {
            revision: match txn.succeeded {
                true => txn.header.map_or(0, |header| header.revision),
                false => found(&txn, 0).first().map_or(0, |kv| kv.create_revision),
            },
            header: txn.header,
            key,
        };
        // A waiter whose key existed before may hold the lock: its key is not deleted unless it waits.
        let waiting = txn.succeeded.then(|| self.0.cleanup_guard(&waiter));
        let before = self.0.before(&prefix, &waiter, &client).await?;
        let header = if before.is_some() {
            let waiting = waiting.unwrap_or_else(|| self.0.cleanup_guard(&waiter));
            self.0.wait_turn(&prefix, &waiter, before, &client).await?;
            // The waiter may have lost its lease in the meantime.
            let mine = self.0.range(point(waiter.key.clone()), &client).await?;
            waiting.done();
            if mine.kvs.is_empty() {
                return Err(Status::unknown("mutex: session is expired"));
            }
            mine.header
        } else {
            if let Some(waiting) = waiting {
                waiting.done();
            }
            waiter.header
        };
        Ok(Response::new(pb::LockResponse {
            header,
            key: waiter.key,
        }))
    }

    async fn unlock(&self, request: Request<pb::UnlockRequest>) -> Result<Response<pb::UnlockResponse>, Status> {
        let client = SessionClient::of(&request);
        let deleted = self.0.delete(request.into_inner().key, &client).await?;
        Ok(Response::new(pb::UnlockResponse { header: deleted.header }))
    }
}
