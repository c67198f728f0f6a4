//! What the services share: the published state, the way to the sequencer, and who answers.

use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::elsewhere::{Elsewhere, PATIENCE, Role};
use super::request::Limits;
use super::status::Error;
use crate::log::Slot;
use crate::metrics::Metrics;
use crate::mvcc::view::{View, ViewError};
use crate::mvcc::{self, Revision};
use crate::pb::etcdserverpb::ResponseHeader;
use crate::rows::{Rows, RowsError};
use crate::sequencer::command::{Answer, Handle, Request};
use crate::state::State;

/// What a leader tells beside its answer to a request that was forwarded: the slot below which everything was committed
/// then, what the request did with it.
const COMMITTED: &str = "kubebrain-committed";

/// A question to the leader that takes longer is slow, as one that etcd has to repeat.
const SLOW_READ_INDEX: Duration = Duration::from_millis(500);

/// The store as handlers see it. Cheap to clone.
pub struct Store<R: Rows> {
    /// What is published.
    pub state: Arc<State<R>>,
    /// Who changes it.
    pub sequencer: Handle,
    /// Who leads.
    pub elsewhere: Elsewhere,
    /// What requests may be.
    pub limits: Limits,
    /// Sent in every header.
    pub cluster_id: u64,
    /// Sent in every header.
    pub member_id: u64,
    /// What is measured.
    pub metrics: Arc<Metrics>,
}

impl<R: Rows> Clone for Store<R> {
    fn clone(&self) -> Self {
        Self {
            state: self.state.clone(),
            sequencer: self.sequencer.clone(),
            elsewhere: self.elsewhere.clone(),
            metrics: self.metrics.clone(),
            ..*self
        }
    }
}

