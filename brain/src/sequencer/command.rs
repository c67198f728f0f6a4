//! What the sequencer is asked, and the handle that asks.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::mvcc::op::{Op, OpResult};
use crate::mvcc::{Error, LeaseId, Revision};

/// How long a request waits for its outcome, as etcd's `ReqTimeout` with default timings: 5 s and twice the election timeout.
const TIMEOUT: Duration = Duration::from_secs(7);

/// Requests that may wait for the sequencer. More are refused with `too many requests`.
pub const QUEUE: usize = 10_000;

/// What to do.
#[derive(Debug)]
pub enum Request {
    /// Put, delete or txn.
    Write(Op),
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
    /// Note the remaining time of a lease, in seconds; 0 for none.
    Checkpoint(LeaseId, i64),
    /// Raise or clear an alarm: member, kind, raised.
    Alarm(u64, i32, bool),
}

/// A change that was made, or a txn that made none.
#[derive(Debug)]
pub struct Answer {
    /// The revision for the header.
    pub revision: Revision,
    /// What a write did; `None` for everything else.
    pub result: Option<OpResult>,
}

/// A request, and who waits for its outcome.
#[derive(Debug)]
pub struct Command {
    /// What to do.
    pub request: Request,
    /// Its size on the wire in bytes, roughly.
    pub size: usize,
    /// Where the outcome goes; `None` when the sequencer asks itself.
    pub reply: Option<oneshot::Sender<Result<Answer, Error>>>,
}

/// Asks the sequencer. When its queue is full requests are refused at once.
#[derive(Debug, Clone)]
pub struct Handle {
    inbox: mpsc::Sender<Command>,
}

impl Handle {
    /// A handle, and where its requests arrive.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Command>) {
        let (inbox, commands) = mpsc::channel(QUEUE);
        (Self { inbox }, commands)
    }

    /// Has a request done for somebody who has gone. When the queue is full it is not.
    pub fn leave(&self, request: Request, size: usize) {
        let left = self.inbox.try_send(Command {
            request,
            size,
            reply: None,
        });
        if let Err(error) = left {
            tracing::debug!(%error, "nobody is left to clean up");
        }
    }

    /// Has a request done. What was sent is done even if the caller goes away.
    ///
    /// # Errors
    /// What the client is told. After [`Error::Timeout`] it is wholly done or wholly not.
    pub async fn ask(&self, request: Request, size: usize) -> Result<Answer, Error> {
        let (reply, outcome) = oneshot::channel();
        self.inbox
            .try_send(Command {
                request,
                size,
                reply: Some(reply),
            })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Error::TooManyRequests,
                mpsc::error::TrySendError::Closed(_) => Error::Stopped,
            })?;
        match tokio::time::timeout(TIMEOUT, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(Error::Timeout),
        }
    }
}
