//! The service `etcdserverpb.Cluster`: the configuration determines the members, not requests.

use tonic::{Request, Response, Status};

use super::auth::{Credentials, Guard};
use crate::cluster::forward::LeaderRouter;
use crate::cluster::members::Members;
use crate::errors::Error;
use crate::flags::url::Url;
use crate::mvcc::auth::Auth;
use crate::pb::etcdserverpb as pb;
use crate::types::{AuthError, Caller};

/// The service over the list of members.
#[derive(Debug, Clone)]
pub struct ClusterService {
    /// This member's id.
    pub id: u64,
    /// All members.
    pub members: Members,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The epoch, which is reported as etcd's raft term.
    pub epoch: std::sync::Arc<std::sync::atomic::AtomicU64>,
    /// The router to the leader, which a linearizable list needs.
    pub router: LeaderRouter,
    /// The users, and how clients are identified.
    pub guard: Guard,
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        let urls = &request.get_ref().peer_ur_ls;
        if urls.is_empty() || urls.iter().any(|url| Url::parse(url).is_err()) {
            return Err(Error::MemberBadUrls.into());
        }
        Err(Status::unimplemented(
            "etcdserver: members are those of --initial-cluster: start another one there",
        ))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        self.known(request.get_ref().id)?;
        Err(Status::unimplemented(
            "etcdserver: members are those of --initial-cluster: stop this one and take it out there",
        ))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        self.known(request.get_ref().id)?;
        Err(Status::unimplemented(
            "etcdserver: peer URLs are what --initial-advertise-peer-urls says",
        ))
    }

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.router.read_index().await?;
        }
        self.permit(&request, Auth::check_known).await?;
        // Like etcd's, this header carries no revision.
        let header = pb::ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id,
            revision: 0,
            raft_term: self.epoch.load(std::sync::atomic::Ordering::Relaxed),
        };
        Ok(Response::new(pb::MemberListResponse {
            header: Some(header),
            members: self.members.list(),
        }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        self.known(request.get_ref().id)?;
        Err(Error::MemberNotLearner.into())
    }
}

impl ClusterService {
    async fn permit<T>(
        &self,
        request: &Request<T>,
        check: impl FnOnce(&Auth, &Caller) -> Result<(), AuthError>,
    ) -> Result<(), Error> {
        if !self.guard.is_enabled() {
            return Ok(());
        }
        let caller = self.guard.identify_soon(&Credentials::of(request)).await?;
        Ok(check(&self.guard.load(), &caller)?)
    }

    fn known(&self, id: u64) -> Result<(), Error> {
        if self.members.list().iter().any(|member| member.id == id) {
            Ok(())
        } else {
            Err(Error::MemberNotFound)
        }
    }
}
