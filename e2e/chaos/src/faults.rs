//! The faults of a round.

use std::fmt;
use std::time::Duration;

use anyhow::bail;
use mock_tikv::FaultId;
use pb::lease_client::LeaseClient;
use rand::rngs::StdRng;
use rand::{RngExt as _, seq::IndexedRandom as _};
use rustix::process::Signal;
use tokio::time::timeout;
use wire::etcdserverpb as pb;

use crate::history::MemberAbsence;
use crate::load::{REQUEST_TIMEOUT, RoundState};
use crate::test_cluster::members::Members;
use crate::test_cluster::network::{Direction, Endpoint, Network, NetworkCut};
use crate::test_cluster::tikv::{DataPart, STORES, Tikv, TikvFault, too_large};

/// A step of a clock, in seconds: an hour, a day, back or on.
const CLOCK_STEPS: [i64; 6] = [-86_400, -3_600, -30, 30, 3_600, 86_400];

/// Time within which another member must lead if the leader cannot write.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// The member that a fault hits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultTarget {
    /// The leader at that time.
    Leader,
    Member(usize),
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// SIGKILL; started again later.
    Kill(FaultTarget),
    /// SIGTERM; started again later.
    Terminate(FaultTarget),
    /// SIGSTOP, and SIGCONT later.
    Stop(FaultTarget),
    /// A planned hand-over to a member.
    MoveLeader(usize),
    /// Packets are lost: between members, to PD or to TiKV; in both ways, or only from or to them.
    Cut(FaultTarget, CutFrom, Vec<Direction>),
    /// The leader cannot reach the store of its log, and another member must lead before the fault ends.
    LoseLog,
    /// The time of day jumps, and back later.
    Clock(FaultTarget, i64),
    /// Something with PD or TiKV, if that is a mock.
    Tikv(TikvFault),
}

/// Peers that a member is cut off from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CutFrom {
    Members,
    Pd,
    Stores,
    /// The one store that leads this.
    Store(DataPart),
    Everybody,
}

/// Faults that can be asked for by name; they come by chance, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NamedFault {
    /// The leader is cut off from the store of its log alone, for so long that another member must take the lead.
    LogStore,
    /// One region answers nothing.
    SilentRegion,
    /// A store is killed, others lead what it led, and it comes back.
    StoreCrash,
    /// A member is cut off from one store.
    OneStore,
    /// Large requests are refused as too large, as by a proxy on the way.
    LargeRefused,
    /// Tiny ones as well.
    TinyRefused,
    /// PD and TiKV answer late, but not later than a leader must tolerate.
    Slow,
}

impl NamedFault {
    const ALL: [Self; 7] = [
        Self::LogStore,
        Self::SilentRegion,
        Self::StoreCrash,
        Self::OneStore,
        Self::LargeRefused,
        Self::TinyRefused,
        Self::Slow,
    ];

