//! The service `etcdserverpb.Cluster`: who is a member is said by the configuration, not by requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tonic::{Request, Response, Status};

use super::elsewhere::Elsewhere;
use super::status::Error;
use crate::flags::url::Url;
use crate::pb::etcdserverpb as pb;

/// The members of the cluster, as far as they are known.
#[derive(Debug, Clone)]
pub struct Members(Arc<Known>);

#[derive(Debug)]
struct Known {
    members: watch::Sender<BTreeMap<u64, pb::Member>>,
    /// Somebody is looked for who is not among them.
    missed: Notify,
}

impl Members {
    /// These.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = pb::Member>) -> Self {
        let members = members.into_iter().map(|member| (member.id, member)).collect();
        Self(Arc::new(Known {
            members: watch::Sender::new(members),
            missed: Notify::new(),
        }))
    }

    /// All of them, by id.
    #[must_use]
    pub fn list(&self) -> Vec<pb::Member> {
        self.0.members.borrow().values().cloned().collect()
    }

    /// Follows who is known.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<BTreeMap<u64, pb::Member>> {
        self.0.members.subscribe()
    }

    /// Whether there is such a member. One that is not known may have come just now: the rows are read for it, which may
    /// take so long.
    pub async fn has(&self, id: u64, look: Duration) -> bool {
        let mut members = self.watch();
        if members.borrow().contains_key(&id) {
            return true;
        }
        self.0.missed.notify_one();
        let found = members.wait_for(|members| members.contains_key(&id));
        matches!(tokio::time::timeout(look, found).await, Ok(Ok(_)))
    }

    /// Waits until somebody is looked for who is not known.
    pub async fn asked_for(&self) {
        self.0.missed.notified().await;
    }

    /// These, and nobody else.
    pub fn replace(&self, members: impl IntoIterator<Item = pb::Member>) {
        let members: BTreeMap<u64, pb::Member> = members.into_iter().map(|member| (member.id, member)).collect();
        self.0.members.send_if_modified(|known| {
            let changed = *known != members;
            *known = members;
            changed
        });
    }

    /// Notes what a member says of itself, or of others. Who never started has no name: that is known better elsewhere.
    pub fn learn(&self, members: impl IntoIterator<Item = pb::Member>) {
        self.0.members.send_if_modified(|known| {
            let mut changed = false;
            for member in members {
                if member.name.is_empty() && known.contains_key(&member.id) {
                    continue;
                }
                changed |= known.get(&member.id) != Some(&member);
                known.insert(member.id, member);
            }
            changed
        });
    }
}

/// The service over what is known of the members.
#[derive(Debug, Clone)]
pub struct ClusterService {
    /// This member's id.
    pub id: u64,
    /// All members.
    pub members: Members,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The epoch, which takes the place of etcd's raft term.
    pub epoch: std::sync::Arc<std::sync::atomic::AtomicU64>,
    /// Who leads: a linearizable list needs somebody who does.
    pub elsewhere: Elsewhere,
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
            "etcdserver: members are those of --initial-cluster: start another one there",
        ))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.known(request.get_ref().id)?;
        Err(Status::unimplemented(
            "etcdserver: members are those of --initial-cluster: stop this one and take it out there",
        ))
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

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.elsewhere.read_index().await?;
        }
        // Like etcd's, this header has no revision.
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
        self.known(request.get_ref().id)?;
        Err(Error::MemberNotLearner.into())
    }
}

impl ClusterService {
    fn known(&self, id: u64) -> Result<(), Error> {
        if self.members.list().iter().any(|member| member.id == id) {
            Ok(())
        } else {
            Err(Error::MemberNotFound)
        }
    }
}
