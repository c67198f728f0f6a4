//! One round: clients at work, faults, peace, and the judgement.

use std::time::Duration;

use anyhow::{Context as _, bail};
use mock_tikv::{Action, Fault as Broken, FaultId, MockTikv, Rpc};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wire::etcdserverpb as pb;

use crate::check::{self, HistoryCounts};
use crate::faults::{ActiveFault, Fault, FaultTarget, Nemesis};
use crate::history::{History, KeySelector, Op, Outcome, Request};
use crate::load::client::Client;
use crate::load::{Padding, RoundState, leases, watcher, worker};
use crate::test_cluster::members::Members;
use crate::test_cluster::network::Network;
use crate::test_cluster::tikv::Tikv;

/// Clients that read and write, for each member.
const WORKERS_PER_MEMBER: usize = 2;
/// Before the first fault, and after the last.
const CALM_TIME: Duration = Duration::from_millis(400);
/// Leaders that are killed while replies are lost.
const LEADER_DEATHS: u64 = 5;
/// Time for all members to answer once all faults are over.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(40);
/// Padding beside a value's number: sometimes so much that rows are flushed within the round.
const PADDINGS: [Padding; 5] = [
    Padding::All(0),
    Padding::All(64),
    Padding::All(1_000),
    Padding::All(12_000),
    // a transaction may hold three of these
    Padding::Some(450_000),
];

/// Everything that a round is played on.
pub(crate) struct TestCluster {
    pub(crate) members: Members,
    pub(crate) network: Network,
    pub(crate) tikv: Tikv,
}

/// Faults of a round.
pub(crate) enum RoundFailure {
    /// These, one after the other, or at the same time.
    Faults(Vec<Fault>),
    /// This many replies to writes are lost at random.
    LostReplies(u64),
}

/// Result of a round.
pub(crate) struct RoundResult {
    pub(crate) faults: Vec<String>,
    pub(crate) history: History,
    pub(crate) verdict: Result<HistoryCounts, Vec<String>>,
}

/// Plays one round.
///
/// # Errors
///
/// A member ended by itself, gave an answer that etcd has not, or did not recover.
pub(crate) async fn play(
    cluster: &mut TestCluster,
    number: u64,
    chance: &mut StdRng,
    wrong: RoundFailure,
) -> anyhow::Result<RoundResult> {
    let base = begin(cluster).await.context("before the round")?;
    let padding = PADDINGS[chance.random_range(0..PADDINGS.len())];
    let round = RoundState::new(number, padding, base);
    let stop = CancellationToken::new();
    let (tell_end, end) = tokio::sync::watch::channel(None);
    let mut clients = ClientTasks::start(cluster, &round, chance, &stop, &end)?;
    let mut history = History {
        base,
        ..History::default()
    };
    let mut told = Vec::new();
    tokio::time::sleep(CALM_TIME).await;
    let disturb = async {
        match wrong {
            RoundFailure::Faults(faults) => disturb(cluster, &round, chance, faults, (&mut history, &mut told)).await,
            RoundFailure::LostReplies(count) => {
                told.push(format!("{count} lost replies, {LEADER_DEATHS} leaders killed"));
                lose_replies(cluster, &round, &mut history, count).await
            }
        }
    };
    tokio::select! {
        disturb = disturb => disturb?,
        // a wrong answer ends the round at once
        failed = clients.failure() => return Err(failed),
    }
    recover(cluster)
        .await
        .with_context(|| format!("after {}", told.join("; ")))?;
    tokio::time::sleep(CALM_TIME).await;
    stop.cancel();
    clients.finish(&mut history).await?;
    history.end = finish(cluster, &round, &mut history).await?;
    tell_end.send(Some(history.end))?;
    while let Some(watcher) = clients.watchers.join_next().await {
        history.watchers.push(watcher??);
    }
    for member in 0..cluster.members.len() {
        cluster.members.check(member)?;
    }
    let verdict = check::check(&history);
    Ok(RoundResult {
        faults: told,
        history,
        verdict,
    })
}

