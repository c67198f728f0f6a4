//! Forwards requests to the leader, if this member follows.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use engine::log::Slot;
use etcd_types::errors::Error;
use etcd_types::{REQUEST_TIMEOUT, request_timeout};
use telemetry::metrics::PeerMetrics;
use telemetry::otel::Tracing;

pub use read_index::ReadIndexBatcher;
pub use role::{LeaderClient, LeaderLease, Role};
pub use strict::{LaterLeader, StorageCheck};
use unsent::was_not_sent;

pub mod caller;
mod read_index;
mod role;
mod strict;
mod unsent;

/// The additional time that the answer to a patient request may take. A leader that is gone is noticed by pings.
const PATIENT_ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Routes requests to the leader: this member, or another one.
#[derive(Debug, Clone)]
pub struct LeaderRouter {
    role: watch::Receiver<Role>,
    /// The time for which a request waits for a leader, and for its answer.
    timeout: Duration,
    /// True if requests may be forwarded to another member.
    forwards: bool,
    /// The memory for requests that wait for a leader, or for its answer, in bytes. If it is used up, requests are refused.
    room: Arc<Semaphore>,
    /// The leader's check of storage for strict reads.
    strict: Option<StorageCheck>,
    tracing: Tracing,
    peers: PeerMetrics,
}

/// The bytes of requests that may wait for a leader or its answer.
const MAX_WAITING_BYTES: u32 = 128 << 20;

/// The memory of a request in addition to its own bytes.
const REQUEST_OVERHEAD_BYTES: usize = 1 << 10;

impl LeaderRouter {
    /// Creates a router that follows the role published by the sender.
    #[must_use]
    pub fn new(role: watch::Receiver<Role>) -> Self {
        Self {
            role,
            timeout: REQUEST_TIMEOUT,
            forwards: true,
            room: Arc::new(Semaphore::new(MAX_WAITING_BYTES as usize)),
            strict: None,
            tracing: Tracing::default(),
            peers: PeerMetrics::default(),
        }
    }

    /// Returns the same router for members whose lock lasts for `lease_duration`: requests wait for [`request_timeout`].
    #[must_use]
    pub fn with_lease_duration(self, lease_duration: Duration) -> Self {
        Self {
            timeout: request_timeout(lease_duration),
            ..self
        }
    }

    /// Returns the time for which a request waits.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the same router, with requests that the leader does not answer counted.
    #[must_use]
    pub fn measured(self, peers: PeerMetrics) -> Self {
        Self { peers, ..self }
    }

    /// Returns the same router, but with requests traced.
    #[must_use]
    pub fn traced(self, tracing: Tracing) -> Self {
        Self { tracing, ..self }
    }

    /// Returns the tracer of requests.
    #[must_use]
    pub fn tracing(&self) -> &Tracing {
        &self.tracing
    }

    /// Returns the same router, but with answers from the leader's memory confirmed by storage first.
    #[must_use]
    pub fn strict(self, check: StorageCheck) -> Self {
        Self {
            strict: Some(check),
            ..self
        }
    }

    /// Returns the same router for requests that another member has forwarded: they are not forwarded again.
    #[must_use]
    pub fn local_only(self) -> Self {
        Self {
            forwards: false,
            ..self
        }
    }

    /// Returns true if requests come from another member: they are not forwarded again.
    #[must_use]
    pub fn is_forwarded(&self) -> bool {
        !self.forwards
    }

    /// Returns a router for a single member: no other member can lead.
    #[must_use]
    pub fn single_member() -> Self {
        Self::new(watch::channel(Role::Leading(LeaderLease::unbounded())).1)
    }

    /// Returns true if no other member can lead.
    fn is_single_member(&self) -> bool {
        matches!(&*self.role.borrow(), Role::Leading(lease) if lease.is_unbounded())
    }

    /// Returns true if this member leads and its lease is valid.
    #[must_use]
    pub fn lease_valid(&self) -> bool {
        matches!(&*self.role.borrow(), Role::Leading(lease) if lease.holds(runtime::clock::since_boot()))
    }

    /// Returns the lease of this member's term, while it leads.
    #[must_use]
    pub fn lease(&self) -> Option<LeaderLease> {
        match &*self.role.borrow() {
            Role::Leading(lease) => Some(lease.clone()),
            _ => None,
        }
    }

