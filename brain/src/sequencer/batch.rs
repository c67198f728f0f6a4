//! A batch: requests evaluated in order into one record.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::command::{Answer, Command, Outcome, Request};
use crate::mvcc::evaluate::{Changed, Evaluator};
use crate::mvcc::op::{Op, TxnOp};
use crate::mvcc::overlay::{Delta, Head, Overlay};
use crate::mvcc::record::{Alarm, Change, Checkpoint, Compact, Entry, Grant, Keys, Record, Revoke};
use crate::mvcc::view::{View, ViewError};
use crate::mvcc::{Error, KeyValue, LeaseId, Revision};
use crate::rows::{Rows, RowsError, Snapshot};
use crate::state::{CORRUPT, NOSPACE, State};

/// Who waits, and what for.
pub(super) type Reply = (oneshot::Sender<Outcome>, Result<Answer, Error>);

/// Requests that were evaluated and are to be committed together.
#[derive(Debug)]
pub(super) struct Batch {
    /// What is written.
    pub record: Record,
    /// The versions that the record's key changes superseded, in their order.
    pub superseded: Vec<Option<KeyValue>>,
    /// Outcomes, told when the record is committed.
    pub replies: Vec<Reply>,
    /// The same changes, for those who are evaluated before it is published.
    pub delta: Arc<Delta>,
    /// The state behind it.
    pub head: Head,
}

/// Evaluates requests one after the other.
pub(super) struct Builder<'a, R: Rows> {
    state: &'a State<R>,
    view: Arc<View<R::Snapshot>>,
    overlay: Overlay,
    prefetched: HashMap<Bytes, Option<KeyValue>>,
    head: Head,
    record: Record,
    superseded: Vec<Option<KeyValue>>,
    replies: Vec<Reply>,
    /// Puts and grants are refused.
    no_space: bool,
    /// Everything but alarms is refused.
    corrupt: bool,
}

impl<'a, R: Rows> Builder<'a, R> {
    /// An empty batch behind `head`, over batches that are under way.
    pub(super) fn new(state: &'a State<R>, under_way: Vec<Arc<Delta>>, head: Head, no_space: bool) -> Self {
        Self {
            state,
            view: state.view(),
            overlay: Overlay::over(under_way),
            prefetched: HashMap::new(),
            head,
            record: Record {
                base: head.revision,
                entries: Vec::new(),
            },
            superseded: Vec::new(),
            replies: Vec::new(),
            no_space,
            corrupt: state.has_alarm(CORRUPT) || state.is_flush_refused(),
        }
    }

    /// Evaluates commands in order, as far as none has to wait for what is under way.
    pub(super) async fn evaluate(&mut self, commands: &mut VecDeque<Command>) -> Result<(), RowsError> {
        self.prefetch(commands.iter()).await?;
        while let Some(command) = commands.pop_front() {
            if self.must_wait(&command) {
                commands.push_front(command);
                break;
            }
            self.add(command).await?;
        }
        Ok(())
    }

    /// Reads in one go what requests will need from the rows.
    ///
    /// # Errors
    /// When the rows fail.
    async fn prefetch(&mut self, commands: impl Iterator<Item = &Command>) -> Result<(), RowsError> {
        let mut wanted = BTreeSet::new();
        for command in commands {
            if let Request::Write(op) = &command.request {
                points(op, &mut |key| {
                    if self.overlay.get(key).is_none() && !wanted.contains(key) {
                        wanted.insert(key.clone());
                    }
                });
            }
        }
        let mut missing = Vec::new();
        for key in wanted {
            match self.view.recent.get(&key, self.view.revision) {
                Some(_) => {}
                None => missing.push(key),
            }
        }
        if !missing.is_empty() {
            let found = self.view.get_many(&missing).await?;
            self.prefetched = missing.into_iter().zip(found).collect();
        }
        Ok(())
    }

    /// The request reads a revision that is not published yet: it has to wait until it is.
    fn must_wait(&self, command: &Command) -> bool {
        match &command.request {
            Request::Write(Op::Txn(txn)) => {
                reads_above(txn, self.view.revision) && self.head.revision > self.view.revision
            }
            _ => false,
        }
    }

    /// Evaluates one request.
    ///
    /// # Errors
    /// When the rows fail. What the client did wrong is its reply.
    async fn add(&mut self, command: Command) -> Result<(), RowsError> {
        let (request, reply) = command.begin();
        let outcome = match self.answer(request).await {
            Ok(answer) => Ok(answer),
            Err(ViewError::Refused(error)) => Err(error),
            Err(ViewError::Rows(error)) => return Err(error),
        };
        if let Some(reply) = reply {
            self.replies.push((reply, outcome));
        }
        Ok(())
    }

    /// The batch.
    pub(super) fn finish(self) -> Batch {
        Batch {
            record: self.record,
            superseded: self.superseded,
            replies: self.replies,
            delta: Arc::new(self.overlay.into_delta()),
            head: self.head,
        }
    }

