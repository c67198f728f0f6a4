//! The handle of an elector: its state, and requests to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::state::{Held, Predecessor};
use crate::{BootClock, Clock, LockError, Moment, Record};

/// The leader, as one candidate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionState {
    /// Nobody, or nobody known.
    NoLeader,
    /// Another candidate, by the last record seen.
    Following {
        /// Its identity.
        leader: String,
    },
    /// This one. Before acting on it, ask [`Handle::valid_until`].
    Leading(Term),
}

/// One unbroken time of leading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Counts this elector's terms, from 1.
    pub number: u64,
    /// How often the lock's holder had changed, by the record.
    pub transitions: u32,
    /// When it was won, on this process's clock.
    pub since: Moment,
    /// What is known of the leader before. Who leads after [`Predecessor::Unseen`] must wait before it serves.
    pub predecessor: Predecessor,
}

/// Why the lock was not handed over. Except after `NotLeading` and `TooEarly`, this candidate leads no more.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// There is nothing to transfer.
    #[error("this candidate does not lead")]
    NotLeading,
    /// An older leader that this candidate did not see end may still be valid: try again after a lease duration.
    #[error("an older leader may still be valid, and the next one would not know")]
    TooEarly,
    /// Nobody can be named by an empty or its own identity.
    #[error("{0:?} is no other candidate")]
    BadTarget(String),
    /// The outcome is unknown: the lock may name the other, or run out.
    #[error("the lock did not confirm the hand-over")]
    Lock(#[source] LockError),
    /// The elector has ended.
    #[error("the elector has ended")]
    Ended,
}

/// The watchdog's finding: the elector says it leads, yet has neither renewed nor stepped down.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("leader election is stuck: leading, but the lease was last renewed {since:?} ago")]
pub struct Overdue {
    /// Time since the last successful renewal was sent.
    pub since: Duration,
}

pub(crate) enum Command {
    Look,
    Heard(Record, Moment),
    TransferLeadership(String, oneshot::Sender<Result<(), TransferError>>),
    StepDown(oneshot::Sender<Result<(), TransferError>>),
    Compete,
}

/// What the elector shows: written by it alone.
#[derive(Debug)]
pub(crate) struct Shared {
    held: Mutex<Option<Held>>,
    election_state: watch::Sender<ElectionState>,
    renewal: watch::Sender<Option<Record>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::new(None),
            election_state: watch::Sender::new(ElectionState::NoLeader),
            renewal: watch::Sender::new(None),
        }
    }

    /// Shows the right before the state, and takes it away before it: who sees `Leading` finds the right of that term.
    /// Answers whether the state changed.
    pub(crate) fn publish(&self, held: Option<&Held>, election_state: ElectionState) -> bool {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held.cloned();
        self.renewal.send_if_modified(|shown| {
            let record = held.map(|held| &held.record);
            let changed = shown.as_ref() != record;
            if changed {
                *shown = record.cloned();
            }
            changed
        });
        self.election_state.send_if_modified(|shown| {
            let changed = *shown != election_state;
            *shown = election_state;
            changed
        })
    }

    fn held(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A handle on a running [`Elector`](crate::Elector). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle<C = BootClock> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) clock: C,
    pub(crate) lease_duration: Duration,
    pub(crate) renew_deadline: Duration,
}

impl<C: Clock> Handle<C> {
    /// Follows who leads. Only the newest state is kept.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ElectionState> {
        self.shared.election_state.subscribe()
    }

    /// The leader, by the elector's last turn.
    #[must_use]
    pub fn election_state(&self) -> ElectionState {
        self.shared.election_state.borrow().clone()
    }

    /// Until when this process may act as the leader of term `number`: `None` if it may not now, by its own clock. Right also
    /// when the elector's task did not run for a while.
    #[must_use]
    pub fn valid_until(&self, number: u64) -> Option<Moment> {
        let renewed = self.renewed(number)?;
        Some(renewed + self.renew_deadline).filter(|until| self.clock.now() < *until)
    }

    /// When the last request that prolonged term `number` was sent; `None` if that term is over.
    #[must_use]
    pub fn renewed(&self, number: u64) -> Option<Moment> {
        let held = self.shared.held()?;
        (held.term.number == number).then_some(held.renewed)
    }

    /// Follows what this candidate writes while it leads, for those to whom it can tell it: see [`Handle::hear`].
    #[must_use]
    pub fn renewals(&self) -> watch::Receiver<Option<Record>> {
        self.shared.renewal.subscribe()
    }

    /// Returns true if this process may act as a leader now, by its own clock.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        let held = self.shared.held();
        held.is_some_and(|held| self.clock.now() < held.renewed + self.renew_deadline)
    }

    /// For health checks: finds an elector that leads but has neither renewed nor stepped down for a lease duration and
    /// `tolerance`. A follower is always healthy.
    ///
    /// # Errors
    /// The elector's task does not run.
    pub fn check(&self, tolerance: Duration) -> Result<(), Overdue> {
        let Some(held) = self.shared.held() else { return Ok(()) };
        let since = self.clock.now().since(held.renewed);
        if since > self.lease_duration + tolerance {
            Err(Overdue { since })
        } else {
            Ok(())
        }
    }

    /// Ends this candidate's term and names `to` in the record, which can then lead as soon as it looks. Drain before.
    /// If `to` does not look, the others take over after a lease duration.
    ///
    /// # Errors
    /// See [`TransferError`]; each variant says who leads now.
    pub async fn transfer_leadership(&self, to: &str) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::TransferLeadership(to.to_owned(), reply);
        self.commands.send(command).await.map_err(|_| TransferError::Ended)?;
        answer.await.map_err(|_| TransferError::Ended)?
    }

    /// Ends this candidate's term, gives the lock to whoever looks first, and claims it no more before [`Handle::compete`]: for
    /// a leader that can renew the lock and nothing else.
    ///
    /// # Errors
    /// See [`TransferError`]. An error claims nothing.
    pub async fn step_down(&self) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::StepDown(reply);
        self.commands.send(command).await.map_err(|_| TransferError::Ended)?;
        answer.await.map_err(|_| TransferError::Ended)?
    }

    /// Competes again after [`Handle::step_down`].
    pub async fn compete(&self) {
        // An elector that has ended competes for nothing.
        drop(self.commands.send(Command::Compete).await);
    }

    /// Tells a follower that who leads said so of itself, by [`Handle::renewals`]: the lock is not read as long as new ones
    /// come. [`Handle::look`] when whoever said it is gone.
    pub fn hear(&self, record: Record) {
        // A full queue has the elector awake, and it reads the lock.
        drop(self.commands.try_send(Command::Heard(record, self.clock.now())));
    }

    /// Lets the elector read the lock at once instead of at its next turn: for a follower that was told of a transfer, or
    /// hears its leader no more.
    pub fn look(&self) {
        // A full queue has the elector awake, and an ended one has nothing to look for.
        drop(self.commands.try_send(Command::Look));
    }
}
