// Copyright 2018 TiKV Project Authors. Licensed under Apache-2.0.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use async_trait::async_trait;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::StreamExt;
use log::error;
use log::info;
use log::warn;
use tonic::transport::Channel;
use tonic::IntoRequest;
use tonic::Request;

use super::timestamp::TimestampOracle;
use crate::common::SecurityManager;
use crate::internal_err;
use crate::proto::pdpb;
use crate::Result;
use crate::Timestamp;

/// A PD cluster.
pub struct Cluster {
    id: u64,
    client: pdpb::pd_client::PdClient<Channel>,
    members: pdpb::GetMembersResponse,
    tso: TimestampOracle,
}

macro_rules! pd_request {
    ($cluster_id:expr, $type:ty) => {{
        let mut request = <$type>::default();
        let header = pdpb::RequestHeader {
            cluster_id: $cluster_id,
            ..Default::default()
        };
        request.header = Some(header);
        request
    }};
}

// These methods make a single attempt to make a request.
impl Cluster {
    pub(crate) async fn get_region(&self, key: Vec<u8>, timeout: Duration) -> Result<pdpb::GetRegionResponse> {
        let mut req = pd_request!(self.id, pdpb::GetRegionRequest);
        req.region_key = key;
        req.send(self.client.clone(), timeout).await
    }

    pub(crate) async fn get_store(&self, id: u64, timeout: Duration) -> Result<pdpb::GetStoreResponse> {
        let mut req = pd_request!(self.id, pdpb::GetStoreRequest);
        req.store_id = id;
        req.send(self.client.clone(), timeout).await
    }

    pub(crate) async fn get_all_stores(&self, timeout: Duration) -> Result<pdpb::GetAllStoresResponse> {
        let req = pd_request!(self.id, pdpb::GetAllStoresRequest);
        req.send(self.client.clone(), timeout).await
    }

    pub(crate) async fn get_timestamp(&self, timeout: Duration) -> Result<Timestamp> {
        tokio::time::timeout(timeout, self.tso.clone().get_timestamp())
            .await
            .map_err(|_| internal_err!("PD gave no timestamp within {:?}", timeout))?
    }

    pub(crate) async fn update_safepoint(
        &self,
        safepoint: u64,
        timeout: Duration,
    ) -> Result<pdpb::UpdateGcSafePointResponse> {
        let mut req = pd_request!(self.id, pdpb::UpdateGcSafePointRequest);
        req.safe_point = safepoint;
        req.send(self.client.clone(), timeout).await
    }
}

/// An object for connecting and reconnecting to a PD cluster.
pub(crate) struct Connection {
    security_mgr: Arc<SecurityManager>,
}

impl Connection {
    pub(crate) fn new(security_mgr: Arc<SecurityManager>) -> Connection {
        Connection { security_mgr }
    }

    pub(crate) async fn connect_cluster(&self, endpoints: &[String], timeout: Duration) -> Result<Cluster> {
        let members = self.validate_endpoints(endpoints, timeout).await?;
        let (client, members) = self.try_connect_leader(&members, timeout).await?;
        let id = cluster_id(&members)?;
        let tso = TimestampOracle::new(id, &client)?;
        let cluster = Cluster {
            id,
            client,
            members,
            tso,
        };
        Ok(cluster)
    }

    // Re-establish connection with PD leader in asynchronous fashion.
    pub(crate) async fn reconnect(&self, cluster: &mut Cluster, timeout: Duration) -> Result<()> {
        warn!("updating pd client");
        let start = Instant::now();
        let (client, members) = self.try_connect_leader(&cluster.members, timeout).await?;
        let tso = TimestampOracle::new(cluster.id, &client)?;
        *cluster = Cluster {
            id: cluster.id,
            client,
            members,
            tso,
        };

        info!("updating PD client done, spent {:?}", start.elapsed());
        Ok(())
    }

