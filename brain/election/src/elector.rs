//! The loop around [`State`]: calls the lock, with a time limit for each call, and publishes the result.
//!
//! Invariant: the handle shows a valid lease only while `State` holds it, and every answer is applied to `State` before the next
//! await; so the loop may be dropped at any await.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::call::{Call, CallKind, Observer};
use crate::config::JITTER_FACTOR;
use crate::handle::{Command, Shared, TransferError};
use crate::{
    AfterLoss, BootClock, Clock, Config, ConfigError, Decision, ElectionState, Handle, Lock, LockError, Predecessor,
    Record, State,
};

/// The capacity of the command queue; further callers block on send.
const COMMAND_QUEUE_CAPACITY: usize = 4;
/// The number of attempts to give the lock away. Each may conflict with a renewal of this candidate that was still in flight, or
/// get no answer.
const YIELD_ATTEMPTS: usize = 3;
/// The time limit of all these attempts together, so that the process can stop soon.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// One candidate for one lock.
#[derive(Debug)]
pub struct Elector<L: Lock, C: Clock = BootClock> {
    lock: L,
    clock: C,
    config: Config,
    state: State<L::Version>,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    /// Keeps `commands` open after all handles are dropped.
    _commands: mpsc::Sender<Command>,
    rng: StdRng,
    /// True if the last call failed: only the first of consecutive failures is logged as a warning.
    failing: bool,
    observer: Observer,
    /// The time that the last write took, or the time after which it was given up.
    last_write: Duration,
}

/// The reasons why [`Elector::run`] ends without having been stopped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Leadership was lost, and the configuration has [`AfterLoss::Return`].
    #[error("lost the lock {lock} to {to}")]
    Lost {
        /// The lock's name.
        lock: String,
        /// The new holder, if known.
        to: String,
    },
}

impl<L: Lock> Elector<L> {
    /// Creates a candidate on the machine's own clock, and its handle. It does nothing until [`Elector::run`].
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(lock: L, config: Config) -> Result<(Self, Handle), ConfigError> {
        Self::with_clock(lock, config, BootClock, rand::random())
    }
}

