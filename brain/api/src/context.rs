//! The context of the services: the published state, the sequencer, the router to the leader, and the ids for headers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::auth::{Credentials, Guard};
use super::request::RequestLimits;
use super::request_log::LoggedCommand;
use cluster::forward::{self, LeaderRouter, Role};
use cluster::members::Members;
use engine::log::Slot;
use engine::rows::RowsError;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::ResponseHeader;
use etcd_types::types::{Caller, Revision};
use mvcc::auth::Auth;
use mvcc::view::{View, ViewError};
use store::sequencer::command::{ChangeAnswer, Command, SequencerHandle};
use store::state::StoreState;
use telemetry::metrics::Metrics;
use telemetry::otel::PartSpan;
use telemetry::slow_requests::ApplyLog;

/// A read index that takes longer is counted as slow; etcd would retry it.
const SLOW_READ_INDEX: Duration = Duration::from_millis(500);

/// Everything that handlers of requests share. Cheap to clone.
pub struct ApiContext {
    /// The published state.
    pub state: Arc<StoreState>,
    /// The handle of the sequencer, which changes the state.
    pub sequencer: SequencerHandle,
    /// The router to the leader.
    pub router: LeaderRouter,
    /// The users, and how clients are identified.
    pub guard: Guard,
    /// Limits of requests.
    pub limits: RequestLimits,
    /// The shortest time to live of a lease, in seconds: etcd raises shorter ones to 1.5 election timeouts.
    pub min_ttl: i64,
    /// The members of the cluster.
    pub members: Members,
    /// Ends waits and streams, so that clients leave.
    pub stop: CancellationToken,
    /// Sent in every header.
    pub cluster_id: u64,
    /// Sent in every header.
    pub member_id: u64,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Logs slow reads and changes.
    pub slow: ApplyLog,
}

impl Clone for ApiContext {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
            sequencer: self.sequencer.clone(),
            router: self.router.clone(),
            guard: self.guard.clone(),
            members: self.members.clone(),
            stop: self.stop.clone(),
            metrics: self.metrics.clone(),
            slow: self.slow.clone(),
            ..*self
        }
    }
}

