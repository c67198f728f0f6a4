//! A server as a target, over gRPC.

use tonic::transport::Channel;

use crate::wire::{Answer, Refusal, Request, Response, Target, pb};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;

/// Asks over one connection, one request at a time.
pub(crate) struct Grpc {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    pub(crate) watch: WatchClient<Channel>,
}

impl Grpc {
    /// `endpoint` as `http://host:port`.
    pub(crate) async fn connect(endpoint: String) -> Self {
        let channel = Channel::from_shared(endpoint).unwrap().connect().await.unwrap();
        Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel),
        }
    }

    async fn keep_alive(
        &mut self,
        ask: pb::LeaseKeepAliveRequest,
    ) -> Result<pb::LeaseKeepAliveResponse, tonic::Status> {
        let asks = tokio_stream::once(ask);
        let mut answers = self.lease.lease_keep_alive(asks).await?.into_inner();
        answers
            .message()
            .await?
            .ok_or_else(|| tonic::Status::unknown("the stream ended without an answer"))
    }
}

impl Target for Grpc {
    async fn call(&mut self, request: Request) -> Answer {
        let answer = match request {
            Request::Range(range) => self.kv.range(range).await.map(|r| Response::Range(r.into_inner())),
            Request::Put(put) => self.kv.put(put).await.map(|r| Response::Put(r.into_inner())),
            Request::Delete(delete) => self
                .kv
                .delete_range(delete)
                .await
                .map(|r| Response::Delete(r.into_inner())),
            Request::Txn(txn) => self.kv.txn(txn).await.map(|r| Response::Txn(r.into_inner())),
            Request::Compact(compact) => self
                .kv
                .compact(compact)
                .await
                .map(|r| Response::Compact(r.into_inner())),
            Request::Grant(grant) => self
                .lease
                .lease_grant(grant)
                .await
                .map(|r| Response::Grant(r.into_inner())),
            Request::Revoke(revoke) => self
                .lease
                .lease_revoke(revoke)
                .await
                .map(|r| Response::Revoke(r.into_inner())),
            Request::KeepAlive(ask) => self.keep_alive(ask).await.map(Response::KeepAlive),
            Request::TimeToLive(ask) => self
                .lease
                .lease_time_to_live(ask)
                .await
                .map(|r| Response::TimeToLive(r.into_inner())),
            Request::Leases(ask) => self
                .lease
                .lease_leases(ask)
                .await
                .map(|r| Response::Leases(r.into_inner())),
        };
        answer.map_err(Refusal::from)
    }
}