impl<L: Lock, C: Clock> Elector<L, C> {
    /// Like [`Elector::new`], with a clock and a seed for the jitter.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn with_clock(lock: L, config: Config, clock: C, seed: u64) -> Result<(Self, Handle<C>), ConfigError> {
        config.validate()?;
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        let shared = Arc::new(Shared::new());
        let handle = Handle {
            shared: shared.clone(),
            commands: sender.clone(),
            clock: clock.clone(),
            lease_duration: config.lease_duration,
            renew_deadline: config.renew_deadline,
        };
        let elector = Self {
            lock,
            clock,
            state: State::new(config.clone()),
            config,
            shared,
            commands,
            _commands: sender,
            rng: StdRng::seed_from_u64(seed),
            failing: false,
            observer: Observer::default(),
            last_write: Duration::ZERO,
        };
        Ok((elector, handle))
    }

    /// Calls `observe` after each call to the lock.
    #[must_use]
    pub fn observed(mut self, observe: impl Fn(&Call) + Send + Sync + 'static) -> Self {
        self.observer = Observer(Arc::new(observe));
        self
    }

    /// Campaigns and leads until `stop`, then releases the lock if it holds it. May be dropped at any time: the term then ends at
    /// once, but other candidates must wait until the lease expires.
    ///
    /// # Errors
    /// [`RunError::Lost`], if the configuration asks for it.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), RunError> {
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(command) = self.commands.recv() => self.obey(command).await,
                () = sleep(pause) => {}
            }
            let led = self.state.held().is_some();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                next = self.turn() => pause = next,
            }
            self.publish();
            if led && self.state.held().is_none() && self.config.after_loss == AfterLoss::Return {
                return Err(self.lost());
            }
        }
        if timeout(RELEASE_TIMEOUT, self.release()).await.is_err() {
            warn!(lock = self.lock.describe(), "could not release the lock in time");
        }
        Ok(())
    }

    /// Runs one round: acts until there is nothing to do for a while or a term has ended, and returns the time to wait.
    async fn turn(&mut self) -> Duration {
        let began = self.clock.now();
        let led = self.state.held().is_some();
        if !led {
            if let Some(quiet) = self.state.quiet(began) {
                return quiet;
            }
            self.state.doubt();
        }
        loop {
            let now = self.clock.now();
            if self.state.expire(now) {
                let (deadline, last) = (self.config.renew_deadline, self.last_write);
                warn!(lock = self.lock.describe(), ?deadline, last_renewal_took = ?last, "could not renew the lease in time");
            }
            if led && self.state.held().is_none() {
                return Duration::ZERO;
            }
            let outcome = match self.state.decide(now, self.clock.wall()) {
                Decision::Read => self.read().await,
                Decision::Wait(left) => {
                    self.failing = false;
                    return self.retry_jittered().min(left);
                }
                Decision::Renew(record, version) => self.write(record, Some(version), None).await,
                Decision::Acquire(record, version, predecessor) => self.write(record, version, Some(predecessor)).await,
            };
            match outcome {
                Ok(Done::Read) => self.publish(),
                // A leader must learn at once who wrote; a candidate can wait.
                Err(LockError::Conflict) if led => {
                    debug!(lock = self.lock.describe(), "the lock changed under a renewal")
                }
                Ok(Done::Wrote) | Err(LockError::Conflict) => break,
                Err(LockError::Failed(error)) => {
                    if led {
                        self.shared.renewal_failed();
                    }
                    self.complain(&error);
                    break;
                }
            }
        }
        let now = self.clock.now();
        match self.state.valid_until() {
            Some(until) => self
                .config
                .retry_period
                .saturating_sub(now.since(began))
                .min(until.since(now)),
            None => self.retry_jittered(),
        }
    }

    async fn read(&mut self) -> Result<Done, LockError> {
        let timer = self.timer(CallKind::Read);
        let seen = timer.limited(self.limit(), self.lock.get()).await.0?;
        self.state.read(seen, self.clock.now());
        Ok(Done::Read)
    }

    /// Writes a claim or a renewal; the lease counts from before it is sent.
    async fn write(
        &mut self,
        record: Record,
        over: Option<L::Version>,
        claim: Option<Predecessor>,
    ) -> Result<Done, LockError> {
        if let Some(version) = &over {
            let (limit, timer) = (self.limit(), self.timer(CallKind::Write));
            // The update does again what was not done in time, if there is time left.
            if timeout(limit, self.lock.prepare(version)).await.is_err() {
                timer.gave_up(limit);
                if self.limit().is_zero() {
                    return Err(no_answer_within(limit));
                }
            }
        }
        let (limit, timer) = (self.limit(), self.timer(CallKind::Write));
        if let Some(predecessor) = claim {
            self.state.claiming(predecessor);
        }
        // The state is in doubt until the answer arrives, also if this future is dropped.
        self.state.doubt();
        let sent = self.clock.now();
        let (outcome, took) = match &over {
            Some(version) => timer.limited(limit, self.lock.update(&record, version)).await,
            None => timer.limited(limit, self.lock.create(&record)).await,
        };
        self.last_write = took;
        match outcome {
            Ok(version) => {
                self.state.wrote(record, version, sent, self.clock.now());
                self.failing = false;
                Ok(Done::Wrote)
            }
            Err(error) => {
                if matches!(error, LockError::Conflict) {
                    self.state.refused();
                }
                Err(error)
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Look => self.state.hear_nothing(),
            Command::Heard(record, at) => self.state.hear(record, at),
            Command::TransferLeadership(to, reply) => self.transfer_leadership(to, reply).await,
            Command::StepDown(reply) => self.step_down(reply).await,
            Command::Compete => self.state.rest(false),
        }
    }

    async fn transfer_leadership(&mut self, to: String, reply: oneshot::Sender<Result<(), TransferError>>) {
        let outcome = if self.state.expire(self.clock.now()) || self.state.held().is_none() {
            Err(TransferError::NotLeading)
        } else if to.is_empty() || to == self.config.identity {
            Err(TransferError::BadTarget(to))
        } else {
            self.name(&to).await
        };
        self.publish();
        if let Err(Err(error)) = reply.send(outcome) {
            warn!(%error, "could not transfer the lock, and no caller waits for the answer");
        }
    }

    async fn step_down(&mut self, reply: oneshot::Sender<Result<(), TransferError>>) {
        self.state.rest(true);
        let outcome = if self.state.expire(self.clock.now()) || self.state.held().is_none() {
            Err(TransferError::NotLeading)
        } else {
            let outcome = self.yield_to("").await;
            // The term ends even if the record could not be changed and must expire.
            self.state.end();
            outcome
        };
        self.publish();
        if let Err(Err(error)) = reply.send(outcome) {
            warn!(%error, "could not step down, and no caller waits for the answer");
        }
    }

    /// Ends the term, then names `to` in the record, in a few attempts: an attempt without an answer may or may not have arrived.
    async fn name(&mut self, to: &str) -> Result<(), TransferError> {
        let mut outcome = self.yield_to(to).await;
        for _ in 1..YIELD_ATTEMPTS {
            if !matches!(outcome, Err(TransferError::Lock(_))) {
                break;
            }
            outcome = match self.read().await {
                Ok(_) if self.state.holder() == Some(to) => Ok(()),
                Ok(_) => self.yield_to(to).await,
                Err(error) => Err(TransferError::Lock(error)),
            };
        }
        outcome
    }

    /// Ends the term, then names `to`, or no holder, in the record.
    async fn yield_to(&mut self, to: &str) -> Result<(), TransferError> {
        if !self.state.is_fresh() {
            self.read().await.map_err(TransferError::Lock)?;
        }
        let Some((record, version)) = self.state.yield_to(to, self.clock.now(), self.clock.wall()) else {
            return Err(if self.state.held().is_some() {
                TransferError::TooEarly
            } else {
                TransferError::NotLeading
            });
        };
        self.state.doubt();
        self.publish();
        let timer = self.timer(CallKind::Write);
        let update = self.lock.update(&record, &version);
        let (outcome, _) = timer.limited(self.config.call_timeout, update).await;
        outcome.map_err(TransferError::Lock)?;
        info!(lock = self.lock.describe(), to, "transferred the lock");
        Ok(())
    }

    /// Releases the lock if the record names this candidate, or if a claim in flight may still do so.
    async fn release(&mut self) {
        for _ in 0..YIELD_ATTEMPTS {
            if !self.state.may_be_named() {
                break;
            }
            match self.yield_to("").await {
                Err(TransferError::Lock(LockError::Conflict)) => {}
                Err(TransferError::Lock(error)) => {
                    warn!(
                        error = format!("{:#}", anyhow::Error::from(error)),
                        "could not release the lock"
                    );
                    break;
                }
                Ok(()) | Err(_) => break,
            }
        }
    }

    /// Returns the time limit of a call: never longer than the lease that it is to extend.
    fn limit(&self) -> Duration {
        let left = self.state.valid_until().map(|until| until.since(self.clock.now()));
        self.config.call_timeout.min(left.unwrap_or(Duration::MAX))
    }

    /// Measures a call that begins now.
    fn timer(&self, kind: CallKind) -> Timer<C> {
        Timer {
            clock: self.clock.clone(),
            observer: self.observer.clone(),
            kind,
            leads: self.state.held().is_some(),
        }
    }

    fn retry_jittered(&mut self) -> Duration {
        self.config
            .retry_period
            .mul_f64(1.0 + JITTER_FACTOR * self.rng.random::<f64>())
    }

    fn publish(&self) {
        let election_state = self.state.election_state(self.clock.now());
        if self.shared.publish(self.state.held(), election_state.clone()) {
            let lock = self.lock.describe();
            match election_state {
                ElectionState::NoLeader => info!(lock, "no leader"),
                ElectionState::Following { leader } => info!(lock, leader, "following"),
                ElectionState::Leading(term) => info!(
                    lock,
                    term = term.number,
                    transitions = term.transitions,
                    predecessor = ?term.predecessor,
                    "leading"
                ),
            }
        }
    }

    fn complain(&mut self, error: &anyhow::Error) {
        let lock = self.lock.describe();
        if std::mem::replace(&mut self.failing, true) {
            debug!(lock, error = format!("{error:#}"), "no answer from the lock");
        } else {
            warn!(lock, error = format!("{error:#}"), "no answer from the lock");
        }
    }

    fn lost(&self) -> RunError {
        let to = match self.state.election_state(self.clock.now()) {
            ElectionState::Following { leader } => leader,
            ElectionState::NoLeader | ElectionState::Leading(_) => "nobody".to_owned(),
        };
        RunError::Lost {
            lock: self.lock.describe(),
            to,
        }
    }
}