    async fn validate_endpoints(&self, endpoints: &[String], timeout: Duration) -> Result<pdpb::GetMembersResponse> {
        let mut endpoints_set = HashSet::with_capacity(endpoints.len());

        for ep in endpoints {
            if !endpoints_set.insert(ep) {
                return Err(internal_err!("duplicated PD endpoint {}", ep));
            }
        }

        let mut members = None;
        let mut cluster_id = None;
        // All at once: one that is silent costs its time only once.
        let connected = join_all(endpoints.iter().map(|ep| self.connect(ep, timeout))).await;
        for (ep, connected) in endpoints.iter().zip(connected) {
            let (_, resp) = match connected {
                Ok(resp) => resp,
                // Ignore failed PD node.
                Err(e) => {
                    warn!("PD endpoint {} failed to respond: {:?}", ep, e);
                    continue;
                }
            };

            // Check cluster ID.
            let cid = self::cluster_id(&resp)?;
            if let Some(sample) = cluster_id {
                if sample != cid {
                    return Err(internal_err!(
                        "PD response cluster_id mismatch, want {}, got {}",
                        sample,
                        cid
                    ));
                }
            } else {
                cluster_id = Some(cid);
            }

            if members.is_none() {
                members = Some(resp);
            }
        }

        match members {
            Some(members) => {
                info!("All PD endpoints are consistent: {:?}", endpoints);
                Ok(members)
            }
            _ => Err(internal_err!("PD cluster failed to respond")),
        }
    }

    async fn connect(
        &self,
        addr: &str,
        timeout: Duration,
    ) -> Result<(pdpb::pd_client::PdClient<Channel>, pdpb::GetMembersResponse)> {
        tokio::time::timeout(timeout, self.connect_in_time(addr, timeout))
            .await
            .map_err(|_| internal_err!("PD endpoint {} did not answer within {:?}", addr, timeout))?
    }

    async fn connect_in_time(
        &self,
        addr: &str,
        timeout: Duration,
    ) -> Result<(pdpb::pd_client::PdClient<Channel>, pdpb::GetMembersResponse)> {
        let mut client = self
            .security_mgr
            .connect(addr, timeout, pdpb::pd_client::PdClient::new)
            .await?;
        let resp: pdpb::GetMembersResponse = client
            .get_members(pdpb::GetMembersRequest::default())
            .await?
            .into_inner();
        check_header(resp.header.as_ref())?;
        if resp.leader.is_none() {
            return Err(internal_err!("unexpected no PD leader in get member resp: {:?}", resp));
        }
        Ok((client, resp))
    }

    async fn try_connect(
        &self,
        addr: &str,
        cluster_id: u64,
        timeout: Duration,
    ) -> Result<(pdpb::pd_client::PdClient<Channel>, pdpb::GetMembersResponse)> {
        let (client, r) = self.connect(addr, timeout).await?;
        Connection::validate_cluster_id(addr, &r, cluster_id)?;
        Ok((client, r))
    }

    fn validate_cluster_id(addr: &str, members: &pdpb::GetMembersResponse, cluster_id: u64) -> Result<()> {
        let new_cluster_id = self::cluster_id(members)?;
        if new_cluster_id != cluster_id {
            Err(internal_err!(
                "{} no longer belongs to cluster {}, it is in {}",
                addr,
                cluster_id,
                new_cluster_id
            ))
        } else {
            Ok(())
        }
    }