    /// Such a fault.
    pub(crate) fn draw(self, chance: &mut StdRng) -> Fault {
        let part = *DataPart::ALL.choose(chance).expect("there are some");
        match self {
            Self::LogStore => Fault::LoseLog,
            Self::SilentRegion => Fault::Tikv(TikvFault::Silence(part)),
            Self::StoreCrash => Fault::Tikv(TikvFault::Crash(chance.random_range(1..=STORES))),
            Self::OneStore => Fault::Cut(
                FaultTarget::Leader,
                CutFrom::Store(part),
                vec![Direction::From, Direction::To],
            ),
            Self::LargeRefused => Fault::Tikv(TikvFault::Faults(too_large(chance.random_range(4_000..1_000_000)))),
            Self::TinyRefused => Fault::Tikv(TikvFault::Faults(too_large(0).with_probability(0.3))),
            Self::Slow => Fault::Tikv(TikvFault::slow(chance)),
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
        let target = if chance.random_bool(0.6) {
            FaultTarget::Leader
        } else {
            FaultTarget::Member(member)
        };
        match chance.random_range(0..100) {
            0..18 => Self::Kill(target),
            18..26 => Self::Terminate(target),
            26..40 => Self::Stop(target),
            40..48 => Self::MoveLeader(member),
            48..70 => {
                let part = *DataPart::ALL.choose(chance).expect("there are some");
                let one = CutFrom::Store(part);
                let to = [
                    CutFrom::Members,
                    CutFrom::Pd,
                    CutFrom::Stores,
                    one,
                    one,
                    CutFrom::Everybody,
                ];
                let directions = [
                    vec![Direction::From],
                    vec![Direction::To],
                    vec![Direction::From, Direction::To],
                ];
                let to = *to.choose(chance).expect("there are some");
                Self::Cut(target, to, directions.choose(chance).expect("there are some").clone())
            }
            70..74 => NamedFault::ALL.choose(chance).expect("there are some").draw(chance),
            74..79 if has_clock => Self::Clock(target, *CLOCK_STEPS.choose(chance).expect("there are some")),
            _ => Self::Tikv(TikvFault::any(chance)),
        }
    }

    /// Duration of the fault: sometimes shorter, sometimes longer than a lease.
    pub(crate) fn lasts(&self, chance: &mut StdRng) -> Duration {
        if matches!(self, Self::LoseLog) {
            return TAKEOVER_TIMEOUT;
        }
        let most = match self {
            Self::Kill(_) | Self::Terminate(_) => 1_500,
            Self::Tikv(TikvFault::Pause(_) | TikvFault::Kill(_) | TikvFault::Crash(_)) => 2_500,
            Self::Tikv(TikvFault::Slow(_)) => 8_000,
            _ => 4_000,
        };
        Duration::from_millis(chance.random_range(50..most))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tikv(TikvFault::Faults(fault)) => {
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

/// An active fault.
#[derive(Debug)]
pub(crate) enum ActiveFault {
    Gone(usize, Duration),
    Stopped(usize, Duration),
    Cut(Vec<NetworkCut>),
    /// Before the cut is mended, members other than this one must serve writes.
    LostLog(usize, Vec<NetworkCut>),
    Clock(usize),
    Tikv(TikvFault, Option<FaultId>),
    Nothing,
}

/// Everything that can be broken.
pub(crate) struct Nemesis<'a> {
    pub(crate) members: &'a mut Members,
    pub(crate) network: &'a mut Network,
    pub(crate) tikv: &'a Tikv,
    pub(crate) round: &'a RoundState,
    pub(crate) absences: &'a mut Vec<MemberAbsence>,
}

impl Nemesis<'_> {
    async fn find(&self, target: FaultTarget) -> usize {
        match target {
            FaultTarget::Member(member) => member,
            FaultTarget::Leader => self.members.leader().await.unwrap_or_default(),
        }
    }

    /// Lets it happen.
    ///
    /// # Errors
    ///
    /// A member that has ended by itself.
    pub(crate) async fn inject(&mut self, fault: &Fault) -> anyhow::Result<ActiveFault> {
        let began = self.round.at();
        Ok(match fault {
            Fault::Kill(target) => {
                let member = self.find(*target).await;
                if self.members.kill(member)? {
                    ActiveFault::Gone(member, began)
                } else {
                    ActiveFault::Nothing
                }
            }
            Fault::Terminate(target) => {
                let member = self.find(*target).await;
                // a stopped member does not handle the signal
                self.members.signal(member, Signal::CONT)?;
                if self.members.terminate(member).await? {
                    ActiveFault::Gone(member, began)
                } else {
                    ActiveFault::Nothing
                }
            }
            Fault::Stop(target) => {
                let member = self.find(*target).await;
                self.members.signal(member, Signal::STOP)?;
                ActiveFault::Stopped(member, began)
            }
            Fault::MoveLeader(to) => {
                if let Some(from) = self.members.leader().await {
                    self.members.move_leader(from, *to).await;
                }
                ActiveFault::Nothing
            }
            Fault::Cut(target, to, directions) => {
                let cuts = self.cuts(self.find(*target).await, *to, directions)?;
                self.network.cut(&cuts)?;
                ActiveFault::Cut(cuts)
            }
            Fault::LoseLog => {
                let member = self.find(FaultTarget::Leader).await;
                let cuts = self.cuts(member, CutFrom::Store(DataPart::Log), &[Direction::From, Direction::To])?;
                self.network.cut(&cuts)?;
                ActiveFault::LostLog(member, cuts)
            }
            Fault::Clock(target, seconds) => {
                let member = self.find(*target).await;
                if let Some(clock) = self.members.clock() {
                    clock.step(member, *seconds)?;
                }
                ActiveFault::Clock(member)
            }
            Fault::Tikv(fault) => match self.tikv.as_mock() {
                Some(tikv) => ActiveFault::Tikv(fault.clone(), fault.begin(tikv).await?),
                None => ActiveFault::Nothing,
            },
        })
    }

    /// Puts it right again.
    ///
    /// # Errors
    ///
    /// The fault cannot be undone.
    pub(crate) async fn recover(&mut self, fault: ActiveFault) -> anyhow::Result<()> {
        match fault {
            ActiveFault::Gone(member, from) => {
                self.members.start(member)?;
                self.was_away(member, from);
            }
            ActiveFault::Stopped(member, from) => {
                self.members.signal(member, Signal::CONT)?;
                self.was_away(member, from);
            }
            ActiveFault::Cut(cuts) => self.network.mend(&cuts)?,
            ActiveFault::LostLog(member, cuts) => {
                let served = self.others_write(member).await;
                self.network.mend(&cuts)?;
                served?;
            }
            ActiveFault::Clock(member) => {
                if let Some(clock) = self.members.clock() {
                    clock.step(member, 0)?;
                }
            }
            ActiveFault::Tikv(trouble, fault) => {
                if let Some(tikv) = self.tikv.as_mock() {
                    trouble.end(tikv, fault).await?;
                }
            }
            ActiveFault::Nothing => {}
        }
        Ok(())
    }

    /// Fails if no write through another member than this one succeeds. It writes a lease, which is in no history.
    async fn others_write(&self, member: usize) -> anyhow::Result<()> {
        let mut last = String::new();
        for other in (0..self.members.len()).filter(|other| *other != member) {
            let mut leases = LeaseClient::new(self.members.connect(other)?);
            let grant = pb::LeaseGrantRequest { ttl: 1, id: 0 };
            match timeout(REQUEST_TIMEOUT, leases.lease_grant(grant)).await {
                Ok(Ok(granted)) => {
                    let revoke = pb::LeaseRevokeRequest {
                        id: granted.into_inner().id,
                    };
                    // it ends by itself otherwise
                    drop(timeout(REQUEST_TIMEOUT, leases.lease_revoke(revoke)).await);
                    return Ok(());
                }
                Ok(Err(status)) => last = status.to_string(),
                Err(_) => last = format!("no answer within {REQUEST_TIMEOUT:?}"),
            }
        }
        bail!("no member took over within {TAKEOVER_TIMEOUT:?} from member {member}, which had lost its log: {last}")
    }

    fn was_away(&mut self, member: usize, from: Duration) {
        let until = self.round.at();
        self.absences.push(MemberAbsence { member, from, until });
    }

    fn cuts(&self, member: usize, to: CutFrom, directions: &[Direction]) -> anyhow::Result<Vec<NetworkCut>> {
        let others = (0..self.members.len())
            .filter(|other| *other != member)
            .map(Endpoint::Member);
        let tikv = self.tikv.addresses();
        let pd = tikv.pd.iter().copied().map(Endpoint::Process);
        let stores = tikv.stores.iter().copied().map(Endpoint::Process);
        let far: Vec<Endpoint> = match to {
            CutFrom::Members => others.collect(),
            CutFrom::Pd => pd.collect(),
            CutFrom::Stores => stores.collect(),
            CutFrom::Store(part) => vec![Endpoint::Process(self.tikv.store_of(part)?)],
            CutFrom::Everybody => others.chain(pd).chain(stores).collect(),
        };
        let both = |endpoint: Endpoint| {
            directions.iter().map(move |&direction| NetworkCut {
                member,
                direction,
                endpoint,
            })
        };
        Ok(far.into_iter().flat_map(both).collect())
    }
}
