//! A batch: requests evaluated in order into one record.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::oneshot;

use super::command::{BegunCommand, ChangeAnswer, Command, QueuedCommand, Reply, Reread};
use super::lease::limit::LeaseRoom;
use super::lease::permission::PermittedLeases;
use super::lease::revoke_expired::MAX_LEASE_PART;
use crate::alarm::{CORRUPT, NOSPACE};
use crate::state::StoreState;
use etcd_types::errors::Error;
use etcd_types::types::{Caller, LeaseId, Prev, Revision};
use mvcc::auth::{Access, Auth, AuthRequest, TokenDigest, longest_value};
use mvcc::evaluate::{Answering, EvaluateError, Evaluator, LeasePart};
use mvcc::fetch::{Extent, Fetched};
use mvcc::lease::ENDING_CHECKPOINT;
use mvcc::op::Op;
use mvcc::overlay::{Delta, Head, Overlay};
use mvcc::record::{Alarm, Change, Checkpoint, Entry, Grant, KeyChange, Keys, Record, Revoke, Token};
use mvcc::view::View;
use runtime::budget::Meter;

mod compact;

/// The channel of a waiting client, and its reply.
pub(super) type WaitingReply = (oneshot::Sender<Reply>, BatchReply);

/// The reply to a request of a batch.
#[derive(Debug)]
pub(super) enum BatchReply {
    Outcome(Result<ChangeAnswer, Error>),
    /// The request changed nothing: its rows must be read again.
    Again(Command, Reread),
}

/// Requests that were evaluated and will be committed together.
#[derive(Debug)]
pub(super) struct EvaluatedBatch {
    /// The record to be written.
    pub record: Record,
    /// The versions that the record's key changes superseded, in their order.
    pub superseded: Vec<Prev>,
    /// Keys that each end of a lease deletes.
    pub lease_deletes: Vec<u64>,
    /// Outcomes, sent when the record is committed.
    pub replies: Vec<WaitingReply>,
    /// Expired leases whose keys must be read once more.
    pub again: Vec<LeaseId>,
    /// The same changes, for requests that are evaluated before it is published.
    pub delta: Arc<Delta>,
    /// The state after the batch.
    pub head: Head,
    /// The users and roles after the batch.
    pub auth: Arc<Auth>,
    /// For the next batch.
    pub permitted: PermittedLeases,
    /// Requests that were not begun, in their order: those before them took long enough, or their changes are long.
    pub rest: VecDeque<QueuedCommand>,
}

/// The approximate number of rows that the requests of a batch look at together, which takes some ten milliseconds. The first request alone
/// may look at more.
pub(super) const MAX_BATCH_ROWS: usize = 25_000;

/// The room that is left for puts and leases, and for the record.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchRoom {
    /// The bytes of the record beyond which no further request is begun. A request may be short and its change long.
    pub(super) record_bytes: usize,
    /// Puts and grants are refused if not.
    pub(super) is_space: bool,
    /// Other grants, and puts that attach keys to other leases, are refused.
    pub(super) leases: LeaseRoom,
}

/// Evaluates requests one after the other.
pub(super) struct BatchBuilder {
    state: Arc<StoreState>,
    view: Arc<View>,
    overlay: Overlay,
    head: Head,
    /// The newest users and roles, published or not.
    auth: Arc<Auth>,
    permitted: PermittedLeases,
    record: Record,
    superseded: Vec<Prev>,
    lease_deletes: Vec<u64>,
    replies: Vec<WaitingReply>,
    again: Vec<LeaseId>,
    /// Rows that were looked at.
    work: usize,
    /// Bytes of the record.
    bytes: usize,
    room: BatchRoom,
    /// The CORRUPT alarm is raised: changes of keys and leases are refused.
    corrupt: bool,
    /// Rows cannot be flushed: everything but alarms, checkpoints and tokens is refused.
    flush_refused: bool,
}

impl BatchBuilder {
    /// Creates an empty batch after `head`, over batches that are under way.
    pub(super) fn new(
        state: Arc<StoreState>,
        under_way: Vec<Arc<Delta>>,
        (head, auth, permitted): (Head, Arc<Auth>, PermittedLeases),
        room: BatchRoom,
    ) -> Self {
        Self {
            view: state.view(),
            overlay: Overlay::over(under_way),
            head,
            auth,
            permitted,
            record: Record {
                base: head.revision,
                entries: Vec::new(),
            },
            superseded: Vec::new(),
            lease_deletes: Vec::new(),
            replies: Vec::new(),
            again: Vec::new(),
            work: 0,
            bytes: 0,
            room,
            corrupt: state.has_alarm(CORRUPT),
            flush_refused: state.is_flush_refused(),
            state,
        }
    }