    async fn try_connect_leader(
        &self,
        previous: &pdpb::GetMembersResponse,
        timeout: Duration,
    ) -> Result<(pdpb::pd_client::PdClient<Channel>, pdpb::GetMembersResponse)> {
        let previous_leader = previous.leader.as_ref();
        let members = &previous.members;
        let cluster_id = self::cluster_id(previous)?;

        // Ask all members at once, the previous leader last: the first answer counts, and who is silent holds up nobody.
        let mut answers: FuturesUnordered<_> = members
            .iter()
            .filter(|m| Some(*m) != previous_leader)
            .chain(previous_leader)
            .flat_map(|m| &m.client_urls)
            .map(|ep| async move { (ep, self.try_connect(ep.as_str(), cluster_id, timeout).await) })
            .collect();

        // A member that does not know of the last election names a leader that may be gone: then the next answer counts.
        let mut tried = HashSet::new();
        while let Some((ep, answer)) = answers.next().await {
            let resp = match answer {
                Ok((_, resp)) => resp,
                Err(e) => {
                    error!("failed to connect to {}, {:?}", ep, e);
                    continue;
                }
            };

            // Then try to connect the PD cluster leader.
            let leader = resp
                .leader
                .as_ref()
                .ok_or_else(|| internal_err!("no leader found in GetMembersResponse"))?;

            for ep in &leader.client_urls {
                if !tried.insert(ep.clone()) {
                    continue;
                }
                if let Ok((client, members)) = self.try_connect(ep.as_str(), cluster_id, timeout).await {
                    // Who is named may lead no longer, and knows it.
                    if members.leader.as_ref().map(|own| own.member_id) == Some(leader.member_id) {
                        return Ok((client, members));
                    }
                }
            }
        }

        Err(internal_err!("failed to connect to {:?}", members))
    }
}

/// Returns the header of an answer of PD, or the error in it.
fn check_header(header: Option<&pdpb::ResponseHeader>) -> Result<&pdpb::ResponseHeader> {
    let header = header.ok_or_else(|| internal_err!("PD answers without a header"))?;
    match &header.error {
        Some(err) => Err(internal_err!("PD answers with an error: {}", err.message)),
        None => Ok(header),
    }
}

fn cluster_id(members: &pdpb::GetMembersResponse) -> Result<u64> {
    Ok(check_header(members.header.as_ref())?.cluster_id)
}

type GrpcResult<T> = std::result::Result<T, tonic::Status>;

#[async_trait]
trait PdMessage: Sized {
    type Client: Send;
    type Response: PdResponse;

    async fn rpc(req: Request<Self>, client: &mut Self::Client) -> GrpcResult<Self::Response>;

    async fn send(self, mut client: Self::Client, timeout: Duration) -> Result<Self::Response> {
        let mut req = self.into_request();
        req.set_timeout(timeout);
        let response = Self::rpc(req, &mut client).await?;
        check_header(response.header())?;
        Ok(response)
    }
}

#[async_trait]
impl PdMessage for pdpb::GetRegionRequest {
    type Client = pdpb::pd_client::PdClient<Channel>;
    type Response = pdpb::GetRegionResponse;

    async fn rpc(req: Request<Self>, client: &mut Self::Client) -> GrpcResult<Self::Response> {
        Ok(client.get_region(req).await?.into_inner())
    }
}

#[async_trait]
impl PdMessage for pdpb::GetStoreRequest {
    type Client = pdpb::pd_client::PdClient<Channel>;
    type Response = pdpb::GetStoreResponse;

    async fn rpc(req: Request<Self>, client: &mut Self::Client) -> GrpcResult<Self::Response> {
        Ok(client.get_store(req).await?.into_inner())
    }
}

#[async_trait]
impl PdMessage for pdpb::GetAllStoresRequest {
    type Client = pdpb::pd_client::PdClient<Channel>;
    type Response = pdpb::GetAllStoresResponse;

    async fn rpc(req: Request<Self>, client: &mut Self::Client) -> GrpcResult<Self::Response> {
        Ok(client.get_all_stores(req).await?.into_inner())
    }
}

#[async_trait]
impl PdMessage for pdpb::UpdateGcSafePointRequest {
    type Client = pdpb::pd_client::PdClient<Channel>;
    type Response = pdpb::UpdateGcSafePointResponse;

    async fn rpc(req: Request<Self>, client: &mut Self::Client) -> GrpcResult<Self::Response> {
        Ok(client.update_gc_safe_point(req).await?.into_inner())
    }
}

trait PdResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader>;
}

impl PdResponse for pdpb::GetStoreResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader> {
        self.header.as_ref()
    }
}

impl PdResponse for pdpb::GetRegionResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader> {
        self.header.as_ref()
    }
}

impl PdResponse for pdpb::GetAllStoresResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader> {
        self.header.as_ref()
    }
}

impl PdResponse for pdpb::UpdateGcSafePointResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader> {
        self.header.as_ref()
    }
}