/// Tasks of the clients.
struct ClientTasks {
    workers: JoinSet<anyhow::Result<leases::LeaseRecord>>,
    watchers: JoinSet<anyhow::Result<crate::history::WatcherHistory>>,
    done: Vec<leases::LeaseRecord>,
}

impl ClientTasks {
    fn start(
        cluster: &TestCluster,
        round: &RoundState,
        chance: &mut StdRng,
        stop: &CancellationToken,
        end: &tokio::sync::watch::Receiver<Option<i64>>,
    ) -> anyhow::Result<Self> {
        let members = cluster.members.len();
        let (mut workers, mut watchers) = (JoinSet::new(), JoinSet::new());
        for number in 0..=members * WORKERS_PER_MEMBER {
            // its first member is another one for each
            let clients = (0..members).map(|at| {
                let member = (at + number) % members;
                let channel = cluster.members.connect(member)?;
                Ok(Client {
                    number,
                    member,
                    channel,
                })
            });
            let clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
            let (round, stop, seed) = (round.clone(), stop.clone(), chance.random());
            if number == members * WORKERS_PER_MEMBER {
                workers.spawn(leases::run(clients, round, seed, stop));
            } else {
                workers.spawn(async move {
                    let operations = worker::run(clients, round, seed, stop).await?;
                    Ok(leases::LeaseRecord {
                        operations,
                        leases: Vec::new(),
                    })
                });
            }
        }
        let one = |key: &str| KeySelector::One(format!("{}{key}", round.prefix));
        for member in 0..members {
            let everything = vec![KeySelector::Prefix(String::new())];
            let some = vec![
                one("a"),
                KeySelector::Prefix(format!("{}lease/", round.prefix)),
                one("b"),
            ];
            for (watches, prev) in [(everything, member == 0), (some, true)] {
                let plan = watcher::StreamPlan {
                    member,
                    channel: cluster.members.connect(member)?,
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

/// The revision that all members have before the round.
async fn begin(cluster: &mut TestCluster) -> anyhow::Result<i64> {
    recover(cluster).await
}

/// Lets the faults happen, some of them at the same time.
async fn disturb(
    cluster: &mut TestCluster,
    round: &RoundState,
    chance: &mut StdRng,
    faults: Vec<Fault>,
    (history, told): (&mut History, &mut Vec<String>),
) -> anyhow::Result<()> {
    let TestCluster { members, network, tikv } = cluster;
    let mut nemesis = Nemesis {
        members,
        network,
        tikv,
        round,
        absences: &mut history.absences,
    };
    let mut active: Vec<(Instant, ActiveFault)> = Vec::new();
    let mut compact = chance.random_range(0..=faults.len());
    for fault in faults {
        if compact == 0 {
            history.compactions.extend(self::compact(&nemesis, chance).await);
        }
        compact = compact.wrapping_sub(1);
        if matches!(fault, Fault::LoseLog) {
            // One of the members must still be able to write.
            let (lost, rest) = active
                .into_iter()
                .partition(|(_, fault)| matches!(fault, ActiveFault::LostLog(..)));
            active = rest;
            for (until, fault) in lost {
                tokio::time::sleep_until(until).await;
                nemesis.recover(fault).await?;
            }
        }
        let lasts = fault.lasts(chance);
        told.push(format!("{fault} for {lasts:?}"));
        active.push((Instant::now() + lasts, nemesis.inject(&fault).await?));
        // the next one comes while this lasts, or after it
        let pause = lasts.mul_f64(chance.random_range(0.2..1.2));
        tokio::time::sleep(pause).await;
        let (over, rest) = active.into_iter().partition(|(until, _)| *until <= Instant::now());
        active = rest;
        recover_from(&mut nemesis, over).await?;
    }
    active.sort_by_key(|(until, _)| *until);
    for (until, fault) in active {
        tokio::time::sleep_until(until).await;
        nemesis.recover(fault).await?;
    }
    Ok(())
}

/// Loses replies to writes, about every third, until `count` are lost; some of them silently. Now and then the leader is killed: its
/// clients do not learn the outcome of its requests in flight, and its successor settles it.
async fn lose_replies(
    cluster: &mut TestCluster,
    round: &RoundState,
    history: &mut History,
    count: u64,
) -> anyhow::Result<()> {
    let TestCluster { members, network, tikv } = cluster;
    let mut faults = Vec::new();
    for rpc in [Rpc::Prewrite, Rpc::Commit] {
        for silent in [true, false] {
            let lost = Broken::new(rpc, Action::LoseReply { silent });
            let probability = if silent { 0.01 } else { 0.3 };
            faults.push(mock_tikv(tikv)?.faults().add(lost.with_probability(probability))?);
        }
    }
    let lost = |tikv: &Tikv| {
        let happened = |fault: &FaultId| mock_tikv(tikv).ok()?.faults().happened(*fault);
        faults.iter().filter_map(happened).sum::<u64>()
    };
    let mut nemesis = Nemesis {
        members,
        network,
        tikv,
        round,
        absences: &mut history.absences,
    };
    for death in 1..=LEADER_DEATHS {
        while lost(nemesis.tikv) < count * death / LEADER_DEATHS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let fault = nemesis.inject(&Fault::Kill(FaultTarget::Leader)).await?;
        nemesis.recover(fault).await?;
    }
    mock_tikv(nemesis.tikv)?.faults().clear();
    Ok(())
}

fn mock_tikv(tikv: &Tikv) -> anyhow::Result<&MockTikv> {
    tikv.as_mock().context("only a mock loses replies")
}

async fn recover_from(nemesis: &mut Nemesis<'_>, active: Vec<(Instant, ActiveFault)>) -> anyhow::Result<()> {
    for (_, fault) in active {
        nemesis.recover(fault).await?;
    }
    Ok(())
}

/// Compacts what is not quite new; when it was asked for.
async fn compact(nemesis: &Nemesis<'_>, chance: &mut StdRng) -> Option<(Duration, i64)> {
    let revision = nemesis.round.newest() - chance.random_range(20..200);
    if revision <= 1 {
        return None;
    }
    let channel = nemesis
        .members
        .connect(chance.random_range(0..nemesis.members.len()))
        .ok()?;
    let asked = nemesis.round.at();
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    // whether it was done, or done before, shows in the reads
    drop(timeout(Duration::from_secs(1), KvClient::new(channel).compact(request)).await);
    Some((asked, revision))
}

/// Waits until every member reads what is newest; answers with its revision.
async fn recover(cluster: &mut TestCluster) -> anyhow::Result<i64> {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    let mut newest = 0;
    for member in 0..cluster.members.len() {
        loop {
            cluster.members.check(member)?;
            let read = pb::RangeRequest {
                key: b"round".to_vec().into(),
                ..pb::RangeRequest::default()
            };
            let mut kv = KvClient::new(cluster.members.connect(member)?);
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
                bail!("member {member} does not answer {RECOVERY_TIMEOUT:?} after all faults ended: {last}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(newest)
}

/// Waits until all leases have ended, writes the last key, and reads everything at every member.
async fn finish(cluster: &mut TestCluster, round: &RoundState, history: &mut History) -> anyhow::Result<i64> {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    let mut leases = LeaseClient::new(cluster.members.connect(0)?);
    loop {
        let listed = timeout(Duration::from_secs(3), leases.lease_leases(pb::LeaseLeasesRequest {})).await;
        match listed {
            Ok(Ok(listed)) if listed.get_ref().leases.is_empty() => break,
            _ if Instant::now() > deadline => {
                bail!("leases still exist {RECOVERY_TIMEOUT:?} after all clients left: {listed:?}")
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let everything = |revision| {
        Request::plain(Op::Range {
            keys: KeySelector::Prefix(round.prefix.clone()),
            revision,
        })
    };
    let mut end = None;
    for member in 0..cluster.members.len() {
        let client = Client {
            number: usize::MAX,
            member,
            channel: cluster.members.connect(member)?,
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
