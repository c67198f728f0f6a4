//! Leads while the elector says so, and follows otherwise.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use election::{HandOverError, Handle as Election, Standing, Term};
use rand::RngExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::circle::{Circle, Circular};
use super::contact::Contact;
use super::follow::{Follower, is_damage};
use super::followers::Followers;
use super::peers::{Peers, is_of_another_cluster, is_refusal, name_of};
use crate::api::elsewhere::{LaterLeader, Right, Role};
use crate::api::status::Error;
use crate::leader::{Claim, Ended, Leader, Told};
use crate::log::{Log, Unanswered};
use crate::rows::Rows;
use crate::said::Said;
use crate::sequencer::Space;
use crate::state::State;

mod guard;
mod storage;

/// How long to read the log before a leader that could not be followed is dialled again.
const REDIAL: Duration = Duration::from_millis(100);

/// Longer than any election: a leader that cannot be followed for so long is a matter for a human.
const STUCK: Duration = Duration::from_secs(60);

/// How long the writer may take to finish what is queued when it is to end in order.
const DRAIN: Duration = Duration::from_millis(2_500);

/// The same where nobody else can lead, and rows are flushed then.
const FLUSH: Duration = Duration::from_secs(4);

/// How long a hand-over of the lock may take, and so long the release of it.
const HAND_OVER: Duration = Duration::from_millis(1_500);

/// A term that lasted so long was a good one: the next time storage fails counts as the first one.
const GOOD_TERM: Duration = Duration::from_secs(60);

/// How often the rest of a member doubles whose storage fails in term after term.
const DOUBLINGS: u32 = 4;

/// How long a member that is to lead may take until it follows: after a change of leader nobody does yet.
const ARRIVAL: Duration = Duration::from_secs(2);

/// Somebody asks that another member leads.
#[derive(Debug)]
pub struct Move {
    /// Its id.
    pub target: u64,
    /// What became of it.
    pub reply: oneshot::Sender<Result<(), Error>>,
}

/// The other members, and what they are told.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Where they are.
    pub peers: Peers,
    /// Who this one is.
    pub follower: Follower,
    /// Who follows this one.
    pub followers: Followers,
    /// What was said of those who cannot be followed.
    pub said: Said,
}

/// What decides who leads, and what is shown of it.
pub struct Office {
    /// The elector.
    pub election: Election,
    /// How long a right lasts after a renewal was sent.
    pub renew_deadline: Duration,
    /// Who leads, for those who ask.
    pub roles: watch::Sender<Role>,
    /// The others; `None` where there are none, and nobody else can lead.
    pub cluster: Option<Cluster>,
    /// Requests to move the lead.
    pub moves: mpsc::Receiver<Move>,
    /// Which lock it is: see [`Claim`].
    pub lock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The latest epoch that began by another lock, if renewals of this one tell.
    pub overruled: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// What must not be stored here.
    pub circle: Option<Circle>,
    /// Told whenever the log was read.
    pub contact: Contact,
    /// After this member's storage failed it.
    pub rest: Rest,
}

/// A member whose storage failed while it led competes no more until it rested and storage answers: others may have a better
/// way to it.
#[derive(Debug, Default)]
pub struct Rest {
    /// It competes again then, if storage answers.
    until: Option<Instant>,
    /// Terms in a row that ended so.
    failures: u32,
}

impl Rest {
    /// Storage failed in a term that began then.
    fn begin(&mut self, term: Instant, lease: Duration) {
        if term.elapsed() >= GOOD_TERM {
            self.failures = 0;
        }
        let jitter = rand::rng().random_range(1.0..1.5);
        let rest = storage::limit(lease).mul_f64(jitter) * 2u32.pow(self.failures.min(DOUBLINGS));
        self.failures += 1;
        self.until = Some(Instant::now() + rest);
    }

    /// When it may compete again: soon, if nobody else leads, for then nobody has a better way to storage.
    fn until(&self, standing: &Standing, lease: Duration) -> Option<Instant> {
        let soon = Instant::now() + storage::limit(lease);
        match standing {
            Standing::NoLeader => self.until.map(|until| until.min(soon)),
            Standing::Following { .. } | Standing::Leading(_) => self.until,
        }
    }
}

/// Runs a member until `stop`. `ended` is cancelled when it neither leads nor follows any more: the lock is needed until then.
///
/// # Errors
/// When log or rows fail, or another process writes to a store that only this one may write to.
pub async fn run<L: Log, R: Rows, Q: Space + Clone>(
    leader: Leader<L, R, Q>,
    mut office: Office,
    stop: CancellationToken,
    ended: CancellationToken,
) -> anyhow::Result<()> {
    let _ended = ended.drop_guard();
    let outcome = office.work(leader, &stop).await;
    office.roles.send_replace(Role::Stopped);
    outcome
}

