//! The gRPC services of PD, as far as clients call them: members, timestamps, regions, stores, safe points,
//! keyspaces.

use futures::stream::{BoxStream, StreamExt, TryStreamExt, try_unfold};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::answer::{Command, answer};
use super::gc;
use super::shared::{Process, pd_process};
use crate::faults::Action;
use crate::proto::keyspacepb::keyspace_server::Keyspace;
use crate::proto::keyspacepb::{LoadKeyspaceRequest, LoadKeyspaceResponse};
use crate::proto::kvrpcpb::Context;
use crate::proto::pdpb::pd_server::Pd;
use crate::proto::pdpb::{self, ErrorType};
use crate::proto::{errorpb, metapb};
use crate::regions::Region;
use crate::rpc::Rpc;
use crate::tso;

/// Answers on a stream of timestamps that are late at the same time.
const MAX_TSO_IN_FLIGHT: usize = 1024;

/// The version that the stores claim.
const TIKV_VERSION: &str = "8.5.0";

type PdAnswer<R> = Result<Response<R>, Status>;

#[derive(Clone, Debug)]
pub(crate) struct PdServer(pub(crate) Process);

fn header(at: &Process) -> Option<pdpb::ResponseHeader> {
    Some(pdpb::ResponseHeader {
        cluster_id: at.shared.cluster_id,
        error: None,
    })
}

fn failed(at: &Process, r#type: ErrorType, message: String) -> Option<pdpb::ResponseHeader> {
    let error = pdpb::Error {
        r#type: r#type.into(),
        message,
    };
    Some(pdpb::ResponseHeader {
        cluster_id: at.shared.cluster_id,
        error: Some(error),
    })
}

/// PD refuses clients that mean another cluster, and only its leader answers.
fn check_cluster(at: &Process, header: Option<&pdpb::RequestHeader>) -> Result<(), Status> {
    if !at.shared.pd_members.leads(at.id) {
        return Err(Status::unavailable("not leader"));
    }
    let meant = header.map_or(0, |header| header.cluster_id);
    let ours = at.shared.cluster_id;
    if meant == ours {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "mismatch cluster id, need {ours} but got {meant}"
    )))
}

fn of_region(at: &Process, region: &Region) -> pdpb::GetRegionResponse {
    let (leader, region) = (region.leader_peer(), Some(region.to_wire()));
    pdpb::GetRegionResponse {
        header: header(at),
        region,
        leader,
        ..Default::default()
    }
}

fn store(at: &Process, id: u64) -> metapb::Store {
    metapb::Store {
        id,
        address: at.shared.address(id),
        version: TIKV_VERSION.to_owned(),
        ..Default::default()
    }
}

macro_rules! pd_command {
    ($rpc:ident, $request:ty => $reply:ty, |$this:ident, $at:ident| $body:block) => {
        impl Command for $request {
            type Reply = $reply;
            const RPC: Rpc = Rpc::$rpc;

            fn touches(&self, _: &[u8]) -> bool {
                false
            }

            fn context(&self) -> Option<&Context> {
                None
            }

            fn refused(_: Box<errorpb::Error>) -> Option<$reply> {
                None
            }

            async fn run(self, at: Process) -> Result<$reply, Status> {
                let ($this, $at) = (self, &at);
                $body
            }
        }
    };
}

pd_command!(GetMembers, pdpb::GetMembersRequest => pdpb::GetMembersResponse, |_request, at| {
    let all: Vec<u64> = (0..at.shared.pd_members.number).map(pd_process).collect();
    let member = |&process: &u64| pdpb::Member {
        name: format!("mock-{process}"),
        member_id: process + 1,
        client_urls: vec![at.shared.address(process)],
        ..Default::default()
    };
    let leader = at.shared.pd_members.leader_by(at.id).as_ref().map(member);
    Ok(pdpb::GetMembersResponse {
        header: header(at),
        members: all.iter().map(member).collect(),
        leader: leader.clone(),
        etcd_leader: leader,
        ..Default::default()
    })
});

pd_command!(GetRegion, pdpb::GetRegionRequest => pdpb::GetRegionResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    Ok(of_region(at, at.shared.engine.read().regions.by_encoded_key(&request.region_key)))
});

pd_command!(GetRegionById, pdpb::GetRegionByIdRequest => pdpb::GetRegionResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let tables = at.shared.engine.read();
    let none = pdpb::GetRegionResponse { header: header(at), ..Default::default() };
    Ok(tables.regions.by_id(request.region_id).map_or(none, |region| of_region(at, region)))
});