    /// Evaluates commands in order, until they have taken long enough or the record is full. Commands are not begun if their rows were read
    /// too early, or if their clients do not wait any more.
    pub(super) async fn evaluate(mut self, mut commands: VecDeque<QueuedCommand>) -> EvaluatedBatch {
        while self.work < MAX_BATCH_ROWS
            && self.bytes < self.room.record_bytes
            && let Some(command) = commands.pop_front()
        {
            if !command.is_abandoned() {
                self.add(command).await;
            }
        }
        self.finish(commands)
    }

    async fn add(&mut self, command: QueuedCommand) {
        let BegunCommand {
            request,
            caller,
            fetched,
            reply,
        } = command.begin();
        let expired = match request {
            Command::Revoke { id, expired: true } => Some(id),
            _ => None,
        };
        let is_current = |fetched: &Fetched| fetched.is_current(self.view.rows_revision, self.head.revision);
        let is_current = fetched.as_ref().is_none_or(is_current);
        let is_expected = fetched
            .as_ref()
            .is_some_and(|fetched| fetched.extent() == Extent::Expected);
        // Its rows may need to be read once more.
        let same = match &request {
            Command::Write(op, meter) if is_expected => Some((op.clone(), meter.clone())),
            _ => None,
        };
        let outcome = if is_current {
            match (self.answer(&caller, request, fetched.as_ref()).await, same) {
                (Ok(answer), _) => BatchReply::Outcome(Ok(answer)),
                (Err(EvaluateError::Refused(error)), _) => BatchReply::Outcome(Err(error)),
                (Err(EvaluateError::NotFetched(_)), Some((op, meter))) => {
                    // Releases what was charged for the answer so far.
                    meter.release();
                    BatchReply::Again(Command::Write(op, meter), Reread::Unexpected)
                }
                (Err(error @ EvaluateError::NotFetched(_)), None) => {
                    match expired {
                        Some(id) => {
                            tracing::warn!(lease = id.0, %error, "expired lease changed while its keys were read; will retry");
                            self.state.leases().retry_expired(id);
                        }
                        None => tracing::error!(%error, "could not evaluate a request; it changed nothing"),
                    }
                    BatchReply::Outcome(Err(Error::Timeout))
                }
            }
        } else {
            self.again.extend(expired);
            BatchReply::Again(request, Reread::Stale)
        };
        if let Some(reply) = reply {
            self.replies.push((reply, outcome));
        }
    }

    /// The batch.
    fn finish(self, rest: VecDeque<QueuedCommand>) -> EvaluatedBatch {
        EvaluatedBatch {
            record: self.record,
            superseded: self.superseded,
            lease_deletes: self.lease_deletes,
            replies: self.replies,
            again: self.again,
            delta: Arc::new(self.overlay.into_delta()),
            head: self.head,
            auth: self.auth,
            permitted: self.permitted,
            rest,
        }
    }

    async fn answer(
        &mut self,
        caller: &Caller,
        request: Command,
        fetched: Option<&Fetched>,
    ) -> Result<ChangeAnswer, EvaluateError> {
        // Before permissions, as etcd does.
        if self.is_stopped(&request) {
            if let Command::Revoke { id, expired: true } = request {
                self.state.leases().retry_expired(id);
            }
            return Err(Error::Corrupt.into());
        }
        self.check(caller, &request)?;
        let result = match request {
            Command::Auth(request, longest) => self.change_auth(request, longest),
            Command::Token { user, digest, revision } => self.add_token(user, &digest, revision),
            Command::Write(op, meter) => return self.write(&op, fetched, meter).await,
            Command::Compact(revision) => self.compact(revision),
            Command::Grant(id, ttl) => self.grant(id, ttl),
            Command::Revoke { id, expired } => return self.revoke(id, expired, fetched).await,
            Command::Checkpoint(leases) => {
                for (id, remaining) in leases {
                    // It may be another lease by now, which was granted the id again: the time left is that of the one before.
                    let is_same = !self.overlay.changes_lease(id) && self.state.leases().is_checkpointing(id);
                    // One that has run out was renewed before that, and one that has lost keys is not given any time.
                    let is_late = remaining == 0 && self.state.leases().is_expiring(id);
                    if (remaining > 0 && !is_same) || is_late || self.overlay.is_ending(id, &self.state.leases()) {
                        continue;
                    }
                    self.push(Change::Checkpoint(Checkpoint { id: id.0, remaining }));
                }
                Ok(())
            }
            Command::Alarm(member, kind, raised) => {
                self.push(Change::Alarm(Alarm { member, kind, raised }));
                match kind {
                    NOSPACE => self.room.is_space = !raised,
                    CORRUPT => self.corrupt = raised,
                    _ => {}
                }
                Ok(())
            }
        };
        result?;
        Ok(ChangeAnswer {
            revision: self.head.revision,
            result: None,
        })
    }

