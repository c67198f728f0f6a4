//! The handle of an elector: its state, and requests to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::state::{Held, Predecessor};
use crate::{BootClock, Clock, LockError, Moment, Record};

/// The leader, as one candidate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionState {
    /// There is no leader, or none is known.
    NoLeader,
    /// Another candidate leads, by the last record seen.
    Following {
        /// Its identity.
        leader: String,
    },
    /// This candidate leads. Check [`Handle::valid_until`] before acting on it.
    Leading(Term),
}

/// One uninterrupted leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Counts this elector's terms, from 1.
    pub number: u64,
    /// The number of times that the lock's holder had changed, by the record.
    pub transitions: u32,
    /// The time at which it was won, on this process's clock.
    pub since: Moment,
    /// The knowledge of the leader before. A leader after [`Predecessor::Unseen`] must wait before it serves.
    pub predecessor: Predecessor,
}

/// The reason why the lock was not handed over. Except after `NotLeading` and `TooEarly`, this candidate no longer leads.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// There is nothing to transfer.
    #[error("this candidate does not lead")]
    NotLeading,
    /// An older leader that this candidate did not see end may still be valid: try again after a lease duration.
    #[error("an older leader may still be valid, and the next one would not know")]
    TooEarly,
    /// The target's identity is empty or this candidate's own.
    #[error("{0:?} is not another candidate")]
    BadTarget(String),
    /// The outcome is unknown: the lock may name the target, or expire.
    #[error("the lock did not confirm the transfer")]
    Lock(#[source] LockError),
    /// The elector has ended.
    #[error("the elector has ended")]
    Ended,
}

/// The finding of the watchdog: the elector claims to lead, but has neither renewed nor stepped down.
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

/// The published state of the elector; only the elector writes it.
#[derive(Debug)]
pub(crate) struct Shared {
    held: Mutex<Option<Held>>,
    election_state: watch::Sender<ElectionState>,
    renewal: watch::Sender<Option<Record>>,
    failed_renewals: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::new(None),
            election_state: watch::Sender::new(ElectionState::NoLeader),
            renewal: watch::Sender::new(None),
            failed_renewals: AtomicU64::new(0),
        }
    }

    pub(crate) fn renewal_failed(&self) {
        self.failed_renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Publishes the lease before the state, and revokes it before the state: a reader that sees `Leading` finds the lease of that
    /// term. Returns true if the state changed.
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
    /// Subscribes to changes of the leader. Only the newest state is kept.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<ElectionState> {
        self.shared.election_state.subscribe()
    }

    /// Returns the leader as of the elector's last round.
    #[must_use]
    pub fn election_state(&self) -> ElectionState {
        self.shared.election_state.borrow().clone()
    }

    /// Returns the time until which this process may act as the leader of term `number`; `None` if it may not now, by its own
    /// clock. The result is correct even if the elector's task has not run for a while.
    #[must_use]
    pub fn valid_until(&self, number: u64) -> Option<Moment> {
        let renewed = self.renewed(number)?;
        Some(renewed + self.renew_deadline).filter(|until| self.clock.now() < *until)
    }

    /// Returns when the last request that extended term `number` was sent; `None` if that term is over.
    #[must_use]
    pub fn renewed(&self, number: u64) -> Option<Moment> {
        let held = self.shared.held()?;
        (held.term.number == number).then_some(held.renewed)
    }

    /// Subscribes to the records that this candidate writes while it leads, to forward them to followers: see [`Handle::hear`].
    #[must_use]
    pub fn renewals(&self) -> watch::Receiver<Option<Record>> {
        self.shared.renewal.subscribe()
    }

    /// Returns the number of renewals that the lock did not answer, or not in time.
    #[must_use]
    pub fn failed_renewals(&self) -> u64 {
        self.shared.failed_renewals.load(Ordering::Relaxed)
    }

    /// Returns true if this process may act as a leader now, by its own clock.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        let held = self.shared.held();
        held.is_some_and(|held| self.clock.now() < held.renewed + self.renew_deadline)
    }

    /// Detects, for health checks, an elector that leads but has neither renewed nor stepped down for a lease duration and
    /// `tolerance`. A follower is always healthy.
    ///
    /// # Errors
    /// The elector's task does not make progress.
    pub fn check(&self, tolerance: Duration) -> Result<(), Overdue> {
        let Some(held) = self.shared.held() else { return Ok(()) };
        let since = self.clock.now().since(held.renewed);
        if since > self.lease_duration + tolerance {
            Err(Overdue { since })
        } else {
            Ok(())
        }
    }

    /// Ends this candidate's term and names `to` in the record, which can then lead as soon as it reads the lock. Drain before. If
    /// `to` does not read the lock, the others take over after a lease duration.
    ///
    /// # Errors
    /// See [`TransferError`]; each variant says who leads now.
    pub async fn transfer_leadership(&self, to: &str) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::TransferLeadership(to.to_owned(), reply);
        self.commands.send(command).await.map_err(|_| TransferError::Ended)?;
        answer.await.map_err(|_| TransferError::Ended)?
    }

    /// Ends this candidate's term, releases the lock to the first candidate that takes it, and does not claim it again before
    /// [`Handle::compete`]: for a leader that can renew the lock but do nothing else.
    ///
    /// # Errors
    /// See [`TransferError`]. After an error, too, it claims nothing.
    pub async fn step_down(&self) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::StepDown(reply);
        self.commands.send(command).await.map_err(|_| TransferError::Ended)?;
        answer.await.map_err(|_| TransferError::Ended)?
    }

    /// Competes again after [`Handle::step_down`].
    pub async fn compete(&self) {
        // An elector that has ended does not compete.
        drop(self.commands.send(Command::Compete).await);
    }

    /// Passes on to a follower a record that its leader wrote and published with [`Handle::renewals`]: the lock is not read as long
    /// as new ones arrive. Call [`Handle::look`] when the sender is gone.
    pub fn hear(&self, record: Record) {
        // If the queue is full, the elector is awake and reads the lock.
        drop(self.commands.try_send(Command::Heard(record, self.clock.now())));
    }

    /// Makes the elector read the lock at once instead of in its next round: for a follower that was notified of a transfer, or
    /// that no longer receives renewals.
    pub fn look(&self) {
        // If the queue is full, the elector is awake; if it has ended, there is nothing to read.
        drop(self.commands.try_send(Command::Look));
    }
}