impl Office {
    async fn work<L: Log, R: Rows, Q: Space + Clone>(
        &mut self,
        mut leader: Leader<L, R, Q>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let mut standing = self.election.watch();
        while !stop.is_cancelled() {
            let now = standing.borrow_and_update().clone();
            if let Standing::Leading(term) = &now {
                let how;
                (leader, how) = self.lead(leader, term, stop).await?;
                if how == Ended::Deposed {
                    anyhow::ensure!(
                        self.cluster.is_some(),
                        "another process writes to this store, although its lock is held here"
                    );
                    warn!("a later leader writes, although the lock is held here: do all members use the same lock?");
                    // Long enough for the other one to serve for a while.
                    let rest = self.renew_deadline.mul_f64(rand::rng().random_range(2.0..4.0));
                    self.wait(&mut leader, &now, &mut standing, Some(rest), stop).await?;
                }
            } else {
                self.wait(&mut leader, &now, &mut standing, None, stop).await?;
            }
        }
        Ok(())
    }

    /// Follows, until who leads has changed or the limit has passed.
    async fn wait<L: Log, R: Rows, Q: Space + Clone>(
        &mut self,
        leader: &mut Leader<L, R, Q>,
        now: &Standing,
        standing: &mut watch::Receiver<Standing>,
        limit: Option<Duration>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let limit = tokio::time::sleep(limit.unwrap_or(Duration::MAX));
        tokio::pin!(limit);
        let rested = rested(
            self.rest.until(now, leader.lease),
            (leader.engine.clone(), leader.replica.state().clone()),
            leader.lease,
        );
        tokio::pin!(rested);
        let shown = (&self.roles, &self.contact);
        let followed = follow(&self.election, shown, self.cluster.as_ref(), leader, now);
        tokio::pin!(followed);
        let outcome = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                changed = standing.changed() => break changed.context("the election ended"),
                () = &mut limit => break Ok(()),
                Some(asked) = self.moves.recv() => refuse(asked, Error::NotLeader),
                () = &mut rested, if self.rest.until.is_some() => {
                    self.rest.until = None;
                    tracing::info!("storage answers again: this member can lead");
                    self.election.compete().await;
                    // The leader is told so by whoever follows it anew.
                    break Ok(());
                }
                damaged = &mut followed => break damaged,
            }
        };
        self.roles.send_replace(Role::Nobody);
        outcome
    }

    async fn lead<L: Log, R: Rows, Q: Space + Clone>(
        &mut self,
        leader: Leader<L, R, Q>,
        term: &Term,
        stop: &CancellationToken,
    ) -> anyhow::Result<(Leader<L, R, Q>, Ended)> {
        let (lost, drain) = (CancellationToken::new(), CancellationToken::new());
        let right = self.new_right();
        let (log, state) = (leader.engine.0.clone(), leader.replica.state().clone());
        let (unanswered, lease) = (leader.unanswered.clone(), leader.lease);
        let began = Instant::now();
        let followers = self.cluster.as_ref().map(|cluster| cluster.followers.clone());
        let failing = storage::failed(&state, &unanswered, followers.as_ref(), lease);
        tokio::pin!(failing);
        let drain_limit = if self.cluster.is_some() { DRAIN } else { FLUSH };
        let slow = over_limit(&drain, drain_limit);
        tokio::pin!(slow);
        // Why this member gives the lock up.
        let mut unable: Option<String> = None;
        let (begun, mut begins) = oneshot::channel();
        let (placed, placing) = oneshot::channel();
        let (mut leads, mut overtaken) = (false, false);
        let mut standing = self.election.watch();
        let mut moving: Option<Move> = None;
        // A leader that saw nobody end before it may name no other within its first lease: whoever asks waits.
        let movable = tokio::time::sleep(leader.lease * u32::from(!term.predecessor.ended()));
        tokio::pin!(movable);
        let mut may_move = false;
        let mut awaited: Option<(Move, Instant)> = None;
        let claim = Claim {
            lock: (self.lock)(),
            seen: term.predecessor.ended(),
        };
        let run = leader.term(claim, &drain, &lost, Told { placed, begun });
        tokio::pin!(run);
        let circular = circular(self.circle.as_ref(), &state, placing);
        tokio::pin!(circular);
        let (leader, mut how) = loop {
            tokio::select! {
                biased;
                after = &mut run => break after?,
                () = over(&mut standing, term.number), if !lost.is_cancelled() => {
                    warn!("lost the lead");
                    lost.cancel();
                }
                () = stop.cancelled(), if !drain.is_cancelled() => {
                    self.roles.send_replace(Role::Leaving);
                    drain.cancel();
                }
                begun = &mut begins, if !leads && !lost.is_cancelled() => {
                    // Without a word its end follows. Who leaves already does not begin to answer: the lock may be gone soon.
                    if begun.is_ok() && !drain.is_cancelled() {
                        self.roles.send_replace(Role::Leading(right.clone()));
                    }
                    leads = true;
                }
                () = guard::guard(&self.election, term, (&right, self.renew_deadline), &*self.overruled, (&log, &state, &unanswered)),
                    if leads && self.cluster.is_some() && !lost.is_cancelled() =>
                {
                    warn!("a later leader has begun");
                    overtaken = true;
                    lost.cancel();
                }
                reason = &mut failing, if unable.is_none() && self.has_others() && !lost.is_cancelled() => {
                    unable = Some(reason);
                    self.roles.send_replace(Role::Leaving);
                    lost.cancel();
                }
                () = &mut slow, if !lost.is_cancelled() => {
                    // What is queued is for the next leader. What is under way is answered by a timeout: the log tells what became of it.
                    if self.has_others() {
                        unable = Some(format!("what was under way did not end within {drain_limit:?}"));
                    }
                    warn!(limit = ?drain_limit, "the writer does not end in time: what is under way is given up");
                    lost.cancel();
                }
                found = &mut circular => return Err(found.into()),
                () = &mut movable, if !may_move => may_move = true,
                Some(asked) = self.moves.recv(), if may_move && awaited.is_none() && !drain.is_cancelled() => {
                    awaited = Some((asked, Instant::now() + ARRIVAL));
                }
                follows = arrival(self.cluster.as_ref(), awaited.as_ref()), if !drain.is_cancelled() => {
                    // Who has gone away was told that it failed.
                    let asked = awaited.take().map(|(asked, _)| asked).filter(|asked| !asked.reply.is_closed());
                    if follows && asked.is_some() {
                        self.roles.send_replace(Role::Leaving);
                        drain.cancel();
                        moving = asked;
                    } else if let Some(asked) = asked {
                        refuse(asked, Error::BadLeaderTransferee);
                    }
                }
            }
        };
        if how == Ended::Stopped && self.cluster.is_some() {
            self.hand_over_to(moving.take()).await;
        }
        if how == Ended::Lost && overtaken {
            how = Ended::Deposed;
        }
        if let Some(reason) = unable.filter(|_| how == Ended::Lost) {
            self.rest.begin(began, lease);
            self.step_down(reason, &state).await;
        }
        for asked in moving.into_iter().chain(awaited.map(|(asked, _)| asked)) {
            refuse(asked, Error::TimeoutDueToLeaderFail);
        }
        self.roles.send_replace(Role::Nobody);
        Ok((leader, how))
    }

    /// The right of a term that begins.
    fn new_right(&self) -> Right {
        match self.cluster {
            Some(_) => Right::none(),
            None => Right::for_ever(),
        }
    }

    /// Whether another member could lead.
    fn has_others(&self) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.follower.members.watch().borrow().len() > 1)
    }

    /// Gives the lock up because of this member's own way to storage, and leaves it to others for a while. The outcome of what
    /// was under way is unknown: the next leader's barrier decides it.
    async fn step_down<R: Rows>(&self, reason: String, state: &State<R>) {
        warn!(reason, "cannot lead: giving up the lock for another member to take");
        state.set_cannot_lead(Some(format!("etcdserver: cannot lead: {reason}")));
        match tokio::time::timeout(HAND_OVER, self.election.step_down()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(
                error = format!("{:#}", anyhow::Error::from(error)),
                "the lock was not released: it runs out by itself"
            ),
            Err(_) => debug!(limit = ?HAND_OVER, "the lock does not answer: it runs out by itself"),
        }
    }

    /// Names another leader, whom somebody asked for or any, and tells who asked.
    async fn hand_over_to(&self, moving: Option<Move>) {
        let outcome = self.hand_over(moving.as_ref().map(|asked| asked.target)).await;
        if let Some(asked) = moving {
            let _gone = asked.reply.send(outcome);
        }
    }

    /// Names another leader, if anybody follows who can be one.
    async fn hand_over(&self, target: Option<u64>) -> Result<(), Error> {
        let Some(identity) = self
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.followers.identity(target))
        else {
            return Err(Error::BadLeaderTransferee);
        };
        let named = tokio::time::timeout(HAND_OVER, self.election.hand_over(&identity)).await;
        let Ok(named) = named else {
            warn!(limit = ?HAND_OVER, "the lock does not answer: the lead was not handed over");
            return Err(Error::TimeoutDueToLeaderFail);
        };
        match named {
            Ok(()) => Ok(()),
            Err(HandOverError::BadTarget(_)) => Err(Error::BadLeaderTransferee),
            Err(error) => {
                warn!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "the lead was not handed over"
                );
                Err(Error::TimeoutDueToLeaderFail)
            }
        }
    }
}