    async fn write(&mut self, op: &Op, fetched: Option<&Fetched>, meter: Meter) -> Result<ChangeAnswer, EvaluateError> {
        if !self.room.is_space && op.puts() {
            return Err(Error::NoSpace.into());
        }
        if self.room.leases > LeaseRoom::Ample && op.attaches_to(&|id| !self.takes_keys_of(id)) {
            return Err(Error::TooManyRequests.into());
        }
        let mut evaluator = self.evaluator(fetched);
        evaluator.answer = Answering::new(meter);
        let result = evaluator.run(op).await;
        let (revision, work) = (evaluator.revision(), evaluator.work + evaluator.points);
        let changes = (evaluator.changes, evaluator.superseded);
        self.work += work;
        let result = result?;
        self.commit(changes);
        Ok(ChangeAnswer {
            revision,
            result: Some(result),
        })
    }

    /// Returns true if the CORRUPT alarm, or rows that cannot be flushed, stop a request. etcd's alarm leaves changes of users and roles
    /// alone.
    fn is_stopped(&self, request: &Command) -> bool {
        match request {
            Command::Write(..) | Command::Compact(_) | Command::Grant(..) | Command::Revoke { .. } => {
                self.corrupt || self.flush_refused
            }
            Command::Auth(..) => self.flush_refused,
            Command::Alarm(..) | Command::Checkpoint(_) | Command::Token { .. } => false,
        }
    }

    /// Checks that users and roles permit a request.
    fn check(&mut self, caller: &Caller, request: &Command) -> Result<(), Error> {
        if !self.auth.is_enabled() {
            // Keys that are attached from now on are not checked.
            self.permitted.clear();
            return Ok(());
        }
        let revision = self.auth.revision();
        if let Command::Write(op, _) = request {
            self.permitted.forget_of_others(op, caller);
        }
        // The keys of a lease are looked at once for a request, however many puts name it, and not again for the next one of the user.
        let (mut seen, mut looked) = (HashSet::new(), 0);
        let permitted = &self.permitted;
        let mut attached = |id| {
            if !seen.insert(id) || permitted.contains(id, caller, revision) {
                return Vec::new();
            }
            let keys = Vec::from_iter(self.overlay.attached(id, &self.state.leases(), usize::MAX));
            looked += keys.len();
            keys
        };
        let checked = match request {
            Command::Write(op, _) => self.auth.check_op(caller, op, &mut attached),
            Command::Revoke { id, .. } => {
                self.auth.check_known(caller)?;
                self.auth.check_lease(caller, Access::Write, || attached(*id))
            }
            Command::Grant(..) => self.auth.check_known(caller),
            Command::Compact(_) | Command::Alarm(..) | Command::Auth(..) => self.auth.check_admin(caller),
            // The first is the server's own, the second makes a client known.
            Command::Checkpoint(_) | Command::Token { .. } => Ok(()),
        };
        self.work += looked;
        checked?;
        for id in seen {
            self.permitted.note(id, caller, revision);
        }
        Ok(())
    }

    fn change_auth(&mut self, request: AuthRequest, longest: usize) -> Result<(), Error> {
        let Some(change) = self.auth.evaluate(request)? else {
            return Ok(());
        };
        if longest_value(&change) > longest {
            return Err(Error::RequestTooLarge);
        }
        if self.auth.is_too_large(&change) {
            return Err(Error::RequestTooLarge);
        }
        // Every member copies them for each change.
        self.work += self.auth.entries();
        Arc::make_mut(&mut self.auth).apply(&change);
        self.push(Change::Auth(change));
        Ok(())
    }

