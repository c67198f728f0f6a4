//! The service `etcdserverpb.Lease`.

use std::pin::Pin;
use std::sync::Arc;

use async_stream::try_stream;
use bytes::Bytes;
use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use self::keep_alive::{KeepAlives, PendingKeepAlives, StreamRenewal, answered};
use super::auth::Credentials;
use super::context::{ApiContext, caller_of};
use super::kv::meter;
use super::leader_request::LeaderRequest;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::LeaseId;
use mvcc::auth::{Access, Auth};
use mvcc::lease::MAX_TTL;
use net::require_leader::{is_required, lost};
use runtime::clock::since_boot;
use runtime::tasks::Owned;
use store::alarm::{CORRUPT, NOSPACE};
use store::sequencer::command::Command;

mod keep_alive;

pub(super) use keep_alive::RenewLeasesRequest;

/// The service over a store.
pub struct LeaseService {
    store: ApiContext,
    keep_alives: Arc<KeepAlives>,
    has_leader: Option<watch::Receiver<bool>>,
}

/// The events that a stream of keep-alives waits for.
enum KeepAliveEvent {
    Request(Option<pb::LeaseKeepAliveRequest>),
    Renewed(StreamRenewal),
}

type RenewalTask = Owned<Result<StreamRenewal, Status>>;

#[tonic::async_trait]
impl pb::lease_server::Lease for LeaseService {
    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        self.store.forward(request).await
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        self.store.forward(request).await
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let told = is_required(request.metadata().as_ref());
        // Waits for the record of the token, if this member is behind.
        self.store.caller(&request).await?;
        let renewer = KeepAliveChecker {
            store: self.store.clone(),
            credentials: self.store.credentials(&request),
        };
        let has_leader = self.has_leader.clone().filter(|_| told);
        let mut requests = request.into_inner();
        let keep_alives = self.keep_alives.clone();
        let (metrics, stop) = (self.store.metrics.clone(), self.store.stop.clone());
        let answers = try_stream! {
        let (mut ahead, mut open) = (PendingKeepAlives::default(), true);
        let (mut renewing, mut refused): (Option<RenewalTask>, Option<Error>) = (None, None);
        while open || renewing.is_some() || !ahead.is_empty() {
        if renewing.is_none() && !ahead.is_empty() {
        renewing = Some(Owned::start(keep_alives.clone().renew_all(ahead.take())));
        }
        let renewed = async {
        match &mut renewing {
        Some(renewing) => {
        let ended = renewing.end().await;
        ended.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
        }
        None => std::future::pending().await,
        }
        };
        let next = tokio::select! {
        renewed = renewed => renewed.map(KeepAliveEvent::Renewed),
        request = requests.message(), if open && !ahead.is_full() => request.map(KeepAliveEvent::Request),
        () = stop.cancelled() => Err(Error::Stopped.into()),
        () = lost(has_leader.clone()) => Err(Error::NoLeader.into()),
        }?;
        match next {
        // Those of a lease that wait together are checked once.
        KeepAliveEvent::Request(Some(request)) if ahead.has(request.id) => ahead.add(request.id),
        KeepAliveEvent::Request(Some(request)) => match renewer.check(request.id).await {
        Ok(()) => ahead.add(request.id),
        // The earlier ones are answered first, as by etcd.
        Err(error) => (refused, open) = (Some(error), false),
        },
        KeepAliveEvent::Request(None) => open = false,
        KeepAliveEvent::Renewed(renewed) => {
        renewing = None;
        for (answer, times) in renewed.answers {
        for _ in 0..times {
        metrics.lease.renewed.inc_by(u64::from(answer.ttl > 0));
        yield answer;
        }
        }
        if let Some(status) = renewed.refused {
        Err(status)?;
        }
        }
        }
        }
        if let Some(error) = refused {
        Err(error)?;
        }
        };
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        self.store.forward(request).await
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        self.store.forward(request).await
    }
}

impl LeaseService {
    /// Creates the service. `has_leader` ends streams of keep-alives of clients that require a leader; it is `None` for other members.
    #[must_use]
    pub fn new(store: ApiContext, has_leader: Option<watch::Receiver<bool>>) -> Self {
        Self {
            keep_alives: Arc::new(KeepAlives::new(store.clone())),
            store,
            has_leader,
        }
    }

    /// Answers one keep-alive of a stream. Fails with etcd's status.
    pub async fn keep_alive(&self, request: pb::LeaseKeepAliveRequest) -> Result<pb::LeaseKeepAliveResponse, Status> {
        let answers = self.keep_alives.renew(&[request.id]).await?;
        answered(&answers, request.id)
    }
}

impl LeaderRequest for pb::LeaseGrantRequest {
    type Answer = pb::LeaseGrantResponse;
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseGrant";
    const IS_SMALL: bool = true;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::LeaseGrantResponse, Status> {
        let (caller, grant) = (caller_of(request), *request.get_ref());
        if let Err(error) = store.guard.load().check_known(&caller) {
            return Err(store.refuse(error).await);
        }
        if store.state.has_alarm(CORRUPT) {
            return Err(store.refuse(Error::Corrupt).await);
        }
        if store.state.has_alarm(NOSPACE) {
            return Err(store.refuse(Error::NoSpace).await);
        }
        if grant.ttl > MAX_TTL {
            return Err(Error::LeaseTtlTooLarge.into());
        }
        let ttl = grant.ttl.max(store.min_ttl);
        let id = if grant.id == 0 { free_id(store) } else { grant.id };
        let answer = store.propose(caller, Command::Grant(LeaseId(id), ttl), 64).await?;
        Ok(pb::LeaseGrantResponse {
            header: Some(store.header(answer.revision)),
            id,
            ttl,
            error: String::new(),
        })
    }
}

