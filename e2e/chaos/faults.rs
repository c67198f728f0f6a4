//! What happens to a cluster in a round.

use std::fmt;
use std::time::Duration;

use anyhow::bail;
use e2e::wire::etcdserverpb as pb;
use pb::lease_client::LeaseClient;
use rand::rngs::StdRng;
use rand::{RngExt as _, seq::IndexedRandom as _};
use rustix::process::Signal;
use tikv_stand_in::FaultId;
use tokio::time::timeout;

use crate::history::Absence;
use crate::lab::members::Members;
use crate::lab::network::{Cut, Far, Network, Way};
use crate::lab::tikv::{Part, STORES, Tikv, Trouble, too_large};
use crate::load::{PATIENCE, Round};

/// A step of a clock, in seconds: an hour, a day, back or on.
const STEPS: [i64; 6] = [-86_400, -3_600, -30, 30, 3_600, 86_400];

/// A leader that cannot write has to be followed by another one within this.
const TAKEN_OVER: Duration = Duration::from_secs(15);

/// Who it happens to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whom {
    /// Whoever leads then.
    Leader,
    Member(usize),
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// SIGKILL; started again later.
    Kill(Whom),
    /// SIGTERM; started again later.
    Terminate(Whom),
    /// SIGSTOP, and SIGCONT later.
    Stop(Whom),
    /// A planned hand-over to a member.
    MoveLeader(usize),
    /// Packets are lost: between members, to PD or to TiKV; in both ways, or only from or to them.
    Cut(Whom, Where, Vec<Way>),
    /// The leader cannot reach the store of its log, and somebody else has to lead before that ends.
    LoseLog,
    /// The time of day jumps, and back later.
    Clock(Whom, i64),
    /// Something with PD or TiKV, if that is a stand-in.
    Tikv(Trouble),
}

/// Whom somebody is cut off from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Where {
    Members,
    Pd,
    Stores,
    /// The one store that leads this.
    Store(Part),
    Everybody,
}

/// Faults that can be asked for by name; they come by chance, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Named {
    /// The leader is cut off from the store of its log alone, for so long that somebody else has to lead.
    LogStore,
    /// One region answers nothing.
    SilentRegion,
    /// A store is killed, others lead what it led, and it comes back.
    StoreCrash,
    /// A member is cut off from one store.
    OneStore,
    /// Large requests are refused as too large by somebody on the way.
    LargeRefused,
    /// Tiny ones as well.
    TinyRefused,
}

impl Named {
    const ALL: [Self; 6] = [
        Self::LogStore,
        Self::SilentRegion,
        Self::StoreCrash,
        Self::OneStore,
        Self::LargeRefused,
        Self::TinyRefused,
    ];

    /// Such a fault.
    pub(crate) fn draw(self, chance: &mut StdRng) -> Fault {
        let part = *Part::ALL.choose(chance).expect("there are some");
        match self {
            Self::LogStore => Fault::LoseLog,
            Self::SilentRegion => Fault::Tikv(Trouble::Silence(part)),
            Self::StoreCrash => Fault::Tikv(Trouble::Crash(chance.random_range(1..=STORES))),
            Self::OneStore => Fault::Cut(Whom::Leader, Where::Store(part), vec![Way::From, Way::To]),
            Self::LargeRefused => Fault::Tikv(Trouble::Faults(too_large(chance.random_range(4_000..1_000_000)))),
            Self::TinyRefused => Fault::Tikv(Trouble::Faults(too_large(0).with_probability(0.3))),
        }
    }
}

impl Fault {
    /// Any that can happen: clocks jump only where they can be set, and nothing is done to a real cluster.
    pub(crate) fn any(chance: &mut StdRng, members: usize, has_clock: bool, has_stand_in: bool) -> Self {
        loop {
            let fault = Self::draw(chance, members, has_clock);
            if has_stand_in || !matches!(fault, Self::Tikv(_) | Self::LoseLog) {
                return fault;
            }
        }
    }