pd_command!(GetStore, pdpb::GetStoreRequest => pdpb::GetStoreResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let id = request.store_id;
    if !at.shared.engine.read().regions.stores.contains(&id) {
        let header = failed(at, ErrorType::Unknown, format!("invalid store ID {id}, not found"));
        return Ok(pdpb::GetStoreResponse { header, ..Default::default() });
    }
    Ok(pdpb::GetStoreResponse { header: header(at), store: Some(store(at, id)), ..Default::default() })
});

pd_command!(GetAllStores, pdpb::GetAllStoresRequest => pdpb::GetAllStoresResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let ids = at.shared.engine.read().regions.stores.clone();
    let stores = ids.into_iter().map(|id| store(at, id)).collect();
    Ok(pdpb::GetAllStoresResponse { header: header(at), stores })
});

pd_command!(ScanRegions, pdpb::ScanRegionsRequest => pdpb::ScanRegionsResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let limit = usize::try_from(request.limit).ok().filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    let tables = at.shared.engine.read();
    let listed = tables.regions.by_encoded_range(&request.start_key, &request.end_key).take(limit);
    let regions = listed.map(|region| pdpb::Region {
        region: Some(region.to_wire()),
        leader: region.leader_peer(),
        ..Default::default()
    });
    Ok(pdpb::ScanRegionsResponse { header: header(at), regions: regions.collect(), ..Default::default() })
});

pd_command!(UpdateGcSafePoint, pdpb::UpdateGcSafePointRequest => pdpb::UpdateGcSafePointResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    at.shared.gc.check_update(request.safe_point).map_err(Status::unknown)?;
    let new_safe_point = gc::collect(at, request.safe_point).await?;
    Ok(pdpb::UpdateGcSafePointResponse { header: header(at), new_safe_point })
});

pd_command!(UpdateServiceGcSafePoint, pdpb::UpdateServiceGcSafePointRequest => pdpb::UpdateServiceGcSafePointResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let id = String::from_utf8_lossy(&request.service_id);
    let (lowest, min_safe_point) = at.shared.gc.update_service(&id, request.safe_point)?;
    Ok(pdpb::UpdateServiceGcSafePointResponse {
        header: header(at),
        service_id: lowest.into(),
        ttl: i64::MAX,
        min_safe_point,
    })
});

pd_command!(AdvanceTxnSafePoint, pdpb::AdvanceTxnSafePointRequest => pdpb::AdvanceTxnSafePointResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let advanced = at.shared.gc.advance_txn(request.target)?;
    let refused = |text| pdpb::AdvanceTxnSafePointResponse {
        header: failed(at, ErrorType::Unknown, text),
        ..Default::default()
    };
    Ok(match advanced {
        Ok(advanced) => pdpb::AdvanceTxnSafePointResponse { header: header(at), ..advanced },
        Err(text) => refused(text),
    })
});

pd_command!(AdvanceGcSafePoint, pdpb::AdvanceGcSafePointRequest => pdpb::AdvanceGcSafePointResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let old_gc_safe_point = at.shared.engine.read().safe_point;
    if let Err(text) = at.shared.gc.check_advance(old_gc_safe_point, request.target)? {
        let header = failed(at, ErrorType::Unknown, text);
        return Ok(pdpb::AdvanceGcSafePointResponse { header, ..Default::default() });
    }
    let new_gc_safe_point = gc::collect(at, request.target).await?;
    Ok(pdpb::AdvanceGcSafePointResponse { header: header(at), old_gc_safe_point, new_gc_safe_point })
});

pd_command!(LoadKeyspace, LoadKeyspaceRequest => LoadKeyspaceResponse, |request, at| {
    check_cluster(at, request.header.as_ref())?;
    let header = failed(at, ErrorType::EntryNotFound, format!("keyspace {} does not exist", request.name));
    Ok(LoadKeyspaceResponse { header, keyspace: None })
});