    /// Waits until it is certain that no other member has led while this member held its lease: its memory was then the newest
    /// state up to this call. Fails with `not leader` if its term is over, or with `request timed out`.
    pub async fn confirm_leadership(&self, lease: Option<LeaderLease>) -> Result<(), Status> {
        let lease = lease.ok_or(Error::NotLeader)?;
        if lease.is_unbounded() {
            return Ok(());
        }
        let mut roles = self.role.clone();
        let waiting = async {
            loop {
                match &*roles.borrow_and_update() {
                    Role::Leading(now) if now.is(&lease) => {
                        if lease.holds(runtime::clock::since_boot()) {
                            return Ok(());
                        }
                    }
                    _ => return Err(Error::NotLeader),
                }
                // Lease extensions are not signalled, so poll.
                let pause = tokio::time::sleep(LEASE_POLL);
                tokio::select! {
                    changed = roles.changed() => changed.map_err(|_| Error::NotLeader)?,
                    () = pause => {}
                }
            }
        };
        let confirmed = async {
            waiting.await?;
            self.ask_storage(&lease).await
        };
        let confirmed = tokio::time::timeout(self.timeout, confirmed).await;
        Ok(confirmed.unwrap_or(Err(Error::Timeout))?)
    }

    /// With strict reads, checks in storage whether this member still led by this lease at the time of the call.
    async fn ask_storage(&self, lease: &LeaderLease) -> Result<(), Error> {
        let Some(check) = self.strict.as_ref().filter(|_| !lease.is_unbounded()) else {
            return Ok(());
        };
        check.ask().await?;
        // The check was for leaders later than the leader known here now.
        match self.lease() {
            Some(now) if now.is(lease) => Ok(()),
            _ => Err(Error::NotLeader),
        }
    }

    /// Subscribes to the role of this member.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// Returns the current role of this member.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Waits for a leader and returns a client for it; `None` means this member. Fails with `request timed out` if there is none
    /// for long, or with `server stopped`.
    pub async fn leader(&self) -> Result<Option<LeaderClient>, Status> {
        if !self.forwards {
            return match self.role() {
                Role::Leading(_) => Ok(None),
                _ => Err(Error::NotLeader.into()),
            };
        }
        match self.wait_for_role(|_| true).await? {
            Role::Following(leader) => Ok(Some(leader)),
            _ => Ok(None),
        }
    }