impl ApiContext {
    /// Returns a header for an answer as of a revision.
    #[must_use]
    pub fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: self.state.epoch(),
        }
    }

    /// Returns the newest state, which contains everything that was acknowledged before. Fails with `corrupt cluster` if stored
    /// data was found damaged.
    pub fn view(&self) -> Result<Arc<View>, Status> {
        if self.state.is_corrupt() {
            return Err(Error::Corrupt.into());
        }
        Ok(self.state.view())
    }

    /// Returns the id of the leader; 0 if none is known.
    #[must_use]
    pub fn leader(&self) -> u64 {
        match self.router.role() {
            Role::Leading(_) | Role::Transferring => self.member_id,
            Role::Following(leader) => leader.member,
            Role::Nobody | Role::Stopped => 0,
        }
    }

    /// Returns a state that contains everything that any member acknowledged before this call. Fails with `corrupt cluster` if
    /// stored data was found damaged, with `request timed out` if there is no leader.
    pub async fn linearizable(&self) -> Result<Arc<View>, Status> {
        let began = Instant::now();
        let mut span = self.part("read_index");
        let known = self.wait_read_index().await;
        span.outcome(&known);
        drop(span);
        // Only the member that the client contacted counts it.
        if !self.router.is_forwarded() {
            let server = &self.metrics.server;
            server.read_indexes_failed.inc_by(known.is_err().into());
            server
                .slow_read_indexes
                .inc_by((began.elapsed() > SLOW_READ_INDEX).into());
        }
        known?;
        self.view()
    }

    /// Begins the span of a part of the current RPC.
    pub fn part(&self, name: &'static str) -> PartSpan {
        self.router.tracing().part(name)
    }

    async fn wait_read_index(&self) -> Result<(), Status> {
        match self.router.read_index().await? {
            Some(slot) => {
                self.state.observe_commit(slot);
                self.wait_applied(slot).await
            }
            None => Ok(()),
        }
    }

    /// Identifies the client of a request. While permissions are not checked, every client is anonymous, and this only reads one flag.
    ///
    /// # Errors
    /// `invalid auth token`.
    pub async fn caller<T>(&self, request: &tonic::Request<T>) -> Result<Caller, Status> {
        if !self.guard.is_enabled() {
            return Ok(Caller::Anonymous);
        }
        if let Some(caller) = request.extensions().get::<Caller>() {
            return Ok(caller.clone());
        }
        if self.router.is_forwarded()
            && let Some(caller) = forward::caller::read(request.metadata())
        {
            return Ok(caller);
        }
        let identified = self.guard.identify_soon(&self.credentials(request)).await;
        Ok(identified?)
    }

    /// Returns what a client shows to be identified by. The certificate of another member identifies no client.
    pub fn credentials<T>(&self, request: &tonic::Request<T>) -> Credentials {
        let credentials = Credentials::of(request);
        if self.router.is_forwarded() {
            credentials.without_certificate()
        } else {
            credentials
        }
    }

    /// Waits until all slots before `slot` are in the view.
    pub(super) async fn wait_applied(&self, slot: Slot) -> Result<(), Status> {
        let applied = tokio::time::timeout(self.router.request_timeout(), self.state.wait_applied(slot)).await;
        applied.map_err(|_| Error::Timeout.into())
    }

    /// Checks a request that is not written against the newest users and roles, which are no older than a view that was taken before.
    ///
    /// # Errors
    /// As [`Self::caller`] and `check`.
    pub async fn permit<T>(
        &self,
        request: &tonic::Request<T>,
        check: impl FnOnce(&Auth, &Caller) -> Result<(), Error>,
    ) -> Result<RequestPermit, Status> {
        if !self.guard.is_enabled() {
            return Ok(RequestPermit { revision: None });
        }
        let caller = self.caller(request).await?;
        check(&self.guard.load(), &caller)?;
        let revision = match caller {
            Caller::User(user) => Some(user.revision),
            Caller::Anonymous | Caller::Server => None,
        };
        Ok(RequestPermit { revision })
    }

    /// Checks that users and roles did not change while a request was executed.
    ///
    /// # Errors
    /// `revision of auth store is old`.
    pub fn still_permitted(&self, permit: &RequestPermit) -> Result<(), Status> {
        match permit.revision {
            Some(revision) if revision != self.guard.load().revision() => Err(Error::AuthOldRevision.into()),
            _ => Ok(()),
        }
    }

    /// Queues a request for the sequencer and waits for its outcome; `size` is its length on the wire. Fails with etcd's status;
    /// with `not leader` if nothing was done and another member may lead.
    pub async fn propose(&self, caller: Caller, request: Command, size: usize) -> Result<ChangeAnswer, Status> {
        if self.state.is_corrupt() {
            return Err(Error::Corrupt.into());
        }
        let (name, began) = (request.name(), Instant::now());
        let mut span = self.part(name);
        span.set("request_size", i64::try_from(size).unwrap_or(i64::MAX));
        let lease = self.router.lease();
        // Changes of keys and values are timed by their service.
        let applying = LoggedCommand::of(&request).map(|change| self.slow.begin("", move || change.to_string()));
        let outcome = self.sequencer.propose(&self.state, caller, request, size).await;
        let success = match &outcome.result {
            Ok(_) | Err(Error::Compacted) => Some(true),
            // These requests were not carried out, or their outcome is unknown.
            Err(Error::NotLeader | Error::TooManyRequests | Error::Stopped | Error::Timeout) => None,
            Err(_) => Some(false),
        };
        if let Some(success) = success {
            self.metrics.server.apply.observe(name, success, began.elapsed());
        }
        if let Some(applying) = applying {
            applying.end(outcome.result.as_ref(), |_| String::new());
        }
        let confirmed = match outcome.needs_lease_check {
            true => self.router.confirm_leadership(lease).await,
            false => Ok(()),
        };
        let answer = confirmed.and_then(|()| outcome.result.map_err(Status::from));
        match &answer {
            Ok(answer) => span.set("revision", answer.revision),
            Err(status) => span.fail(status),
        }
        answer
    }

    /// Returns the status of a refusal that depends on this leader's memory; `not leader` if another member may know better.
    pub async fn refuse(&self, error: Error) -> Status {
        let lease = self.router.lease();
        self.router
            .confirm_leadership(lease)
            .await
            .err()
            .unwrap_or(error.into())
    }

    /// Returns the status of a failed read. If data is damaged, the member stops serving.
    pub fn failed(&self, error: ViewError) -> Status {
        match error {
            ViewError::Refused(error) => error.into(),
            ViewError::Rows(error) => self.rows_failed(&error),
        }
    }

    /// Returns the status of a read that failed in the rows. If data is damaged, the member stops serving.
    pub fn rows_failed(&self, error: &RowsError) -> Status {
        let source = error as &dyn std::error::Error;
        match error {
            RowsError::Corrupt(_) => {
                tracing::error!(error = source, "a read failed");
                self.state.set_corrupt();
                Error::Corrupt.into()
            }
            // The connection's supervisor logs this, once and not for each read.
            RowsError::Unavailable(_) => {
                tracing::debug!(error = source, "a read failed");
                Error::Timeout.into()
            }
            _ => {
                tracing::error!(error = source, "a read failed");
                Error::Timeout.into()
            }
        }
    }
}

/// A request was permitted: see [`ApiContext::permit`].
#[derive(Debug)]
pub struct RequestPermit {
    /// The auth revision at which its client was identified.
    revision: Option<u64>,
}

/// Returns the caller of a request that [`ApiContext::forward`] has identified.
#[must_use]
pub fn caller_of<T>(request: &tonic::Request<T>) -> Caller {
    request.extensions().get().cloned().unwrap_or_default()
}
