//! The leadership loop: leads while this member holds the lock, and follows otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use election::{ElectionState, Handle as Election, Term as ElectionTerm, TransferError};
use rand::RngExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::follow::{FollowerIdentity, is_damage};
use super::followers::Followers;
use super::liveness::Liveness;
use super::peers::{Peers, is_of_another_cluster, is_refusal, name_of};
use super::self_hosted_lease::{SelfHosted, SelfHostedLease};
use crate::forward::{LaterLeader, LeaderLease, Role};
use crate::node::Node;
use crate::term::{LockClaim, Term, TermEnd, TermNotifier};
use engine::log::{DynLog, Unanswered};
use engine::rows::DynRows;
use etcd_types::errors::Error;
use runtime::backoff::Backoff;
use runtime::log_once::LogOnce;
use store::state::StoreState;
use unfollowed::Unfollowed;

mod lease_guard;
mod storage;
mod unfollowed;

/// Time spent tailing the log before a leader that could not be followed is dialled again.
const REDIAL_DELAY: Duration = Duration::from_millis(100);

/// The timeout for the writer to finish queued requests in an orderly shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(2_500);

/// The same if no other member can lead: then rows are flushed, too.
const DRAIN_AND_FLUSH_TIMEOUT: Duration = Duration::from_secs(4);

/// The shortest timeout of a transfer of the lock, and of its release; it is the renew deadline if that is longer.
const MIN_TRANSFER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A term of at least this length resets the count of storage failures.
const HEALTHY_TERM: Duration = Duration::from_secs(60);

/// The pause after a storage failure grows up to this many times the first one.
const MAX_REST_FACTOR: u32 = 16;

/// Time for a transfer's target to become a follower: right after a change of leader there are none yet.
const TRANSFER_TARGET_TIMEOUT: Duration = Duration::from_secs(2);

/// A transfer of leadership that has begun.
#[derive(Debug, Default)]
struct PendingTransfer {
    /// The request for it; none if this member stops.
    asked: Option<TransferLeader>,
    /// The election identity of a follower that could lead when it began.
    identity: Option<String>,
}

/// A request to transfer leadership to another member.
#[derive(Debug)]
pub struct TransferLeader {
    /// The target's id.
    pub target: u64,
    /// The channel for the outcome.
    pub reply: oneshot::Sender<Result<(), Error>>,
}

/// The other members, and the followers among them.
#[derive(Debug, Clone)]
pub struct OtherMembers {
    /// The connections to them.
    pub peers: Peers,
    /// This member, as a follower.
    pub follower: FollowerIdentity,
    /// The members that follow this one.
    pub followers: Followers,
    /// Limits log lines about leaders that cannot be followed.
    pub log_once: LogOnce<String>,
}

/// The inputs of the leadership loop, and the channels that publish its state.
pub struct LeadershipLoop {
    /// The elector.
    pub election: Election,
    /// Length of the leader's lease after a renewal was sent.
    pub renew_deadline: Duration,
    /// Publishes the role of this member.
    pub roles: watch::Sender<Role>,
    /// The other members; `None` if there are none, and no other member can lead.
    pub cluster: Option<OtherMembers>,
    /// Requests to transfer leadership.
    pub transfers: mpsc::Receiver<TransferLeader>,
    /// The id of the lock: see [`LockClaim`].
    pub lock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The latest epoch that began under another lock, if renewals of this lock reveal it.
    pub announced_epoch: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// The Lease that must not be stored in this cluster.
    pub self_hosted_lease: Option<SelfHostedLease>,
    /// Updated whenever the log was read.
    pub liveness: Liveness,
    /// The pause before this member competes again after its storage failed.
    pub rest: CampaignPause,
}

/// The pause of a member whose storage failed while it led: it does not compete before the pause is over and storage answers,
/// because other members may have a better path to storage.
#[derive(Debug, Default)]
pub struct CampaignPause {
    /// It competes again at this time, if storage answers.
    until: Option<Instant>,
    /// The number of consecutive terms that ended with a storage failure.
    failures: u32,
}

impl CampaignPause {
    /// Records that storage failed in a term that began at `term`.
    fn begin(&mut self, term: Instant, lease: Duration) {
        if term.elapsed() >= HEALTHY_TERM {
            self.failures = 0;
        }
        let first = storage::limit(lease);
        let rest = Backoff::new(first, first * MAX_REST_FACTOR).after(self.failures);
        let rest = rest.mul_f64(rand::rng().random_range(1.0..1.5));
        self.failures += 1;
        self.until = Some(Instant::now() + rest);
    }

