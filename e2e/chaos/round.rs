//! One round: clients at work, faults, peace, and the judgement.

use std::time::Duration;

use anyhow::{Context as _, bail};
use e2e::wire::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tikv_stand_in::{Action, Fault as Broken, FaultId, Rpc, StandIn};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::check::{self, Verdict};
use crate::faults::{Fault, Patient, Whom, Wound};
use crate::history::{History, Keys, Op, Outcome, Request};
use crate::lab::members::Members;
use crate::lab::network::Network;
use crate::lab::tikv::Tikv;
use crate::load::client::Client;
use crate::load::{Padding, Round, leases, watcher, worker};

/// Clients that read and write, for each member.
const WORKERS: usize = 2;
/// Before the first fault, and after the last.
const CALM: Duration = Duration::from_millis(400);
/// Leaders that are killed while replies are lost.
const DEATHS: u64 = 5;
/// For everybody to answer when all is well again.
const RECOVERY: Duration = Duration::from_secs(40);
/// What is written beside a value's number: sometimes so much that rows are flushed within the round.
const PADDING: [Padding; 5] = [
    Padding::All(0),
    Padding::All(64),
    Padding::All(1_000),
    Padding::All(12_000),
    // of which a transaction may hold three
    Padding::Some(450_000),
];

/// Everything that a round is played on.
pub(crate) struct Lab {
    pub(crate) members: Members,
    pub(crate) network: Network,
    pub(crate) tikv: Tikv,
}

/// What goes wrong in a round.
pub(crate) enum Wrong {
    /// These, one after the other, or at the same time.
    Faults(Vec<Fault>),
    /// So many replies to writes are lost at random.
    LostReplies(u64),
}

/// What a round was.
pub(crate) struct Played {
    pub(crate) faults: Vec<String>,
    pub(crate) history: History,
    pub(crate) verdict: Result<Verdict, Vec<String>>,
}

/// Plays one round.
///
/// # Errors
///
/// A member ended by itself, gave an answer that etcd has not, or did not recover.
pub(crate) async fn play(lab: &mut Lab, number: u64, chance: &mut StdRng, wrong: Wrong) -> anyhow::Result<Played> {
    let base = begin(lab).await.context("before the round")?;
    let padding = PADDING[chance.random_range(0..PADDING.len())];
    let round = Round::new(number, padding, base);
    let stop = CancellationToken::new();
    let (tell_end, end) = tokio::sync::watch::channel(None);
    let mut clients = Clients::start(lab, &round, chance, &stop, &end)?;
    let mut history = History {
        base,
        ..History::default()
    };
    let mut told = Vec::new();
    tokio::time::sleep(CALM).await;
    let hurt = async {
        match wrong {
            Wrong::Faults(faults) => hurt(lab, &round, chance, faults, (&mut history, &mut told)).await,
            Wrong::LostReplies(count) => {
                told.push(format!("{count} lost replies, {DEATHS} leaders killed"));
                lose_replies(lab, &round, &mut history, count).await
            }
        }
    };
    tokio::select! {
        hurt = hurt => hurt?,
        // a wrong answer ends the round at once
        failed = clients.failure() => return Err(failed),
    }
    recover(lab)
        .await
        .with_context(|| format!("after {}", told.join("; ")))?;
    tokio::time::sleep(CALM).await;
    stop.cancel();
    clients.finish(&mut history).await?;
    history.end = finish(lab, &round, &mut history).await?;
    tell_end.send(Some(history.end))?;
    while let Some(watcher) = clients.watchers.join_next().await {
        history.watchers.push(watcher??);
    }
    for member in 0..lab.members.len() {
        lab.members.check(member)?;
    }
    let verdict = check::check(&history);
    Ok(Played {
        faults: told,
        history,
        verdict,
    })
}

/// Tasks of the clients.
struct Clients {
    workers: JoinSet<anyhow::Result<leases::Done>>,
    watchers: JoinSet<anyhow::Result<crate::history::Watcher>>,
    done: Vec<leases::Done>,
}

