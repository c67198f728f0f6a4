//! The service `etcdserverpb.Cluster` of a cluster of one.

use tonic::{Request, Response, Status};

use super::status::Error;
use crate::flags::url::Url;
use crate::pb::etcdserverpb as pb;

/// The service of the only member.
#[derive(Debug, Clone)]
pub struct ClusterService {
    /// The member. Its id is the one in headers.
    pub member: pb::Member,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The epoch, which takes the place of etcd's raft term.
    pub epoch: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        let urls = &request.get_ref().peer_ur_ls;
        if urls.is_empty() || urls.iter().any(|url| Url::parse(url).is_err()) {
            return Err(Error::MemberBadUrls.into());
        }
        Err(Status::unimplemented(
            "etcdserver: an embedded store has one member: it cannot be joined by another",
        ))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.known(request.get_ref().id)?;
        Err(Status::unimplemented("etcdserver: the only member cannot be removed"))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.known(request.get_ref().id)?;
        Err(Status::unimplemented(
            "etcdserver: peer URLs are what --initial-advertise-peer-urls says",
        ))
    }

    async fn member_list(&self, _: Request<pb::MemberListRequest>) -> Result<Response<pb::MemberListResponse>, Status> {
        // Like etcd's, this header has no revision.
        let header = pb::ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member.id,
            revision: 0,
            raft_term: self.epoch.load(std::sync::atomic::Ordering::Relaxed),
        };
        Ok(Response::new(pb::MemberListResponse {
            header: Some(header),
            members: vec![self.member.clone()],
        }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.known(request.get_ref().id)?;
        Err(Error::MemberNotLearner.into())
    }
}

impl ClusterService {
    fn known(&self, id: u64) -> Result<(), Error> {
        if id == self.member.id {
            Ok(())
        } else {
            Err(Error::MemberNotFound)
        }
    }
}
