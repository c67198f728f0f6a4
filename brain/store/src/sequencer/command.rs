//! Requests to the sequencer, and the handle that sends them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::fetch;
use crate::state::StoreState;
use etcd_types::errors::Error;
use etcd_types::request_timeout;
use etcd_types::types::{Caller, LeaseId, Revision};
use mvcc::auth::{AuthRequest, TokenDigest};
use mvcc::fetch::{Extent, Fetched};
use mvcc::op::{Op, OpResult};
use runtime::budget::Meter;

/// Requests that may wait for the sequencer. More are refused with `too many requests`.
pub const QUEUE_CAPACITY: usize = 10_000;

/// Bytes of requests that may wait for the sequencer. More are refused likewise.
pub const MAX_QUEUED_BYTES: u32 = 128 << 20;

/// Requests of more bytes leave the last quarter of [`MAX_QUEUED_BYTES`] to the others.
const SMALL_REQUEST_BYTES: usize = 64 << 10;

/// Reads of what a request is expected to need: others change what that is. Then all that it may need is read.
const MAX_EXPECTED_READS: usize = 2;

/// Size of a compaction request within [`MAX_QUEUED_BYTES`].
const COMPACT_REQUEST_BYTES: usize = 16;

/// A request to the sequencer.
#[derive(Debug)]
pub enum Command {
    /// Put, delete or txn, and the meter that its answer is charged to.
    Write(Op, Meter),
    /// Give up history below a revision.
    Compact(Revision),
    /// Grant a lease: id and time to live in seconds.
    Grant(LeaseId, i64),
    /// End a lease. `expired` by itself rather than by a client.
    Revoke {
        /// Which one.
        id: LeaseId,
        /// It ran out.
        expired: bool,
    },
    /// Checkpoint the remaining time of leases, in seconds; 0 clears the checkpoint.
    Checkpoint(Vec<(LeaseId, i64)>),
    /// Raise or clear an alarm: member, kind, raised.
    Alarm(u64, i32, bool),
    /// Change users or roles; the longest value that a row takes, in bytes.
    Auth(AuthRequest, usize),
    /// Record a token of a user, whose password was checked as of an auth revision.
    Token {
        /// The user.
        user: String,
        /// The token's digest.
        digest: TokenDigest,
        /// The auth revision.
        revision: u64,
    },
}

impl Command {
    /// Returns the bytes of memory that it takes beside those of the wire: a txn of many small operations takes much more.
    fn memory(&self) -> usize {
        match self {
            Command::Write(op, _) => op.memory(),
            _ => 0,
        }
    }

    /// Returns its name in etcd's messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Command::Write(Op::Put(_), _) => "put",
            Command::Write(Op::Delete(_), _) => "delete_range",
            Command::Write(Op::Txn(_), _) => "txn",
            Command::Write(Op::Range(_), _) => "range",
            Command::Compact(_) => "compaction",
            Command::Grant(..) => "lease_grant",
            Command::Revoke { .. } => "lease_revoke",
            Command::Checkpoint(_) => "lease_checkpoint",
            Command::Alarm(..) => "alarm",
            Command::Auth(request, _) => request.name(),
            Command::Token { .. } => "authenticate",
        }
    }
}

/// A change that was made, or a txn that made none.
#[derive(Debug)]
pub struct ChangeAnswer {
    /// The revision for the header.
    pub revision: Revision,
    /// The effect of a write; `None` for everything else.
    pub result: Option<OpResult>,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Outcome {
    /// The answer for the client. A request that ends with [`Error::Timeout`] was carried out completely or not at all.
    pub result: Result<ChangeAnswer, Error>,
    /// Nothing was appended with it. A committed record proves that no other leader wrote before it; without one, the outcome is valid only
    /// as long as no other member leads.
    pub needs_lease_check: bool,
}

impl Outcome {
    /// A refusal that does not depend on the leader.
    fn refused(error: Error) -> Self {
        Self {
            result: Err(error),
            needs_lease_check: false,
        }
    }
}

/// The sequencer's reply to a request.
#[derive(Debug)]
pub enum Reply {
    /// It is done, or refused.
    Outcome(Outcome),
    /// It changed nothing. Read its rows again and repeat it.
    Again(Command, Reread),
}

/// The reason why rows are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reread {
    /// They are too old.
    Stale,
    /// Others are needed than were expected.
    Unexpected,
}

/// A queued request with the channel for its outcome.
#[derive(Debug)]
pub struct QueuedCommand {
    /// The operation.
    pub request: Command,
    /// On whose behalf.
    pub caller: Caller,
    /// Its size on the wire in bytes, roughly.
    pub size: usize,
    /// The channel for the outcome.
    waiting: PendingReply,
    /// The rows that were read for it; `None` if it needs none.
    pub fetched: Option<Fetched>,
    /// Its place among the bytes that wait.
    place: Option<QueuePlace>,
}