    fn draw(chance: &mut StdRng, members: usize, has_clock: bool) -> Self {
        let member = chance.random_range(0..members);
        let whom = if chance.random_bool(0.6) {
            Whom::Leader
        } else {
            Whom::Member(member)
        };
        match chance.random_range(0..100) {
            0..18 => Self::Kill(whom),
            18..26 => Self::Terminate(whom),
            26..40 => Self::Stop(whom),
            40..48 => Self::MoveLeader(member),
            48..70 => {
                let part = *Part::ALL.choose(chance).expect("there are some");
                let one = Where::Store(part);
                let to = [Where::Members, Where::Pd, Where::Stores, one, one, Where::Everybody];
                let ways = [vec![Way::From], vec![Way::To], vec![Way::From, Way::To]];
                let to = *to.choose(chance).expect("there are some");
                Self::Cut(whom, to, ways.choose(chance).expect("there are some").clone())
            }
            70..74 => Named::ALL.choose(chance).expect("there are some").draw(chance),
            74..79 if has_clock => Self::Clock(whom, *STEPS.choose(chance).expect("there are some")),
            _ => Self::Tikv(Trouble::any(chance)),
        }
    }

    /// How long it lasts: some shorter, some longer than a lease.
    pub(crate) fn lasts(&self, chance: &mut StdRng) -> Duration {
        if matches!(self, Self::LoseLog) {
            return TAKEN_OVER;
        }
        let most = match self {
            Self::Kill(_) | Self::Terminate(_) => 1_500,
            Self::Tikv(Trouble::Pause(_) | Trouble::Kill(_) | Trouble::Crash(_)) => 2_500,
            _ => 4_000,
        };
        Duration::from_millis(chance.random_range(50..most))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tikv(Trouble::Faults(fault)) => {
                write!(
                    out,
                    "{:?} of {:.0} % of {:?}",
                    fault.action,
                    fault.probability * 100.0,
                    fault.rpc
                )
            }
            other => write!(out, "{other:?}"),
        }
    }
}

/// A fault under way.
#[derive(Debug)]
pub(crate) enum Wound {
    Gone(usize, Duration),
    Stopped(usize, Duration),
    Cut(Vec<Cut>),
    /// Before it is mended, others than this member have to serve.
    LostLog(usize, Vec<Cut>),
    Clock(usize),
    Tikv(Trouble, Option<FaultId>),
    Nothing,
}

/// Everything that can be broken.
pub(crate) struct Patient<'a> {
    pub(crate) members: &'a mut Members,
    pub(crate) network: &'a mut Network,
    pub(crate) tikv: &'a Tikv,
    pub(crate) round: &'a Round,
    pub(crate) absences: &'a mut Vec<Absence>,
}