impl<L: Lock, C: Clock> Drop for Elector<L, C> {
    fn drop(&mut self) {
        self.shared.publish(None, ElectionState::NoLeader);
    }
}

enum Done {
    Read,
    Wrote,
}

/// Measures one call.
struct Timer<C> {
    clock: C,
    observer: Observer,
    kind: CallKind,
    leads: bool,
}

impl<C: Clock> Timer<C> {
    /// Waits for the answer to a call, at most `limit`, and returns the time that it took as well.
    async fn limited<T>(
        self,
        limit: Duration,
        call: impl Future<Output = Result<T, LockError>>,
    ) -> (Result<T, LockError>, Duration) {
        let sent = self.clock.now();
        let answer = timeout(limit, call).await;
        let took = self.clock.now().since(sent);
        (self.observer.0)(&Call {
            kind: self.kind,
            took,
            is_answered: answer.is_ok(),
            leads: self.leads,
        });
        (answer.unwrap_or_else(|_| Err(no_answer_within(limit))), took)
    }

    /// Records that a call was given up after this time, before it was sent as a whole.
    fn gave_up(self, took: Duration) {
        (self.observer.0)(&Call {
            kind: self.kind,
            took,
            is_answered: false,
            leads: self.leads,
        });
    }
}

fn no_answer_within(limit: Duration) -> LockError {
    LockError::Failed(anyhow::anyhow!("no answer within {limit:?}"))
}

#[cfg(test)]
mod tests;