impl QueuedCommand {
    /// Creates a request of the sequencer itself: no client waits for its outcome.
    #[must_use]
    pub fn internal(request: Command, size: usize) -> Self {
        Self {
            request,
            caller: Caller::Server,
            size,
            waiting: PendingReply(None),
            fetched: None,
            place: None,
        }
    }

    /// Returns the same command with the rows that were read for it.
    #[must_use]
    pub fn with(self, fetched: Option<Fetched>) -> Self {
        Self { fetched, ..self }
    }

    /// True if the client has given up waiting: it need not be begun.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.waiting.0.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Returns the command's parts without its place in the queue, which is given back.
    pub(super) fn begin(mut self) -> BegunCommand {
        drop(self.place);
        BegunCommand {
            request: self.request,
            caller: self.caller,
            fetched: self.fetched,
            reply: self.waiting.0.take(),
        }
    }
}

/// A command that left the queue.
pub(super) struct BegunCommand {
    pub(super) request: Command,
    pub(super) caller: Caller,
    pub(super) fetched: Option<Fetched>,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
}

/// The channel for the outcome of a request that has not begun; none for requests of the sequencer itself. A request that never
/// begins, because its epoch ends, is answered `not leader`.
#[derive(Debug)]
struct PendingReply(Option<oneshot::Sender<Reply>>);

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            // A client that has gone away needs no answer.
            let _gone = reply.send(Reply::Outcome(Outcome::refused(Error::NotLeader)));
        }
    }
}

/// The receiver of requests.
#[derive(Debug, Clone)]
enum CurrentSequencer {
    /// No sequencer yet, or none any more.
    Nobody,
    /// The sequencer of an epoch, and room for bytes that wait for it.
    Sequencer(mpsc::Sender<QueuedCommand>, QueueRoom),
}

/// Room for bytes that wait.
#[derive(Debug, Clone)]
struct QueueRoom {
    all: Arc<Semaphore>,
    /// Those of requests that are not [`SMALL_REQUEST_BYTES`].
    large: Arc<Semaphore>,
}

/// The room of one request.
#[derive(Debug)]
struct QueuePlace {
    _all: OwnedSemaphorePermit,
    _large: Option<OwnedSemaphorePermit>,
}

impl QueueRoom {
    const MAX_LARGE_BYTES: u32 = MAX_QUEUED_BYTES / 4 * 3;

    fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_QUEUED_BYTES as usize)),
            large: Arc::new(Semaphore::new(Self::MAX_LARGE_BYTES as usize)),
        }
    }

    /// Takes a place for `size` bytes. Returns [`Error::TooManyRequests`] if there is none.
    fn take(&self, size: usize) -> Result<QueuePlace, Error> {
        let bytes = u32::try_from(size).unwrap_or(u32::MAX).min(Self::MAX_LARGE_BYTES);
        let take = |of: &Arc<Semaphore>| of.clone().try_acquire_many_owned(bytes);
        let large = (size > SMALL_REQUEST_BYTES).then(|| take(&self.large)).transpose();
        Ok(QueuePlace {
            _large: large.map_err(|_| Error::TooManyRequests)?,
            _all: take(&self.all).map_err(|_| Error::TooManyRequests)?,
        })
    }
}

/// The place of the current sequencer: one takes it when its epoch begins. When it is dropped, no requests are accepted.
#[derive(Debug)]
pub struct QueueOwner(watch::Sender<CurrentSequencer>);

impl QueueOwner {
    /// From now on requests arrive at the receiver.
    #[must_use]
    pub fn take(&self) -> mpsc::Receiver<QueuedCommand> {
        let (inbox, commands) = mpsc::channel(QUEUE_CAPACITY);
        self.0
            .send_replace(CurrentSequencer::Sequencer(inbox, QueueRoom::new()));
        commands
    }

    /// Refuses requests from now on: there is no writer.
    pub fn leave(&self) {
        self.0.send_replace(CurrentSequencer::Nobody);
    }
}

impl Drop for QueueOwner {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Asks the sequencer. While there is none, and when its queue is full, requests are refused at once.
#[derive(Debug, Clone)]
pub struct SequencerHandle {
    writer: watch::Receiver<CurrentSequencer>,
    /// The time that a request may wait.
    timeout: Duration,
}

impl SequencerHandle {
    /// Returns a handle, and the owner that decides where its requests go. Requests wait for [`request_timeout`] of the lock's lease
    /// duration.
    #[must_use]
    pub fn new(lease_duration: Duration) -> (Self, QueueOwner) {
        let (owner, writer) = watch::channel(CurrentSequencer::Nobody);
        let timeout = request_timeout(lease_duration);
        (Self { writer, timeout }, QueueOwner(owner))
    }