    /// Returns when it may compete again: soon, if there is no leader, because then no member has a better path to storage.
    fn until(&self, election_state: &ElectionState, lease: Duration) -> Option<Instant> {
        let soon = Instant::now() + storage::limit(lease);
        match election_state {
            ElectionState::NoLeader => self.until.map(|until| until.min(soon)),
            ElectionState::Following { .. } | ElectionState::Leading(_) => self.until,
        }
    }
}

/// Runs a member until `stop`. `ended` is cancelled when it neither leads nor follows any more: the lock is needed until then.
/// Fails if log or rows fail, or if another process writes to a store that only this one may write to.
pub async fn run(
    node: Node,
    mut leadership: LeadershipLoop,
    stop: CancellationToken,
    ended: CancellationToken,
) -> anyhow::Result<()> {
    let _ended = ended.drop_guard();
    let outcome = leadership.work(node, &stop).await;
    leadership.roles.send_replace(Role::Stopped);
    outcome
}

impl LeadershipLoop {
    async fn work(&mut self, mut node: Node, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut election_state = self.election.watch();
        while !stop.is_cancelled() {
            let now = election_state.borrow_and_update().clone();
            if let ElectionState::Leading(term) = &now {
                let how;
                (node, how) = self.lead(node, term, stop).await?;
                if how == TermEnd::Deposed {
                    anyhow::ensure!(
                        self.cluster.is_some(),
                        "another process writes to this store, although its lock is held here"
                    );
                    warn!("a later leader writes, although the lock is held here: do all members use the same lock?");
                    // Long enough for the other leader to serve for a while.
                    let rest = self.renew_deadline.mul_f64(rand::rng().random_range(2.0..4.0));
                    self.wait(&mut node, &now, &mut election_state, Some(rest), stop)
                        .await?;
                }
            } else {
                self.wait(&mut node, &now, &mut election_state, None, stop).await?;
            }
        }
        Ok(())
    }

