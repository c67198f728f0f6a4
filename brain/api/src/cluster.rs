//! The service `etcdserverpb.Cluster`: the configuration determines the members, not requests. Only members that are gone are removed by
//! request.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::auth::{Credentials, Guard};
use cluster::forward::LeaderRouter;
use cluster::members::Members;
use cluster::membership::{RemoveError, RemoveMember};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::Caller;
use etcd_types::url::Url;
use mvcc::auth::Auth;

/// The service over the list of members.
#[derive(Clone)]
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
    /// Removes members that are gone; `None` if there is only one member.
    pub remove: Option<Arc<dyn RemoveMember>>,
}

impl std::fmt::Debug for ClusterService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterService")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        // As in etcd, before the client is identified.
        let urls = peer_urls(&request.get_ref().peer_ur_ls)?;
        self.permit(&request, Auth::check_admin).await?;
        check_add(&self.members.list(), &urls)?;
        Err(Status::unimplemented(
            "etcdserver: members are those of --initial-cluster: add the member there",
        ))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        let id = request.get_ref().id;
        self.known(id)?;
        if self.members.list().len() == 1 {
            // Etcd does not map this one to its own code, and clients go by the text.
            return Err(Status::unknown(Status::from(Error::MemberNotEnoughStarted).message()));
        }
        let configured = || {
            Status::unimplemented(
                "etcdserver: members are those of --initial-cluster: stop the member and remove it there",
            )
        };
        let remove = self.remove.as_ref().ok_or_else(configured)?;
        remove.remove(id).await.map_err(|error| match error {
            RemoveError::Unknown => Error::MemberNotFound.into(),
            RemoveError::Configured => configured(),
            RemoveError::Running => {
                Status::failed_precondition("etcdserver: the member is running: stop it, then remove it")
            }
            RemoveError::Unreadable(error) => Status::failed_precondition(format!("etcdserver: {error}")),
            RemoveError::Unreachable(error) => {
                tracing::warn!(error = format!("{error:#}"), "could not remove a member");
                Error::Timeout.into()
            }
        })?;
        Ok(Response::new(pb::MemberRemoveResponse {
            header: Some(self.header()),
            members: self.members.list(),
        }))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.permit(&request, Auth::check_admin).await?;
        let pb::MemberUpdateRequest { id, peer_ur_ls } = request.get_ref();
        let members = self.members.list();
        if !check_update(&members, *id, peer_ur_ls)? {
            return Err(Status::unimplemented(
                "etcdserver: peer URLs are those of --initial-advertise-peer-urls",
            ));
        }
        Ok(Response::new(pb::MemberUpdateResponse {
            header: Some(self.header()),
            members,
        }))
    }

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.router.read_index().await?;
        }
        self.permit(&request, Auth::check_known).await?;
        Ok(Response::new(pb::MemberListResponse {
            header: Some(self.header()),
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
        check: impl FnOnce(&Auth, &Caller) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.guard.is_enabled() {
            return Ok(());
        }
        let caller = self.guard.identify_soon(&Credentials::of(request)).await?;
        check(&self.guard.load(), &caller)
    }

    /// Like etcd's, this header carries no revision.
    fn header(&self) -> pb::ResponseHeader {
        pb::ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id,
            revision: 0,
            raft_term: self.epoch.load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    fn known(&self, id: u64) -> Result<(), Error> {
        if self.members.list().iter().any(|member| member.id == id) {
            Ok(())
        } else {
            Err(Error::MemberNotFound)
        }
    }
}

/// Returns the peer URLs of a new member. At least one is required, as in etcd.
fn peer_urls(urls: &[String]) -> Result<Vec<Url>, Error> {
    let urls: Result<Vec<Url>, _> = urls.iter().map(|url| Url::parse(url)).collect();
    urls.ok().filter(|urls| !urls.is_empty()).ok_or(Error::MemberBadUrls)
}

/// Checks the peer URLs of a new member, as etcd does: no member has one of them.
fn check_add(members: &[pb::Member], urls: &[Url]) -> Result<(), Error> {
    match urls.iter().any(|url| members.iter().any(|member| has(member, url))) {
        true => Err(Error::PeerUrlExist),
        false => Ok(()),
    }
}

/// Checks new peer URLs of a member, as etcd does: there is such a member, and no other one has one of them. Returns true if it has
/// just these already. Etcd does not look whether they are URLs.
fn check_update(members: &[pb::Member], id: u64, urls: &[String]) -> Result<bool, Error> {
    let member = members.iter().find(|member| member.id == id);
    let member = member.ok_or(Error::MemberNotFound)?;
    let parsed: Vec<Url> = urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
    let others = || members.iter().filter(|other| other.id != id);
    if parsed.iter().any(|url| others().any(|other| has(other, url))) {
        return Err(Error::PeerUrlExist);
    }
    let is_same = parsed.len() == urls.len() && parsed.iter().all(|url| has(member, url));
    let is_whole = member
        .peer_ur_ls
        .iter()
        .all(|url| Url::parse(url).is_ok_and(|url| parsed.contains(&url)));
    Ok(is_same && is_whole)
}

fn has(member: &pb::Member, url: &Url) -> bool {
    member
        .peer_ur_ls
        .iter()
        .any(|listed| Url::parse(listed).is_ok_and(|listed| listed == *url))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<pb::Member> {
        let member = |id, urls: &[&str]| pb::Member {
            id,
            peer_ur_ls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..pb::Member::default()
        };
        vec![member(1, &["http://a:1", "http://a:2"]), member(2, &["http://b:1"])]
    }

    #[test]
    fn new_member_has_peer_urls_that_no_member_has() {
        let add = |urls: &[&str]| {
            let urls: Vec<_> = urls.iter().map(|url| (*url).to_owned()).collect();
            check_add(&members(), &peer_urls(&urls)?)
        };
        assert_eq!(add(&["http://c:1"]), Ok(()));
        assert_eq!(add(&["https://a:1"]), Ok(()));
        assert_eq!(add(&["http://c:1", "http://b:1"]), Err(Error::PeerUrlExist));
        assert_eq!(add(&["http://b:1", "nonsense"]), Err(Error::MemberBadUrls));
        assert_eq!(add(&[]), Err(Error::MemberBadUrls));
    }

    #[test]
    fn update_to_the_present_peer_urls_changes_nothing() {
        let update = |id, urls: &[&str]| {
            check_update(
                &members(),
                id,
                &urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(update(1, &["http://a:2", "http://a:1"]), Ok(true));
        assert_eq!(update(1, &["http://a:1"]), Ok(false));
        assert_eq!(update(1, &["http://a:1", "http://a:2", "http://c:1"]), Ok(false));
        assert_eq!(update(1, &["http://a:1", "http://a:2", "nonsense"]), Ok(false));
        assert_eq!(update(2, &[]), Ok(false));
        assert_eq!(update(2, &["http://a:1"]), Err(Error::PeerUrlExist));
        assert_eq!(update(3, &["http://b:1"]), Err(Error::MemberNotFound));
    }
}