impl Patient<'_> {
    async fn find(&self, whom: Whom) -> usize {
        match whom {
            Whom::Member(member) => member,
            Whom::Leader => self.members.leader().await.unwrap_or_default(),
        }
    }

    /// Lets it happen.
    ///
    /// # Errors
    ///
    /// A member that has ended by itself.
    pub(crate) async fn hurt(&mut self, fault: &Fault) -> anyhow::Result<Wound> {
        let began = self.round.at();
        Ok(match fault {
            Fault::Kill(whom) => {
                let member = self.find(*whom).await;
                if self.members.kill(member)? {
                    Wound::Gone(member, began)
                } else {
                    Wound::Nothing
                }
            }
            Fault::Terminate(whom) => {
                let member = self.find(*whom).await;
                // a stopped one hears of no signal
                self.members.signal(member, Signal::CONT)?;
                if self.members.terminate(member).await? {
                    Wound::Gone(member, began)
                } else {
                    Wound::Nothing
                }
            }
            Fault::Stop(whom) => {
                let member = self.find(*whom).await;
                self.members.signal(member, Signal::STOP)?;
                Wound::Stopped(member, began)
            }
            Fault::MoveLeader(to) => {
                if let Some(from) = self.members.leader().await {
                    self.members.move_leader(from, *to).await;
                }
                Wound::Nothing
            }
            Fault::Cut(whom, to, ways) => {
                let cuts = self.cuts(self.find(*whom).await, *to, ways)?;
                self.network.cut(&cuts)?;
                Wound::Cut(cuts)
            }
            Fault::LoseLog => {
                let member = self.find(Whom::Leader).await;
                let cuts = self.cuts(member, Where::Store(Part::Log), &[Way::From, Way::To])?;
                self.network.cut(&cuts)?;
                Wound::LostLog(member, cuts)
            }
            Fault::Clock(whom, seconds) => {
                let member = self.find(*whom).await;
                if let Some(clock) = self.members.clock() {
                    clock.step(member, *seconds)?;
                }
                Wound::Clock(member)
            }
            Fault::Tikv(trouble) => match self.tikv.as_stand_in() {
                Some(tikv) => Wound::Tikv(trouble.clone(), trouble.begin(tikv).await?),
                None => Wound::Nothing,
            },
        })
    }

    /// Puts it right again.
    ///
    /// # Errors
    ///
    /// What was broken cannot be mended.
    pub(crate) async fn heal(&mut self, wound: Wound) -> anyhow::Result<()> {
        match wound {
            Wound::Gone(member, from) => {
                self.members.start(member)?;
                self.was_away(member, from);
            }
            Wound::Stopped(member, from) => {
                self.members.signal(member, Signal::CONT)?;
                self.was_away(member, from);
            }
            Wound::Cut(cuts) => self.network.mend(&cuts)?,
            Wound::LostLog(member, cuts) => {
                let served = self.others_write(member).await;
                self.network.mend(&cuts)?;
                served?;
            }
            Wound::Clock(member) => {
                if let Some(clock) = self.members.clock() {
                    clock.step(member, 0)?;
                }
            }
            Wound::Tikv(trouble, fault) => {
                if let Some(tikv) = self.tikv.as_stand_in() {
                    trouble.end(tikv, fault).await?;
                }
            }
            Wound::Nothing => {}
        }
        Ok(())
    }

    /// Fails if nobody writes through a member other than this one. What is written is a lease, which no history tells of.
    async fn others_write(&self, member: usize) -> anyhow::Result<()> {
        let mut last = String::new();
        for other in (0..self.members.len()).filter(|other| *other != member) {
            let mut leases = LeaseClient::new(self.members.connect(other)?);
            let grant = pb::LeaseGrantRequest { ttl: 1, id: 0 };
            match timeout(PATIENCE, leases.lease_grant(grant)).await {
                Ok(Ok(granted)) => {
                    let revoke = pb::LeaseRevokeRequest {
                        id: granted.into_inner().id,
                    };
                    // it ends by itself otherwise
                    drop(timeout(PATIENCE, leases.lease_revoke(revoke)).await);
                    return Ok(());
                }
                Ok(Err(status)) => last = status.to_string(),
                Err(_) => last = format!("no answer within {PATIENCE:?}"),
            }
        }
        bail!("nobody took over within {TAKEN_OVER:?} from member {member}, which had lost its log: {last}")
    }

    fn was_away(&mut self, member: usize, from: Duration) {
        let until = self.round.at();
        self.absences.push(Absence { member, from, until });
    }

    fn cuts(&self, member: usize, to: Where, ways: &[Way]) -> anyhow::Result<Vec<Cut>> {
        let others = (0..self.members.len())
            .filter(|other| *other != member)
            .map(Far::Member);
        let tikv = self.tikv.addresses();
        let pd = tikv.pd.iter().copied().map(Far::Process);
        let stores = tikv.stores.iter().copied().map(Far::Process);
        let far: Vec<Far> = match to {
            Where::Members => others.collect(),
            Where::Pd => pd.collect(),
            Where::Stores => stores.collect(),
            Where::Store(part) => vec![Far::Process(self.tikv.store_of(part)?)],
            Where::Everybody => others.chain(pd).chain(stores).collect(),
        };
        let both = |far: Far| ways.iter().map(move |way| (member, *way, far));
        Ok(far.into_iter().flat_map(both).collect())
    }
}