    /// Follows until the leader changes or the limit has passed.
    async fn wait(
        &mut self,
        node: &mut Node,
        now: &ElectionState,
        election_state: &mut watch::Receiver<ElectionState>,
        limit: Option<Duration>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let limit = tokio::time::sleep(limit.unwrap_or(Duration::MAX));
        tokio::pin!(limit);
        let rested = rested(
            self.rest.until(now, node.lease),
            ((node.log.clone(), node.rows.clone()), node.replica.state().clone()),
            node.lease,
        );
        tokio::pin!(rested);
        let shown = (&self.roles, &self.liveness);
        let followed = follow(&self.election, shown, self.cluster.as_ref(), node, now);
        tokio::pin!(followed);
        let outcome = loop {
            tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(()),
            changed = election_state.changed() => break changed.context("the election ended"),
            () = &mut limit => break Ok(()),
            Some(asked) = self.transfers.recv() => refuse(asked, Error::NotLeader),
            () = &mut rested, if self.rest.until.is_some() => {
            self.rest.until = None;
            tracing::info!("storage answers again: this member can lead");
            self.election.compete().await;
            // A new stream reports to the leader that this member can lead.
            break Ok(());
            }
            damaged = &mut followed => break damaged,
            }
        };
        self.roles.send_replace(Role::Nobody);
        outcome
    }

    async fn lead(
        &mut self,
        node: Node,
        term: &ElectionTerm,
        stop: &CancellationToken,
    ) -> anyhow::Result<(Node, TermEnd)> {
        let (lost, drain) = (CancellationToken::new(), CancellationToken::new());
        let leader_lease = self.new_lease();
        let (log, rows, state) = (node.log.clone(), node.rows.clone(), node.replica.state().clone());
        let (unanswered, lease) = (node.unanswered.clone(), node.lease);
        let began = Instant::now();
        let followers = self.cluster.as_ref().map(|cluster| cluster.followers.clone());
        let (leads, mut overtaken) = (AtomicBool::new(false), false);
        let failing = storage::failed(&state, &rows, &leads, &unanswered, followers.as_ref(), lease);
        tokio::pin!(failing);
        let drain_limit = if self.cluster.is_some() {
            DRAIN_TIMEOUT
        } else {
            DRAIN_AND_FLUSH_TIMEOUT
        };
        let slow = over_limit(&drain, drain_limit);
        tokio::pin!(slow);
        // The reason why this member gives up the lock.
        let mut unable: Option<String> = None;
        let (begun, mut begins) = oneshot::channel();
        let (placed, placing) = oneshot::channel();
        let mut election_state = self.election.watch();
        let mut transfer = PendingTransfer::default();
        // A leader that saw no predecessor end may not hand over within its first lease: requests to transfer wait.
        let transferable = tokio::time::sleep(node.lease * u32::from(!term.predecessor.ended()));
        tokio::pin!(transferable);
        let mut may_transfer = false;
        let mut awaited: Option<(TransferLeader, Instant)> = None;
        let claim = LockClaim {
            lock: (self.lock)(),
            predecessor_expired: term.predecessor.ended(),
        };
        let run = Term { node, claim }.run(&drain, &lost, TermNotifier { placed, begun });
        tokio::pin!(run);
        let circular = circular(self.self_hosted_lease.as_ref(), &state, placing);
        tokio::pin!(circular);
        let (node, mut how) = loop {
            tokio::select! {
            biased;
            after = &mut run => break after?,
            () = over(&mut election_state, term.number), if !lost.is_cancelled() => {
            warn!("lost leadership");
            lost.cancel();
            }
            () = stop.cancelled(), if !drain.is_cancelled() => transfer = self.begin_transfer(None, &drain),
            begun = &mut begins, if !leads.load(Ordering::Relaxed) && !lost.is_cancelled() => {
            // A dropped sender is followed by the term's end. A member that is already stopping does not begin to serve: it
            // may soon lose the lock.
            if begun.is_ok() && !drain.is_cancelled() {
            self.roles.send_replace(Role::Leading(leader_lease.clone()));
            }
            leads.store(true, Ordering::Relaxed);
            }
            () = lease_guard::guard(&self.election, term, (&leader_lease, self.renew_deadline), &*self.announced_epoch, (&log, &state, &unanswered)),
            if leads.load(Ordering::Relaxed) && self.cluster.is_some() && !lost.is_cancelled() =>
            {
            warn!("a later leader has begun");
            overtaken = true;
            lost.cancel();
            }
            reason = &mut failing, if unable.is_none() && self.has_others() && !lost.is_cancelled() => {
            unable = Some(reason);
            self.roles.send_replace(Role::Transferring);
            lost.cancel();
            }
            () = &mut slow, if !lost.is_cancelled() => {
            // The next leader serves queued requests. Requests in flight are answered with a timeout: the log decides their
            // outcome.
            if self.has_others() {
            unable = Some(format!("in-flight requests did not finish within {drain_limit:?}"));
            }
            warn!(limit = ?drain_limit, "the writer does not end in time: abandoning in-flight requests");
            lost.cancel();
            }
            found = &mut circular => return Err(found.into()),
            () = &mut transferable, if !may_transfer => may_transfer = true,
            Some(asked) = self.transfers.recv(), if may_transfer && awaited.is_none() && !drain.is_cancelled() => {
            awaited = Some((asked, Instant::now() + TRANSFER_TARGET_TIMEOUT));
            }
            follows = arrival(self.cluster.as_ref(), awaited.as_ref()), if !drain.is_cancelled() => {
            // If the reply channel is closed, the client has already been answered with an error.
            let asked = awaited.take().map(|(asked, _)| asked).filter(|asked| !asked.reply.is_closed());
            if follows && asked.is_some() {
            transfer = self.begin_transfer(asked, &drain);
            } else if let Some(asked) = asked {
            refuse(asked, Error::BadLeaderTransferee);
            }
            }
            }
        };
        if how == TermEnd::Stopped && self.cluster.is_some() {
            self.transfer_leadership_to(&mut transfer).await;
        }
        if how == TermEnd::Lost && overtaken {
            how = TermEnd::Deposed;
        }
        if let Some(reason) = unable.filter(|_| how == TermEnd::Lost) {
            self.rest.begin(began, lease);
            self.step_down(reason, &state).await;
        }
        for asked in transfer.asked.into_iter().chain(awaited.map(|(asked, _)| asked)) {
            refuse(asked, Error::TimeoutDueToLeaderFail);
        }
        self.roles.send_replace(Role::Nobody);
        Ok((node, how))
    }

    /// Returns the leader lease of a term that begins.
    fn new_lease(&self) -> LeaderLease {
        match self.cluster {
            Some(_) => LeaderLease::none(),
            None => LeaderLease::unbounded(),
        }
    }

    /// The time that the lock may take to be transferred or released: storage that is slow needs more.
    fn transfer_timeout(&self) -> Duration {
        self.renew_deadline.max(MIN_TRANSFER_TIMEOUT)
    }

    /// Returns true if another member could lead.
    fn has_others(&self) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.follower.members.watch().borrow().len() > 1)
    }

    /// Gives up the lock because of this member's path to storage, and leaves it to other members for a while. The outcome of
    /// requests in flight is unknown: the next leader's barrier decides it.
    async fn step_down(&self, reason: String, state: &StoreState) {
        warn!(reason, "cannot lead: giving up the lock for another member to take");
        state.set_cannot_lead(Some(format!("etcdserver: cannot lead: {reason}")));
        match tokio::time::timeout(self.transfer_timeout(), self.election.step_down()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(
                error = format!("{:#}", anyhow::Error::from(error)),
                "could not release the lock; it will expire"
            ),
            Err(_) => debug!(limit = ?self.transfer_timeout(), "timed out releasing the lock; it will expire"),
        }
    }

    /// Begins a transfer to the requested member, or to any: what is under way is ended, and then the term.
    fn begin_transfer(&self, asked: Option<TransferLeader>, drain: &CancellationToken) -> PendingTransfer {
        let identity = self.identity(asked.as_ref().map(|asked| asked.target));
        self.roles.send_replace(Role::Transferring);
        drain.cancel();
        PendingTransfer { asked, identity }
    }

    /// Returns the election identity of a follower that can lead.
    fn identity(&self, target: Option<u64>) -> Option<String> {
        self.cluster.as_ref()?.followers.identity(target)
    }

    /// Transfers leadership to the requested member or to any, and replies with the outcome.
    async fn transfer_leadership_to(&self, transfer: &mut PendingTransfer) {
        let target = transfer.asked.as_ref().map(|asked| asked.target);
        // The streams of followers end with the term, and then it is known no more who followed.
        let before = transfer.identity.take().filter(|_| target.is_some());
        let identity = self.identity(target).or(before);
        let limit = match target {
            Some(_) => self.transfer_timeout(),
            // A process that stops has no more time.
            None => MIN_TRANSFER_TIMEOUT,
        };
        let outcome = self.transfer_leadership(identity, limit).await;
        if let Some(asked) = transfer.asked.take() {
            let _gone = asked.reply.send(outcome);
        }
    }

    /// Transfers leadership to the member with this election identity, if there is one.
    async fn transfer_leadership(&self, identity: Option<String>, limit: Duration) -> Result<(), Error> {
        let Some(identity) = identity else {
            return Err(Error::BadLeaderTransferee);
        };
        let named = tokio::time::timeout(limit, self.election.transfer_leadership(&identity)).await;
        let Ok(named) = named else {
            warn!(?limit, "could not transfer leadership: no answer from the lock");
            return Err(Error::TimeoutDueToLeaderFail);
        };
        match named {
            Ok(()) => Ok(()),
            Err(TransferError::BadTarget(_)) => Err(Error::BadLeaderTransferee),
            Err(error) => {
                warn!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "could not transfer leadership"
                );
                Err(Error::TimeoutDueToLeaderFail)
            }
        }
    }
}