    /// Begins to forward a request. `is_patient` if its answer may take longer than [`Self::request_timeout`]: the leader ends the wait
    /// when it makes no progress. Fails with `too many requests`.
    pub fn attempts<Q: Message>(&self, request: &Q, is_patient: bool) -> Result<ForwardAttempts<'_>, Status> {
        let is_alone = self.is_single_member();
        let take_room = || {
            let bytes = request.encoded_len().saturating_add(REQUEST_OVERHEAD_BYTES);
            let bytes = u32::try_from(bytes).unwrap_or(MAX_WAITING_BYTES).min(MAX_WAITING_BYTES);
            self.room.try_acquire_many(bytes).map_err(|_| Error::TooManyRequests)
        };
        let room = (!is_alone).then(take_room).transpose()?;
        let deadline = Instant::now() + self.timeout;
        Ok(ForwardAttempts {
            router: self,
            is_alone,
            deadline,
            answered_by: if is_patient {
                deadline + PATIENT_ANSWER_TIMEOUT
            } else {
                deadline
            },
            asked: None,
            _room: room,
        })
    }

    /// Waits until everything that any member acknowledged before this call is committed below the returned slot; `None` means that
    /// this member knows all of it. Fails as [`LeaderRouter::leader`].
    pub async fn read_index(&self) -> Result<Option<Slot>, Status> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if !self.forwards {
                let lease = self.lease().filter(|lease| lease.holds(runtime::clock::since_boot()));
                self.ask_storage(&lease.ok_or(Error::NotLeader)?).await?;
                return Ok(None);
            }
            let holds = |role: &Role| match role {
                Role::Leading(lease) => lease.holds(runtime::clock::since_boot()),
                _ => true,
            };
            let leader = match self.wait_for_role(holds).await? {
                Role::Following(leader) => leader,
                Role::Leading(lease) => match self.ask_storage(&lease).await {
                    Err(Error::NotLeader) if Instant::now() < deadline => {
                        self.wait_for_change(None, deadline).await?;
                        continue;
                    }
                    confirmed => return Ok(confirmed.map(|()| None)?),
                },
                _ => return Ok(None),
            };
            match tokio::time::timeout_at(deadline, leader.reads.ask()).await {
                Ok(Some(slot)) => return Ok(Some(slot)),
                // The request was lost with its leader.
                Ok(None) => self.wait_for_change(Some(leader.member), deadline).await?,
                Err(_) => return Err(Error::Timeout.into()),
            }
        }
    }

    /// Waits until a member leads and its role fits.
    async fn wait_for_role(&self, fits: impl Fn(&Role) -> bool) -> Result<Role, Status> {
        {
            let role = self.role.borrow();
            match &*role {
                Role::Leading(_) | Role::Following(_) if fits(&role) => return Ok(role.clone()),
                Role::Stopped => return Err(Error::Stopped.into()),
                _ => {}
            }
        }
        let mut roles = self.role.clone();
        let waiting = async {
            loop {
                {
                    let role = roles.borrow_and_update();
                    match &*role {
                        Role::Leading(_) | Role::Following(_) if fits(&role) => return Ok(role.clone()),
                        Role::Stopped => return Err(Status::from(Error::Stopped)),
                        _ => {}
                    }
                }
                // Lease extensions are not signalled, so poll.
                let pause = tokio::time::sleep(LEASE_POLL);
                tokio::select! {
                    changed = roles.changed() => changed.map_err(|_| Status::from(Error::Stopped))?,
                    () = pause => {}
                }
            }
        };
        tokio::time::timeout(self.timeout, waiting)
            .await
            .unwrap_or_else(|_| Err(Error::Timeout.into()))
    }

    /// Waits until a member other than `member` (`None`: this one) leads, or a moment has passed.
    async fn wait_for_change(&self, member: Option<u64>, deadline: Instant) -> Result<(), Status> {
        let mut roles = self.role.clone();
        let other = roles.wait_for(|role| match role {
            Role::Following(leader) => member != Some(leader.member),
            Role::Leading(_) => member.is_some(),
            Role::Nobody | Role::Transferring | Role::Stopped => false,
        });
        let until = deadline.min(Instant::now() + NOT_LEADER_RETRY_DELAY);
        match tokio::time::timeout_at(until, other).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::Stopped.into()),
            Err(_) if Instant::now() >= deadline => Err(Error::Timeout.into()),
            Err(_) => Ok(()),
        }
    }
}

/// The attempts to have the leader answer a request. It is tried again only if it certainly had no effect.
#[derive(Debug)]
pub struct ForwardAttempts<'a> {
    router: &'a LeaderRouter,
    /// True if no other member can lead.
    is_alone: bool,
    /// The time until which the request waits for a leader.
    deadline: Instant,
    /// The time until which it waits for an answer.
    answered_by: Instant,
    /// The other member that the last attempt was for; `None` if it was for this one.
    asked: Option<u64>,
    _room: Option<SemaphorePermit<'a>>,
}