    /// Executes a request of a client. The rows that it needs are read here, so that no other request waits for that. Once it has begun, it
    /// is completed even if the caller goes away, unless its rows must be read once more; if the caller goes away before that, it is not
    /// executed at all.
    pub async fn propose(&self, state: &StoreState, caller: Caller, request: Command, size: usize) -> Outcome {
        let memory = size + request.memory();
        let asking = async {
            let (mut request, mut unexpected) = (request, 0);
            loop {
                self.inbox()?;
                let extent = if unexpected < MAX_EXPECTED_READS {
                    Extent::Expected
                } else {
                    Extent::Full
                };
                let fetched = fetch::fetched(state, &request, extent).await?;
                // Only now: requests that still read take no place from those that could be written.
                match self.enter(size, memory)?.send(caller.clone(), request, fetched).await? {
                    Reply::Outcome(outcome) => return Ok(outcome),
                    Reply::Again(again, why) => {
                        request = again;
                        unexpected += usize::from(why == Reread::Unexpected);
                    }
                }
            }
        };
        let asked = tokio::time::timeout(self.timeout, asking).await;
        asked.unwrap_or(Err(Error::Timeout)).unwrap_or_else(Outcome::refused)
    }

    /// Has history below a revision given up.
    pub async fn compact(&self, revision: Revision) -> Outcome {
        let compact = async {
            let queue = self.enter(COMPACT_REQUEST_BYTES, COMPACT_REQUEST_BYTES)?;
            queue.send(Caller::Server, Command::Compact(revision), None).await
        };
        match tokio::time::timeout(self.timeout, compact).await {
            Ok(Ok(Reply::Outcome(outcome))) => outcome,
            Ok(Err(error)) => Outcome::refused(error),
            Ok(Ok(Reply::Again(..))) | Err(_) => Outcome::refused(Error::Timeout),
        }
    }

    fn inbox(&self) -> Result<(mpsc::Sender<QueuedCommand>, QueueRoom), Error> {
        match self.writer.borrow().clone() {
            CurrentSequencer::Sequencer(inbox, room) => Ok((inbox, room)),
            CurrentSequencer::Nobody => Err(Error::NotLeader),
        }
    }

    /// Takes a place among the bytes that wait, for a request of `size` bytes on the wire and `memory` bytes in memory.
    fn enter(&self, size: usize, memory: usize) -> Result<QueueEntry, Error> {
        let (inbox, room) = self.inbox()?;
        let place = room.take(memory)?;
        Ok(QueueEntry { inbox, size, place })
    }
}

/// The queue of a sequencer, and a place there.
#[derive(Debug)]
struct QueueEntry {
    inbox: mpsc::Sender<QueuedCommand>,
    size: usize,
    place: QueuePlace,
}

impl QueueEntry {
    async fn send(self, caller: Caller, request: Command, fetched: Option<Fetched>) -> Result<Reply, Error> {
        let (reply, outcome) = oneshot::channel();
        let command = QueuedCommand {
            request,
            caller,
            size: self.size,
            waiting: PendingReply(Some(reply)),
            fetched,
            place: Some(self.place),
        };
        self.inbox.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::TooManyRequests,
            // Its sequencer has ended.
            mpsc::error::TrySendError::Closed(_) => Error::NotLeader,
        })?;
        outcome.await.map_err(|_| Error::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mvcc::op::TxnOp;

    #[test]
    fn large_requests_leave_room_to_small_ones() {
        let room = QueueRoom::new();
        let large: Vec<_> = std::iter::from_fn(|| room.take(SMALL_REQUEST_BYTES + 1).ok()).collect();
        assert_eq!(
            large.len(),
            QueueRoom::MAX_LARGE_BYTES as usize / (SMALL_REQUEST_BYTES + 1)
        );
        let small: Vec<_> = std::iter::from_fn(|| room.take(SMALL_REQUEST_BYTES).ok()).collect();
        assert!(
            small.len() >= MAX_QUEUED_BYTES as usize / 4 / SMALL_REQUEST_BYTES,
            "{}",
            small.len()
        );
        drop((large, small));
        let _all = room.take(usize::MAX).unwrap();
        assert!(matches!(
            room.take(SMALL_REQUEST_BYTES + 1),
            Err(Error::TooManyRequests)
        ));
    }

    #[test]
    fn small_operations_of_a_txn_take_memory() {
        let txn = TxnOp {
            success: vec![Op::Txn(TxnOp::default()); 3],
            ..TxnOp::default()
        };
        let request = Command::Write(Op::Txn(txn), Meter::unlimited());
        assert_eq!(request.memory(), 4 * size_of::<Op>());
        assert_eq!(Command::Compact(1).memory(), 0);
    }

    #[tokio::test]
    async fn request_that_waits_when_its_epoch_ends_is_for_the_next_leader() {
        let (handle, owner) = SequencerHandle::new(Duration::ZERO);
        let commands = owner.take();
        let ends = async move { drop(commands) };
        let (outcome, ()) = tokio::join!(handle.compact(1), ends);
        assert!(matches!(outcome.result, Err(Error::NotLeader)), "{outcome:?}");
    }
}