impl Clients {
    fn start(
        lab: &Lab,
        round: &Round,
        chance: &mut StdRng,
        stop: &CancellationToken,
        end: &tokio::sync::watch::Receiver<Option<i64>>,
    ) -> anyhow::Result<Self> {
        let members = lab.members.len();
        let (mut workers, mut watchers) = (JoinSet::new(), JoinSet::new());
        for number in 0..=members * WORKERS {
            // its first member is another one for each
            let clients = (0..members).map(|at| {
                let member = (at + number) % members;
                let channel = lab.members.connect(member)?;
                Ok(Client {
                    number,
                    member,
                    channel,
                })
            });
            let clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
            let (round, stop, seed) = (round.clone(), stop.clone(), chance.random());
            if number == members * WORKERS {
                workers.spawn(leases::run(clients, round, seed, stop));
            } else {
                workers.spawn(async move {
                    let operations = worker::run(clients, round, seed, stop).await?;
                    Ok(leases::Done {
                        operations,
                        leases: Vec::new(),
                    })
                });
            }
        }
        let one = |key: &str| Keys::One(format!("{}{key}", round.prefix));
        for member in 0..members {
            let everything = vec![Keys::Prefix(String::new())];
            let some = vec![one("a"), Keys::Prefix(format!("{}lease/", round.prefix)), one("b")];
            for (watches, prev) in [(everything, member == 0), (some, true)] {
                let plan = watcher::Plan {
                    member,
                    channel: lab.members.connect(member)?,
                    watches,
                    prev,
                    from: round.newest() + 1,
                };
                watchers.spawn(watcher::run(plan, round.clone(), end.clone()));
            }
        }
        Ok(Self {
            workers,
            watchers,
            done: Vec::new(),
        })
    }

    /// Waits until a client has had a wrong answer.
    async fn failure(&mut self) -> anyhow::Error {
        loop {
            tokio::select! {
                Some(ended) = self.workers.join_next() => match ended {
                    Ok(Ok(done)) => self.done.push(done),
                    Ok(Err(error)) => return error,
                    Err(error) => return error.into(),
                },
                Some(ended) = self.watchers.join_next() => match ended {
                    Ok(Ok(_)) => return anyhow::anyhow!("a watcher ended before the round"),
                    Ok(Err(error)) => return error,
                    Err(error) => return error.into(),
                },
            }
        }
    }

    /// Waits for all but the watchers.
    async fn finish(&mut self, history: &mut History) -> anyhow::Result<()> {
        while let Some(done) = self.workers.join_next().await {
            self.done.push(done??);
        }
        for done in self.done.drain(..) {
            history.operations.extend(done.operations);
            history.leases.extend(done.leases);
        }
        Ok(())
    }
}

/// The revision that everybody has before the round.
async fn begin(lab: &mut Lab) -> anyhow::Result<i64> {
    recover(lab).await
}

/// Lets the faults happen, some of them at the same time.
async fn hurt(
    lab: &mut Lab,
    round: &Round,
    chance: &mut StdRng,
    faults: Vec<Fault>,
    (history, told): (&mut History, &mut Vec<String>),
) -> anyhow::Result<()> {
    let Lab { members, network, tikv } = lab;
    let mut patient = Patient {
        members,
        network,
        tikv,
        round,
        absences: &mut history.absences,
    };
    let mut wounds: Vec<(Instant, Wound)> = Vec::new();
    let mut compact = chance.random_range(0..=faults.len());
    for fault in faults {
        if compact == 0 {
            history.compactions.extend(self::compact(&patient, chance).await);
        }
        compact = compact.wrapping_sub(1);
        if matches!(fault, Fault::LoseLog) {
            // Somebody has to be left who can write.
            let (lost, rest) = wounds
                .into_iter()
                .partition(|(_, wound)| matches!(wound, Wound::LostLog(..)));
            wounds = rest;
            for (until, wound) in lost {
                tokio::time::sleep_until(until).await;
                patient.heal(wound).await?;
            }
        }
        let lasts = fault.lasts(chance);
        told.push(format!("{fault} for {lasts:?}"));
        wounds.push((Instant::now() + lasts, patient.hurt(&fault).await?));
        // the next one comes while this lasts, or after it
        let pause = lasts.mul_f64(chance.random_range(0.2..1.2));
        tokio::time::sleep(pause).await;
        let (over, rest) = wounds.into_iter().partition(|(until, _)| *until <= Instant::now());
        wounds = rest;
        heal(&mut patient, over).await?;
    }
    wounds.sort_by_key(|(until, _)| *until);
    for (until, wound) in wounds {
        tokio::time::sleep_until(until).await;
        patient.heal(wound).await?;
    }
    Ok(())
}