impl ForwardAttempts<'_> {
    /// Begins an attempt: waits for a leader and returns a client for it; `None` means this member. Fails as [`LeaderRouter::leader`].
    pub async fn leader(&mut self) -> Result<Option<LeaderClient>, Status> {
        if self.is_alone {
            return Ok(None);
        }
        let leader = tokio::time::timeout_at(self.deadline, self.router.leader()).await;
        let leader = leader.map_err(|_| Error::Timeout)??;
        self.asked = leader.as_ref().map(|leader| leader.member);
        Ok(leader)
    }

    /// Sends a copy of the request to another member by `ask`, with the name of its caller. Fails with the leader's error, or with
    /// `request timed out`.
    pub async fn ask<Q: Clone, A, T>(
        &self,
        leader: LeaderClient,
        request: &Request<Q>,
        ask: impl FnOnce(Channel, Request<Q>) -> T,
    ) -> Result<Response<A>, Status>
    where
        T: Future<Output = Result<Response<A>, Status>>,
    {
        let mut copy = Request::new(request.get_ref().clone());
        *copy.metadata_mut() = request.metadata().clone();
        // Of the client's bytes, and the copy is encoded anew.
        copy.metadata_mut().remove("content-length");
        caller::write(copy.metadata_mut(), request.extensions().get());
        let mut span = self.router.tracing.forward(leader.member, copy.metadata_mut());
        let asked = tokio::time::timeout_at(self.answered_by, ask(leader.channel, copy)).await;
        if asked
            .as_ref()
            .map_or(true, |asked| asked.as_ref().is_err_and(is_transport))
        {
            self.router.peers.send_failed(leader.member);
        }
        let outcome = asked.unwrap_or_else(|_| Err(Error::Timeout.into()));
        span.outcome(&outcome);
        outcome
    }

    /// Waits for another leader if the failed attempt certainly had no effect: then the next one may begin. Otherwise fails with the error
    /// for the client: that of the leader; `request timed out` if the leader went away and the outcome is unknown, or if there is no time
    /// for another attempt.
    pub async fn retry(&self, failed: Status) -> Result<(), Status> {
        if self.is_alone {
            return Err(match is_not_leader(&failed) {
                true => Error::Stopped.into(),
                false => failed,
            });
        }
        let is_not_leader = self.router.forwards && is_not_leader(&failed);
        // The member no longer leads, or was not reached.
        let had_no_effect = is_not_leader || self.router.forwards && was_not_sent(&failed);
        if had_no_effect && Instant::now() < self.deadline {
            return self.router.wait_for_change(self.asked, self.deadline).await;
        }
        Err(match is_not_leader || self.asked.is_some() && is_transport(&failed) {
            true => Error::Timeout.into(),
            false => failed,
        })
    }
}

/// The interval at which an expired lease is checked again.
const LEASE_POLL: Duration = Duration::from_millis(50);

/// The pause before a request is sent again to a leader that reports not to lead.
const NOT_LEADER_RETRY_DELAY: Duration = Duration::from_millis(100);

fn is_not_leader(status: &Status) -> bool {
    status.message() == Error::NotLeader.to_string()
}

/// Returns true if the connection broke, and false if the leader answered with this status.
pub(super) fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;
    use etcd_types::pb::peerpb::ReadIndexRequest;
    use etcd_types::pb::peerpb::peer_client::PeerClient;

    #[tokio::test]
    async fn request_unsent_to_a_gone_leader_is_done_by_the_next() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let channel = Channel::from_shared(url).unwrap().connect_lazy();
        let (reads, _asking) = ReadIndexBatcher::new(channel.clone(), 1024, Duration::ZERO);
        let gone = LeaderClient {
            member: 7,
            channel,
            reads,
        };
        let roles = watch::Sender::new(Role::Following(gone));
        let mut request = Request::new(ReadIndexRequest {});
        request
            .metadata_mut()
            .insert("content-length", MetadataValue::from_static("7"));
        let router = LeaderRouter::new(roles.subscribe());
        let mut attempts = router.attempts(request.get_ref(), false).unwrap();
        let ask = async |channel, copy: Request<ReadIndexRequest>| {
            let length = copy.metadata().get("content-length");
            assert_eq!(length, None, "it is of the client's bytes");
            PeerClient::new(channel).read_index(copy).await
        };
        let leader = attempts.leader().await.unwrap().unwrap();
        let refused = attempts.ask(leader, &request, ask).await.unwrap_err();
        roles.send_replace(Role::Leading(LeaderLease::unbounded()));
        attempts.retry(refused).await.unwrap();
        assert!(attempts.leader().await.unwrap().is_none(), "this member leads");
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_as_much_longer_as_the_lock_lasts() {
        let roles = watch::Sender::new(Role::Nobody);
        let router = LeaderRouter::new(roles.subscribe());
        for (lease, wait) in [(2, 7), (15, 20)] {
            let router = router.clone().with_lease_duration(Duration::from_secs(lease));
            let began = Instant::now();
            let refused = router.read_index().await.unwrap_err();
            assert_eq!(refused.message(), Error::Timeout.text());
            assert_eq!(began.elapsed().as_secs(), wait, "a lock that lasts {lease} s");
        }
    }
}