/// Completes when a drain has taken too long.
async fn over_limit(drain: &CancellationToken, limit: Duration) {
    drain.cancelled().await;
    tokio::time::sleep(limit).await;
}

/// Completes when a member has rested until `until` and its storage answers: it can lead again.
async fn rested(until: Option<Instant>, (engine, state): ((DynLog, DynRows), Arc<StoreState>), lease: Duration) {
    if let Some(until) = until {
        storage::recovered(engine, state.committed(), until, storage::limit(lease)).await;
        state.set_cannot_lead(None);
    }
}

/// Returns a check that reads the log for a leader later than the one known here.
pub fn later_leader(log: DynLog, state: Arc<StoreState>, unanswered: Unanswered) -> LaterLeader {
    Box::new(move || {
        let (log, state, unanswered) = (log.clone(), state.clone(), unanswered.clone());
        Box::pin(async move { Ok(lease_guard::has_later_barrier(&log, &state, &unanswered).await?) })
    })
}

/// Waits until the target of a transfer follows; returns false if it does not in time. A target that is not a member never does.
async fn arrival(cluster: Option<&OtherMembers>, awaited: Option<&(TransferLeader, Instant)>) -> bool {
    let Some((asked, until)) = awaited else {
        return std::future::pending().await;
    };
    let Some(cluster) = cluster else { return false };
    let is_member = cluster.follower.members.watch().borrow().contains_key(&asked.target);
    is_member
        && tokio::time::timeout_at(*until, cluster.followers.follows(asked.target))
            .await
            .is_ok()
}