impl<R: Rows> Store<R> {
    /// A header for an answer as of a revision.
    #[must_use]
    pub fn header(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: self.state.epoch(),
        }
    }

    /// The newest state. Everything that was acknowledged before is in it.
    ///
    /// # Errors
    /// `corrupt cluster` when stored data was found damaged.
    pub fn view(&self) -> Result<Arc<View<R::Snapshot>>, Status> {
        if self.state.is_corrupt() {
            return Err(Error::Corrupt.into());
        }
        Ok(self.state.view())
    }

    /// The id of the leader; 0 when none is known.
    #[must_use]
    pub fn leader(&self) -> u64 {
        match self.elsewhere.role() {
            Role::Leading(_) | Role::Leaving => self.member_id,
            Role::Following(leader) => leader.member,
            Role::Nobody | Role::Stopped => 0,
        }
    }

    /// Puts this member into the header of what another one answered.
    pub fn own(&self, header: &mut Option<ResponseHeader>) {
        if let Some(header) = header {
            header.member_id = self.member_id;
        }
    }

    /// A state in which is everything that any member acknowledged before this question.
    ///
    /// # Errors
    /// `corrupt cluster` when stored data was found damaged; `request timed out` when nobody leads.
    pub async fn linearizable(&self) -> Result<Arc<View<R::Snapshot>>, Status> {
        let began = Instant::now();
        let known = self.until_all_is_known().await;
        // Who only passes it on counts it.
        if !self.elsewhere.is_last() {
            let server = &self.metrics.server;
            server.read_indexes_failed.inc_by(known.is_err().into());
            server
                .slow_read_indexes
                .inc_by((began.elapsed() > SLOW_READ_INDEX).into());
        }
        known?;
        self.view()
    }

    async fn until_all_is_known(&self) -> Result<(), Status> {
        match self.elsewhere.read_index().await? {
            Some(slot) => {
                self.state.hear_of(slot);
                self.until_shown(slot).await
            }
            None => Ok(()),
        }
    }

    /// Has the leader answer, as [`Elsewhere::answer`]. What it did is in this member's view then: whoever reads here next,
    /// or watches, finds it.
    ///
    /// # Errors
    /// As [`Elsewhere::answer`]; `request timed out` when this member does not hear of it in time.
    pub async fn answer<Q: prost::Message + Clone, A, H, T>(
        &self,
        request: tonic::Request<Q>,
        here: impl FnMut(tonic::Request<Q>) -> H,
        there: impl FnMut(Channel, tonic::Request<Q>) -> T,
    ) -> Result<Response<A>, Status>
    where
        H: Future<Output = Result<Response<A>, Status>>,
        T: Future<Output = Result<Response<A>, Status>>,
    {
        // Counted once, by the member that a client asked.
        let server = (!self.elsewhere.is_last()).then_some(&self.metrics.server);
        let pending = server.map(|server| Pending::new(&server.proposals_pending));
        let answer = self.elsewhere.answer(request, here, there).await;
        drop(pending);
        if let (Some(server), Err(status)) = (server, &answer)
            && status.code() == Code::Unavailable
        {
            server.proposals_failed.inc();
        }
        let mut answer = answer?;
        if self.elsewhere.is_last() {
            let committed = self.state.committed().0;
            answer.metadata_mut().insert(COMMITTED, committed.into());
        } else if let Some(committed) = answer.metadata_mut().remove(COMMITTED) {
            let slot = committed.to_str().ok().and_then(|slot| slot.parse().ok());
            let slot = slot.ok_or_else(|| Status::internal("etcdserver: the leader names no slot"))?;
            self.until_shown(Slot(slot)).await?;
        }
        Ok(answer)
    }

    /// Waits until all slots before `slot` are in the view.
    async fn until_shown(&self, slot: Slot) -> Result<(), Status> {
        let shown = tokio::time::timeout(PATIENCE, self.state.shown(slot)).await;
        shown.map_err(|_| Error::Timeout.into())
    }

    /// Has the sequencer do something; `size` is its length on the wire.
    ///
    /// # Errors
    /// With etcd's status; `not leader` when nothing was done and somebody else may lead.
    pub async fn ask(&self, request: Request, size: usize) -> Result<Answer, Status> {
        if self.state.is_corrupt() {
            return Err(Error::Corrupt.into());
        }
        let right = self.elsewhere.right();
        let outcome = self.sequencer.ask(&self.state, request, size).await;
        if outcome.is_unproved {
            self.elsewhere.confirm(right).await?;
        }
        outcome.told.map_err(refused)
    }

    /// The status of a refusal because of what this leader has in memory; `not leader` where somebody else may know better.
    pub async fn refuse(&self, error: Error) -> Status {
        let right = self.elsewhere.right();
        self.elsewhere.confirm(right).await.err().unwrap_or(error.into())
    }

    /// The status of a read that failed. Damage stops the serving.
    pub fn failed(&self, error: ViewError) -> Status {
        match error {
            ViewError::Refused(error) => refused(error),
            ViewError::Rows(error) => self.rows_failed(&error),
        }
    }

    /// The status of a read that the rows failed. Damage stops the serving.
    pub fn rows_failed(&self, error: &RowsError) -> Status {
        let source = error as &dyn std::error::Error;
        match error {
            RowsError::Corrupt(_) => {
                tracing::error!(error = source, "a read failed");
                self.state.set_corrupt();
                Error::Corrupt.into()
            }
            // Whoever keeps the connection says so, once and not for each read.
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

/// A request that waits, until this is dropped.
pub(super) struct Pending<'a>(&'a IntGauge);

impl<'a> Pending<'a> {
    pub(super) fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Etcd's status for what the store refused.
#[must_use]
pub fn refused(error: mvcc::Error) -> Status {
    let error = match error {
        mvcc::Error::Compacted => Error::Compacted,
        mvcc::Error::FutureRevision => Error::FutureRev,
        mvcc::Error::KeyNotFound => Error::KeyNotFound,
        mvcc::Error::LeaseNotFound => Error::LeaseNotFound,
        mvcc::Error::LeaseExists => Error::LeaseExist,
        mvcc::Error::NoSpace => Error::NoSpace,
        mvcc::Error::TooLarge => Error::RequestTooLarge,
        mvcc::Error::TooManyRequests => Error::TooManyRequests,
        mvcc::Error::Timeout => Error::Timeout,
        mvcc::Error::NotLeader => Error::NotLeader,
        mvcc::Error::Stopped => Error::Stopped,
        mvcc::Error::Corrupt => Error::Corrupt,
    };
    error.into()
}