/// Until so many replies to writes were lost, about every third; some of them without a word. Now and then the leader is
/// killed: what it had under way stays unknown to its clients, and its successor settles it.
async fn lose_replies(lab: &mut Lab, round: &Round, history: &mut History, count: u64) -> anyhow::Result<()> {
    let Lab { members, network, tikv } = lab;
    let mut faults = Vec::new();
    for rpc in [Rpc::Prewrite, Rpc::Commit] {
        for silent in [true, false] {
            let lost = Broken::new(rpc, Action::LoseReply { silent });
            let probability = if silent { 0.01 } else { 0.3 };
            faults.push(stand_in(tikv)?.faults().add(lost.with_probability(probability))?);
        }
    }
    let lost = |tikv: &Tikv| {
        let happened = |fault: &FaultId| stand_in(tikv).ok()?.faults().happened(*fault);
        faults.iter().filter_map(happened).sum::<u64>()
    };
    let mut patient = Patient {
        members,
        network,
        tikv,
        round,
        absences: &mut history.absences,
    };
    for death in 1..=DEATHS {
        while lost(patient.tikv) < count * death / DEATHS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let wound = patient.hurt(&Fault::Kill(Whom::Leader)).await?;
        patient.heal(wound).await?;
    }
    stand_in(patient.tikv)?.faults().clear();
    Ok(())
}

fn stand_in(tikv: &Tikv) -> anyhow::Result<&StandIn> {
    tikv.as_stand_in().context("only a stand-in loses replies")
}

async fn heal(patient: &mut Patient<'_>, wounds: Vec<(Instant, Wound)>) -> anyhow::Result<()> {
    for (_, wound) in wounds {
        patient.heal(wound).await?;
    }
    Ok(())
}

/// Compacts what is not quite new; when it was asked for.
async fn compact(patient: &Patient<'_>, chance: &mut StdRng) -> Option<(Duration, i64)> {
    let revision = patient.round.newest() - chance.random_range(20..200);
    if revision <= 1 {
        return None;
    }
    let channel = patient
        .members
        .connect(chance.random_range(0..patient.members.len()))
        .ok()?;
    let asked = patient.round.at();
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    // whether it was done, or done before, shows in the reads
    drop(timeout(Duration::from_secs(1), KvClient::new(channel).compact(request)).await);
    Some((asked, revision))
}

/// Waits until every member reads what is newest; answers with its revision.
async fn recover(lab: &mut Lab) -> anyhow::Result<i64> {
    let deadline = Instant::now() + RECOVERY;
    let mut newest = 0;
    for member in 0..lab.members.len() {
        loop {
            lab.members.check(member)?;
            let read = pb::RangeRequest {
                key: b"round".to_vec().into(),
                ..pb::RangeRequest::default()
            };
            let mut kv = KvClient::new(lab.members.connect(member)?);
            let last = match timeout(Duration::from_secs(3), kv.range(read)).await {
                Ok(Ok(answer)) => {
                    let header = answer.into_inner().header.context("an answer without a header")?;
                    newest = header.revision.max(newest);
                    break;
                }
                Ok(Err(status)) => status.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() > deadline {
                bail!("member {member} does not answer {RECOVERY:?} after all was well again: {last}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(newest)
}

/// Waits until all leases have ended, writes the last key, and reads everything at every member.
async fn finish(lab: &mut Lab, round: &Round, history: &mut History) -> anyhow::Result<i64> {
    let deadline = Instant::now() + RECOVERY;
    let mut leases = LeaseClient::new(lab.members.connect(0)?);
    loop {
        let listed = timeout(Duration::from_secs(3), leases.lease_leases(pb::LeaseLeasesRequest {})).await;
        match listed {
            Ok(Ok(listed)) if listed.get_ref().leases.is_empty() => break,
            _ if Instant::now() > deadline => bail!("leases live {RECOVERY:?} after everybody left them: {listed:?}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let everything = |revision| {
        Request::plain(Op::Range {
            keys: Keys::Prefix(round.prefix.clone()),
            revision,
        })
    };
    let mut end = None;
    for member in 0..lab.members.len() {
        let client = Client {
            number: usize::MAX,
            member,
            channel: lab.members.connect(member)?,
        };
        if end.is_none() {
            let put = Op::Put {
                key: format!("{}z", round.prefix),
                value: round.value(),
                lease: 0,
                prev: true,
            };
            let operation = client.call(round, Request::plain(put)).await?;
            match &operation.outcome {
                Outcome::Answered(answer) => end = Some(answer.revision),
                other => bail!("the last write at member {member}: {other:?}"),
            }
            history.operations.push(operation);
        }
        let operation = client.call(round, everything(0)).await?;
        if !matches!(operation.outcome, Outcome::Answered(_)) {
            bail!("the last read at member {member}: {:?}", operation.outcome);
        }
        history.operations.push(operation);
    }
    end.context("there are no members")
}