/// Completes when the Lease of the election is found in the store, once everything that was stored before is known.
async fn circular(
    self_hosted_lease: Option<&SelfHostedLease>,
    state: &StoreState,
    placed: oneshot::Receiver<()>,
) -> SelfHosted {
    if let Some(self_hosted_lease) = self_hosted_lease
        && placed.await.is_ok()
        && let Err(circular) = self_hosted_lease.check_leading(state).await
    {
        return circular;
    }
    std::future::pending().await
}

/// Follows the current leader; ends only if data is damaged. May be dropped at any time.
async fn follow(
    election: &Election,
    (roles, liveness): (&watch::Sender<Role>, &Liveness),
    cluster: Option<&OtherMembers>,
    node: &mut Node,
    election_state: &ElectionState,
) -> anyhow::Result<()> {
    let known = match (election_state, cluster) {
        (ElectionState::Following { leader }, Some(cluster)) => Some((cluster, name_of(leader))),
        _ => None,
    };
    let mut unfollowed = Unfollowed::new();
    let mut refresher = store::replica::RowsRefresher::new(node.rows.clone());
    loop {
        if let Some((cluster, name)) = known {
            let dialled = Instant::now();
            let followed = async {
                let channel = cluster.peers.dial(name, &cluster.follower.members).await?;
                let id = cluster.peers.id(name);
                let shown = (roles, election, &mut refresher);
                let leader = (id, cluster.peers.metrics());
                node.follow(channel, &cluster.follower, leader, shown).await
            };
            let outcome = followed.await;
            let was_following = matches!(roles.send_replace(Role::Nobody), Role::Following(_));
            if was_following {
                // The leader's renewals no longer arrive, and it may have transferred the lock.
                election.look();
            }
            unfollowed.ended(dialled, (was_following, outcome.is_ok()));
            match outcome {
                Ok(()) => {}
                Err(error) if is_damage(&error) => return Err(error),
                Err(error) => {
                    debug!(leader = name, error = format!("{error:#}"), "cannot follow the leader");
                    let stuck = unfollowed.too_long().then_some("cannot follow the holder of the lock");
                    let reason = refusal(&error).or(stuck);
                    if let Some(reason) = reason
                        && cluster.log_once.due_for(format!("{name}: {reason}")).is_some()
                    {
                        warn!(leader = name, error = format!("{error:#}"), "{reason}");
                    }
                }
            }
        }
        let redial = known.is_some().then(|| Instant::now() + REDIAL_DELAY);
        node.tail(liveness, &mut refresher, redial).await?;
    }
}

/// Returns the reason why a leader cannot be followed, if an operator must fix it.
fn refusal(error: &anyhow::Error) -> Option<&'static str> {
    let status = error.downcast_ref::<tonic::Status>();
    let mismatch = |status: &tonic::Status| status.message() == Error::ClusterIdMismatch.to_string();
    if status.is_some_and(mismatch) || is_of_another_cluster(error) {
        Some("the leader belongs to another cluster")
    } else if is_refusal(error) {
        Some("the leader refuses this member's certificate, or has a wrong one")
    } else {
        None
    }
}

fn refuse(asked: TransferLeader, error: Error) {
    // The caller may be gone.
    let _gone = asked.reply.send(Err(error));
}

/// Waits until term `number` is over.
async fn over(election_state: &mut watch::Receiver<ElectionState>, number: u64) {
    let other = |election_state: &ElectionState| !matches!(election_state, ElectionState::Leading(term) if term.number == number);
    // An elector that has ended leads no more.
    drop(election_state.wait_for(other).await);
}