/// Answers when a drain has taken too long.
async fn over_limit(drain: &CancellationToken, limit: Duration) {
    drain.cancelled().await;
    tokio::time::sleep(limit).await;
}

/// Answers when a member has rested until then and its storage answers: it can lead again.
async fn rested<L: Log, R: Rows>(until: Option<Instant>, (engine, state): ((L, R), Arc<State<R>>), lease: Duration) {
    if let Some(until) = until {
        storage::recovered(engine, state.committed(), until, storage::limit(lease)).await;
        state.set_cannot_lead(None);
    }
}

/// Asks the log whether a leader later than the one that is known here has begun.
pub fn later_leader<L: Log, R: Rows>(log: L, state: Arc<State<R>>, unanswered: Unanswered) -> LaterLeader {
    Box::new(move || {
        let (log, state, unanswered) = (log.clone(), state.clone(), unanswered.clone());
        Box::pin(async move { Ok(guard::has_later_barrier(&log, &state, &unanswered).await?) })
    })
}

/// Waits until whoever is to lead follows, and answers whether it does before the time is up. A stranger never will.
async fn arrival(cluster: Option<&Cluster>, awaited: Option<&(Move, Instant)>) -> bool {
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

/// Ends when the Lease that is competed for is found in the store, once everything that was stored before is known.
async fn circular<R: Rows>(circle: Option<&Circle>, state: &State<R>, placed: oneshot::Receiver<()>) -> Circular {
    if let Some(circle) = circle
        && placed.await.is_ok()
        && let Err(circular) = circle.check_leading(state).await
    {
        return circular;
    }
    std::future::pending().await
}

/// Keeps up with whoever leads; ends only when data is damaged. May be dropped at any time.
async fn follow<L: Log, R: Rows, Q: Space + Clone>(
    election: &Election,
    (roles, contact): (&watch::Sender<Role>, &Contact),
    cluster: Option<&Cluster>,
    leader: &mut Leader<L, R, Q>,
    standing: &Standing,
) -> anyhow::Result<()> {
    let known = match (standing, cluster) {
        (Standing::Following { leader }, Some(cluster)) => Some((cluster, name_of(leader))),
        _ => None,
    };
    let mut began = Instant::now();
    let mut newer = crate::replica::NewerRows::new(leader.engine.1.clone());
    loop {
        if let Some((cluster, name)) = known {
            let followed = async {
                let channel = cluster.peers.dial(name, &cluster.follower.members).await?;
                let id = cluster.peers.id(name);
                let shown = (roles, election, &mut newer);
                leader.follow(channel, &cluster.follower, id, shown).await
            };
            let outcome = followed.await;
            if matches!(roles.send_replace(Role::Nobody), Role::Following(_)) {
                // It is heard no more, and may have named another one.
                election.look();
            }
            match outcome {
                Ok(()) => began = Instant::now(),
                Err(error) if is_damage(&error) => return Err(error),
                Err(error) => {
                    debug!(leader = name, error = format!("{error:#}"), "cannot follow the leader");
                    let stuck = began.elapsed() > STUCK;
                    let reason = refusal(&error).or(stuck.then_some("whoever holds the lock cannot be followed"));
                    if let Some(reason) = reason
                        && cluster.said.is_new(&format!("{name}: {reason}"))
                    {
                        warn!(leader = name, error = format!("{error:#}"), "{reason}");
                    }
                }
            }
        }
        let redial = known.is_some().then(|| Instant::now() + REDIAL);
        leader.tail(contact, &mut newer, redial).await?;
    }
}

/// Why a leader cannot be followed, if that is for somebody to mend.
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

fn refuse(asked: Move, error: Error) {
    // Whoever has gone away does not need to know.
    let _gone = asked.reply.send(Err(error));
}

/// Waits until term `number` is over.
async fn over(standing: &mut watch::Receiver<Standing>, number: u64) {
    let other = |standing: &Standing| !matches!(standing, Standing::Leading(term) if term.number == number);
    // An elector that has ended leads no more.
    drop(standing.wait_for(other).await);
}