/// One message of the stream of timestamps; none when it is lost.
async fn timestamps(at: &Process, request: &pdpb::TsoRequest) -> Result<Option<pdpb::TsoResponse>, Status> {
    check_cluster(at, request.header.as_ref())?;
    at.shared.counters.count(Rpc::Tso);
    at.running().await;
    let give = async || -> Result<_, Status> {
        let (physical, logical) = tso::parts(at.shared.tso.allocate(&at.shared.engine, request.count).await?);
        let timestamp = Some(pdpb::Timestamp {
            physical,
            logical,
            suffix_bits: 0,
        });
        Ok(Some(pdpb::TsoResponse {
            header: header(at),
            count: request.count,
            timestamp,
        }))
    };
    let lost = |silent: bool| match silent {
        true => Ok(None),
        false => Err(Status::unavailable("the message was lost, by command")),
    };
    let reply = match at.shared.faults.draw(Rpc::Tso, at.id, |_| false, || 0) {
        None => give().await?,
        Some(Action::LoseRequest { silent }) => lost(silent)?,
        Some(Action::LoseReply { silent }) => {
            give().await?;
            lost(silent)?
        }
        Some(Action::DelayRequest { by }) => {
            tokio::time::sleep(by).await;
            give().await?
        }
        Some(Action::DelayReply { by }) => {
            let reply = give().await?;
            tokio::time::sleep(by).await;
            reply
        }
        Some(other) => return Err(Status::internal(format!("{other:?} cannot happen to a stream"))),
    };
    at.running().await;
    Ok(reply)
}

type TsoRequests = Streaming<pdpb::TsoRequest>;

async fn next_timestamps(
    (at, mut inbound): (Process, TsoRequests),
) -> Result<Option<(pdpb::TsoResponse, (Process, TsoRequests))>, Status> {
    while let Some(request) = inbound.message().await? {
        if let Some(reply) = timestamps(&at, &request).await? {
            return Ok(Some((reply, (at, inbound))));
        }
    }
    Ok(None)
}

#[tonic::async_trait]
impl Pd for PdServer {
    async fn get_members(&self, request: Request<pdpb::GetMembersRequest>) -> PdAnswer<pdpb::GetMembersResponse> {
        answer(&self.0, request).await
    }

    async fn tso(
        &self,
        request: Request<TsoRequests>,
    ) -> PdAnswer<BoxStream<'static, Result<pdpb::TsoResponse, Status>>> {
        let replies = try_unfold((self.0.clone(), request.into_inner()), next_timestamps);
        // Later messages do not wait for the delay of earlier ones, but no answer overtakes another.
        let at = self.0.clone();
        let late = replies.map_ok(move |reply| {
            let due = Instant::now() + at.shared.delays.draw(at.id);
            async move {
                tokio::time::sleep_until(due).await;
                Ok::<_, Status>(reply)
            }
        });
        Ok(Response::new(late.try_buffered(MAX_TSO_IN_FLIGHT).boxed()))
    }

    async fn get_region(&self, request: Request<pdpb::GetRegionRequest>) -> PdAnswer<pdpb::GetRegionResponse> {
        answer(&self.0, request).await
    }

    async fn get_region_by_id(
        &self,
        request: Request<pdpb::GetRegionByIdRequest>,
    ) -> PdAnswer<pdpb::GetRegionResponse> {
        answer(&self.0, request).await
    }

    async fn get_store(&self, request: Request<pdpb::GetStoreRequest>) -> PdAnswer<pdpb::GetStoreResponse> {
        answer(&self.0, request).await
    }

    async fn get_all_stores(
        &self,
        request: Request<pdpb::GetAllStoresRequest>,
    ) -> PdAnswer<pdpb::GetAllStoresResponse> {
        answer(&self.0, request).await
    }

    async fn update_gc_safe_point(
        &self,
        request: Request<pdpb::UpdateGcSafePointRequest>,
    ) -> PdAnswer<pdpb::UpdateGcSafePointResponse> {
        answer(&self.0, request).await
    }

    async fn scan_regions(&self, request: Request<pdpb::ScanRegionsRequest>) -> PdAnswer<pdpb::ScanRegionsResponse> {
        answer(&self.0, request).await
    }

    async fn update_service_gc_safe_point(
        &self,
        request: Request<pdpb::UpdateServiceGcSafePointRequest>,
    ) -> PdAnswer<pdpb::UpdateServiceGcSafePointResponse> {
        answer(&self.0, request).await
    }

    async fn advance_txn_safe_point(
        &self,
        request: Request<pdpb::AdvanceTxnSafePointRequest>,
    ) -> PdAnswer<pdpb::AdvanceTxnSafePointResponse> {
        answer(&self.0, request).await
    }

    async fn advance_gc_safe_point(
        &self,
        request: Request<pdpb::AdvanceGcSafePointRequest>,
    ) -> PdAnswer<pdpb::AdvanceGcSafePointResponse> {
        answer(&self.0, request).await
    }
}

#[tonic::async_trait]
impl Keyspace for PdServer {
    async fn load_keyspace(&self, request: Request<LoadKeyspaceRequest>) -> PdAnswer<LoadKeyspaceResponse> {
        answer(&self.0, request).await
    }
}