    async fn answer(&mut self, request: Request) -> Result<Answer, ViewError> {
        if self.corrupt && !matches!(request, Request::Alarm(..) | Request::Checkpoint(..)) {
            return Err(Error::Corrupt.into());
        }
        let result = match request {
            Request::Write(op) => return self.write(&op).await,
            Request::Compact(revision) => self.compact(revision),
            Request::Grant(id, ttl) => self.grant(id, ttl),
            Request::Revoke { id, expired } => return self.revoke(id, expired).await,
            Request::Checkpoint(leases) => {
                for (id, remaining) in leases {
                    self.push(Change::Checkpoint(Checkpoint { id: id.0, remaining }));
                }
                Ok(())
            }
            Request::Alarm(member, kind, raised) => {
                self.push(Change::Alarm(Alarm { member, kind, raised }));
                match kind {
                    NOSPACE => self.no_space = raised,
                    CORRUPT => self.corrupt = raised,
                    _ => {}
                }
                Ok(())
            }
        };
        result?;
        Ok(Answer {
            revision: self.head.revision,
            result: None,
        })
    }

    async fn write(&mut self, op: &Op) -> Result<Answer, ViewError> {
        if self.no_space && op.puts() {
            return Err(Error::NoSpace.into());
        }
        let mut evaluator = self.evaluator();
        let result = evaluator.run(op).await?;
        let (revision, changes) = (evaluator.revision(), evaluator.changes);
        self.commit(changes);
        Ok(Answer {
            revision,
            result: Some(result),
        })
    }

    fn compact(&mut self, revision: Revision) -> Result<(), Error> {
        if revision <= self.head.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.head.revision {
            return Err(Error::FutureRevision);
        }
        self.head.compacted = revision;
        self.push(Change::Compact(Compact { revision }));
        Ok(())
    }

    fn grant(&mut self, id: LeaseId, ttl: i64) -> Result<(), Error> {
        if self.no_space {
            return Err(Error::NoSpace);
        }
        if self.overlay.has_lease(id, &self.state.leases()) {
            return Err(Error::LeaseExists);
        }
        self.overlay.grant(id, ttl);
        self.push(Change::Grant(Grant { id: id.0, ttl }));
        Ok(())
    }

    async fn revoke(&mut self, id: LeaseId, expired: bool) -> Result<Answer, ViewError> {
        if !self.overlay.has_lease(id, &self.state.leases()) {
            return Err(Error::LeaseNotFound.into());
        }
        let mut evaluator = self.evaluator();
        evaluator.delete_attached(id).await?;
        let changes = evaluator.changes;
        let keys = changes.len();
        self.commit(changes);
        self.overlay.revoke(id);
        self.push(Change::Revoke(Revoke { id: id.0 }));
        if expired {
            tracing::debug!(lease = id.0, keys, "lease expired");
        }
        Ok(Answer {
            revision: self.head.revision,
            result: None,
        })
    }

    fn evaluator(&mut self) -> Evaluator<'_, R::Snapshot>
    where
        R::Snapshot: Snapshot,
    {
        Evaluator {
            view: &self.view,
            leases: self.state.leases_mutex(),
            overlay: &mut self.overlay,
            prefetched: &self.prefetched,
            head: self.head,
            changes: Vec::new(),
        }
    }

    /// Gives changes the next revision, if there are any.
    fn commit(&mut self, changes: Vec<Changed>) {
        if changes.is_empty() {
            return;
        }
        self.head.revision += 1;
        let (changes, superseded): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        self.superseded.extend(superseded);
        self.push(Change::Keys(Keys {
            revision: self.head.revision,
            changes,
        }));
    }

    fn push(&mut self, change: Change) {
        self.record.entries.push(Entry::from(change));
    }
}

/// Calls `found` with every single key that an operation looks at.
fn points(op: &Op, found: &mut impl FnMut(&Bytes)) {
    match op {
        Op::Put(put) => found(&put.key),
        Op::Delete(delete) if delete.span.is_point() => found(&delete.span.key),
        Op::Range(range) if range.span.is_point() && range.revision <= 0 => found(&range.span.key),
        Op::Delete(_) | Op::Range(_) => {}
        Op::Txn(txn) => {
            txn.compares
                .iter()
                .filter(|compare| compare.span.is_point())
                .for_each(|compare| found(&compare.span.key));
            txn.success.iter().chain(&txn.failure).for_each(|op| points(op, found));
        }
    }
}

/// A range somewhere in the txn reads above a revision.
fn reads_above(txn: &TxnOp, revision: Revision) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match op {
        Op::Range(range) => range.revision > revision,
        Op::Txn(nested) => reads_above(nested, revision),
        Op::Put(_) | Op::Delete(_) => false,
    })
}