    /// The caller checks the password once more if users or roles changed since.
    fn add_token(&mut self, user: String, digest: &TokenDigest, revision: u64) -> Result<(), Error> {
        if !self.auth.is_enabled() {
            return Err(Error::AuthNotEnabled);
        }
        if self.auth.revision() != revision {
            return Err(Error::AuthOldRevision);
        }
        self.auth.user(&user).map_err(|_| Error::AuthFailed)?;
        let digest = Bytes::copy_from_slice(digest);
        self.push(Change::Token(Token { user, digest }));
        Ok(())
    }

    /// Returns true if there is room for keys of a lease, or no such lease.
    fn takes_keys_of(&self, id: LeaseId) -> bool {
        let ttl = self.overlay.ttl(id, &self.state.leases());
        ttl.is_none_or(|ttl| self.room.leases.takes(ttl))
    }

    fn grant(&mut self, id: LeaseId, ttl: i64) -> Result<(), Error> {
        if !self.room.is_space {
            return Err(Error::NoSpace);
        }
        if !self.room.leases.takes(ttl) {
            return Err(Error::TooManyRequests);
        }
        if self.overlay.has_lease(id, &self.state.leases()) {
            return Err(Error::LeaseExist);
        }
        self.overlay.grant(id, ttl);
        self.push(Change::Grant(Grant { id: id.0, ttl }));
        Ok(())
    }

    async fn revoke(
        &mut self,
        id: LeaseId,
        expired: bool,
        fetched: Option<&Fetched>,
    ) -> Result<ChangeAnswer, EvaluateError> {
        if !self.overlay.has_lease(id, &self.state.leases()) {
            return Err(Error::LeaseNotFound.into());
        }
        // It may be another lease by now: a client has ended the one that ran out, and granted the id again.
        if expired && (self.overlay.changes_lease(id) || !self.state.leases().is_expiring(id)) {
            return Err(Error::LeaseNotFound.into());
        }
        let mut evaluator = self.evaluator(fetched);
        let part = if expired { MAX_LEASE_PART } else { LeasePart::ALL };
        let deleted = evaluator.delete_attached(id, part).await;
        let (changes, work) = ((evaluator.changes, evaluator.superseded), evaluator.work);
        self.work += work;
        let is_whole = deleted?;
        let keys = changes.0.len();
        self.lease_deletes.push(keys as u64);
        self.commit(changes);
        if !is_whole {
            // A later leader must not renew a lease that has lost keys.
            self.overlay.note_ending(id);
            self.push(Change::Checkpoint(Checkpoint {
                id: id.0,
                remaining: ENDING_CHECKPOINT,
            }));
            self.again.push(id);
            return Ok(ChangeAnswer {
                revision: self.head.revision,
                result: None,
            });
        }
        self.overlay.revoke(id);
        self.push(Change::Revoke(Revoke { id: id.0 }));
        if expired {
            tracing::debug!(lease = id.0, keys, "lease expired");
        }
        Ok(ChangeAnswer {
            revision: self.head.revision,
            result: None,
        })
    }

    fn evaluator<'e>(&'e mut self, fetched: Option<&'e Fetched>) -> Evaluator<'e> {
        Evaluator {
            memtables: &self.view.memtables,
            // Records that are published during the evaluation are in the overlay, too.
            at: Revision::MAX,
            fetched,
            leases: self.state.leases_mutex(),
            overlay: &mut self.overlay,
            head: self.head,
            changes: Vec::new(),
            superseded: Vec::new(),
            looked: 0,
            work: 0,
            points: 0,
            answer: Answering::default(),
        }
    }

    /// Gives changes, with the version that each superseded, the next revision, if there are any.
    fn commit(&mut self, (changes, mut superseded): (Vec<KeyChange>, Vec<Prev>)) {
        if changes.is_empty() {
            return;
        }
        self.head.revision += 1;
        match self.superseded.is_empty() {
            true => self.superseded = superseded,
            false => self.superseded.append(&mut superseded),
        }
        self.push(Change::Keys(Keys {
            revision: self.head.revision,
            changes,
        }));
    }

    fn push(&mut self, change: Change) {
        let entry = Entry::from(change);
        self.bytes += entry.encoded_len();
        self.record.entries.push(entry);
    }
}
