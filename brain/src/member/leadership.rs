//! Leads while the elector says so, and follows otherwise.

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
use crate::api::elsewhere::{Right, Role};
use crate::api::status::Error;
use crate::leader::{Claim, Ended, Leader, Told};
use crate::log::Log;
use crate::rows::Rows;
use crate::said::Said;
use crate::sequencer::Space;
use crate::state::State;

mod guard;

/// How long to read the log before a leader that could not be followed is dialled again.
const REDIAL: Duration = Duration::from_millis(100);

/// Longer than any election: a leader that cannot be followed for so long is a matter for a human.
const STUCK: Duration = Duration::from_secs(60);

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
        let right = match self.cluster {
            Some(_) => Right::none(),
            None => Right::for_ever(),
        };
        let (log, state) = (leader.engine.0.clone(), leader.replica.state().clone());
        let (begun, mut begins) = oneshot::channel();
        let (placed, placing) = oneshot::channel();
        let (mut leads, mut overtaken) = (false, false);
        let mut standing = self.election.watch();
        let mut moving: Option<Move> = None;
        // A leader that saw nobody end before it may name no other within its first lease: whoever asks waits.
        let haunted = if term.predecessor.ended() {
            Duration::ZERO
        } else {
            leader.lease
        };
        let movable = tokio::time::sleep(haunted);
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
                () = guard::guard(&self.election, term, (&right, self.renew_deadline), &*self.overruled, (&log, &state)),
                    if leads && self.cluster.is_some() && !lost.is_cancelled() =>
                {
                    warn!("a later leader has begun");
                    overtaken = true;
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
            let target = moving.as_ref().map(|asked| asked.target);
            let outcome = self.hand_over(target).await;
            if let Some(asked) = moving.take() {
                let _gone = asked.reply.send(outcome);
            }
        }
        if how == Ended::Lost && overtaken {
            how = Ended::Deposed;
        }
        for asked in moving.into_iter().chain(awaited.map(|(asked, _)| asked)) {
            refuse(asked, Error::TimeoutDueToLeaderFail);
        }
        self.roles.send_replace(Role::Nobody);
        Ok((leader, how))
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
        match self.election.hand_over(&identity).await {
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
