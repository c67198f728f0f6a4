// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

use std::any::Any;
use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::Channel;
use tonic::IntoRequest;

use crate::proto::kvrpcpb;
use crate::proto::tikvpb::tikv_client::TikvClient;
use crate::store::RegionWithLeader;
use crate::Error;
use crate::Result;

#[async_trait]
pub trait Request: Any + Sync + Send + 'static {
    async fn dispatch(&self, client: &TikvClient<Channel>, timeout: Duration) -> Result<Box<dyn Any>>;
    fn set_leader(&mut self, leader: &RegionWithLeader) -> Result<()>;
}

macro_rules! impl_request {
    ($name: ident, $fun: ident) => {
        #[async_trait]
        impl Request for kvrpcpb::$name {
            async fn dispatch(&self, client: &TikvClient<Channel>, timeout: Duration) -> Result<Box<dyn Any>> {
                let mut req = self.clone().into_request();
                req.set_timeout(timeout);
                client
                    .clone()
                    .$fun(req)
                    .await
                    .map(|r| Box::new(r.into_inner()) as Box<dyn Any>)
                    .map_err(Error::GrpcAPI)
            }

            fn set_leader(&mut self, leader: &RegionWithLeader) -> Result<()> {
                let ctx = self.context.get_or_insert(kvrpcpb::Context::default());
                let leader_peer = leader.leader.as_ref().ok_or(Error::LeaderNotFound {
                    region: leader.ver_id(),
                })?;
                ctx.region_id = leader.region.id;
                ctx.region_epoch = leader.region.region_epoch.clone();
                ctx.peer = Some(leader_peer.clone());
                Ok(())
            }
        }
    };
}

impl_request!(GetRequest, kv_get);
impl_request!(ScanRequest, kv_scan);
impl_request!(PrewriteRequest, kv_prewrite);
impl_request!(CommitRequest, kv_commit);
impl_request!(BatchGetRequest, kv_batch_get);
impl_request!(BatchRollbackRequest, kv_batch_rollback);
impl_request!(PessimisticRollbackRequest, kv_pessimistic_rollback);
impl_request!(ResolveLockRequest, kv_resolve_lock);
impl_request!(ScanLockRequest, kv_scan_lock);
impl_request!(PessimisticLockRequest, kv_pessimistic_lock);
impl_request!(CheckTxnStatusRequest, kv_check_txn_status);
impl_request!(CheckSecondaryLocksRequest, kv_check_secondary_locks);
impl_request!(UnsafeDestroyRangeRequest, unsafe_destroy_range);