impl LeaderRequest for pb::LeaseRevokeRequest {
    type Answer = pb::LeaseRevokeResponse;
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseRevoke";
    const IS_SMALL: bool = true;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::LeaseRevokeResponse, Status> {
        let (caller, id) = (caller_of(request), LeaseId(request.get_ref().id));
        // An unknown client is refused before anything is read for it.
        if let Err(error) = store.guard.load().check_known(&caller) {
            return Err(store.refuse(error).await);
        }
        let answer = store
            .propose(caller, Command::Revoke { id, expired: false }, 64)
            .await?;
        Ok(pb::LeaseRevokeResponse {
            header: Some(store.header(answer.revision)),
        })
    }
}

impl LeaderRequest for pb::LeaseTimeToLiveRequest {
    type Answer = pb::LeaseTimeToLiveResponse;
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseTimeToLive";
    const IS_SMALL: bool = true;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::LeaseTimeToLiveResponse, Status> {
        let (caller, meter) = (caller_of(request), meter(request));
        let pb::LeaseTimeToLiveRequest { id, keys } = *request.get_ref();
        let leader_lease = store.router.lease();
        let header = Some(store.header(store.linearizable().await?.revision));
        let charge = |bytes: usize| meter.charge(bytes).map_err(|_| Status::from(Error::TooManyRequests));
        if keys {
            charge(store.state.leases().attached_count(LeaseId(id)) * ATTACHED_KEY_OVERHEAD_BYTES)?;
        }
        let info = store.state.leases().info(LeaseId(id), since_boot(), keys);
        // They are in memory twice when the answer is encoded.
        charge(2 * info.iter().flat_map(|info| &info.keys).map(Bytes::len).sum::<usize>())?;
        if store.guard.is_enabled() {
            store.guard.load().check_known(&caller)?;
            let keys = || info.iter().flat_map(|info| info.keys.iter().cloned());
            let checked = store.guard.load().check_lease(&caller, Access::Read, keys);
            if let Err(error) = checked {
                return Err(store.refuse(error).await);
            }
        }
        // The next leader receives keep-alives that this member never does.
        store.router.confirm_leadership(leader_lease).await?;
        Ok(match info {
            None => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..Default::default()
            },
            Some(info) => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: i64::try_from(info.remaining.as_secs()).unwrap_or(i64::MAX),
                granted_ttl: info.granted_ttl,
                keys: if keys { info.keys } else { Vec::new() },
            },
        })
    }
}

impl LeaderRequest for pb::LeaseLeasesRequest {
    type Answer = pb::LeaseLeasesResponse;
    const PATH: &'static str = "/etcdserverpb.Lease/LeaseLeases";
    const IS_SMALL: bool = true;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::LeaseLeasesResponse, Status> {
        let header = Some(store.header(store.linearizable().await?.revision));
        let ids: Vec<LeaseId> = store.state.leases().ids().collect();
        if store.guard.is_enabled() {
            let caller = caller_of(request);
            store.guard.load().check_known(&caller)?;
            // As in etcd: who may not read a key of one lease sees none.
            let is_admin = store.guard.load().check_admin(&caller).is_ok();
            for id in ids.iter().filter(|_| !is_admin) {
                let check = |page: Vec<Bytes>| store.guard.load().check_lease(&caller, Access::Read, || page);
                if let Err(error) = check_lease_keys(store, *id, check).await {
                    return Err(store.refuse(error).await);
                }
            }
        }
        let leases = ids.into_iter().map(|id| pb::LeaseStatus { id: id.0 }).collect();
        Ok(pb::LeaseLeasesResponse { header, leases })
    }
}

/// Returns a positive id that no lease has.
fn free_id(store: &ApiContext) -> i64 {
    let leases = store.state.leases();
    loop {
        let id = rand::random::<i64>() & i64::MAX;
        if id != 0 && !leases.contains(LeaseId(id)) {
            return id;
        }
    }
}

/// Checks the keep-alives of one client. Like etcd, the member that the client contacted does.
struct KeepAliveChecker {
    store: ApiContext,
    credentials: Credentials,
}

impl KeepAliveChecker {
    /// Checks that the client may put the keys of a lease.
    async fn check(&self, id: i64) -> Result<(), Error> {
        if self.store.router.is_forwarded() || !self.store.guard.is_enabled() {
            return Ok(());
        }
        // An administrator may put all of them.
        let is_admin = self.store.guard.check(&self.credentials, Auth::check_admin);
        if is_admin.is_ok() {
            return Ok(());
        }
        let check = |page| {
            self.store.guard.check(&self.credentials, |auth, caller| {
                auth.check_known(caller)?;
                auth.check_lease(caller, Access::Write, || page)
            })
        };
        check_lease_keys(&self.store, LeaseId(id), check).await
    }
}

/// Memory that a key of an answer takes beside its bytes.
const ATTACHED_KEY_OVERHEAD_BYTES: usize = 64;

/// Keys of a lease that are checked before others have their turn.
const CHECKED_KEYS_AT_ONCE: usize = 1_000;

/// Checks all keys of a lease, which may have a million, by calling `check` for a page at a time, and at least once.
async fn check_lease_keys(
    store: &ApiContext,
    id: LeaseId,
    check: impl Fn(Vec<Bytes>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut last: Option<Bytes> = None;
    loop {
        let page = store
            .state
            .leases()
            .attached_behind(id, last.as_ref(), CHECKED_KEYS_AT_ONCE);
        last = page.last().cloned().filter(|_| page.len() == CHECKED_KEYS_AT_ONCE);
        check(page)?;
        if last.is_none() {
            // There may be a million leases, too.
            tokio::task::coop::consume_budget().await;
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}
