//! Start and take-over of three brains on TiKV, with few keys and with many: it must not make a difference.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use pb::request_op::Request as Op;
use programs::members::Members;
use programs::progress::Progress;
use programs::server::Program;
use testkit::goal::Goal;
use tokio::time::Instant;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

/// Lifetime of a lease and interval of its renewal: most of the time between a kill and the next write.
struct LeaseTimings {
    name: &'static str,
    flags: &'static [&'static str],
    /// From a kill to the first write, in seconds.
    kill: Goal,
}

const SHORT_TIMINGS: LeaseTimings = LeaseTimings {
    name: "1.2/0.9/0.25",
    flags: &[
        "--election-lease-duration=1.2s",
        "--election-renew-deadline=0.9s",
        "--election-retry-period=250ms",
    ],
    kill: Goal::AtMost(2.0),
};
const DEFAULT_TIMINGS: LeaseTimings = LeaseTimings {
    name: "default",
    flags: &[],
    kill: Goal::AtMost(3.0),
};

/// A planned change of leader, in seconds.
const TRANSFER_GOAL: Goal = Goal::AtMost(0.1);

const VALUE_BYTES: usize = 100;
/// Puts of one transaction: as many as etcd takes.
const PUTS_PER_TXN: u64 = 128;
const IN_FLIGHT: usize = 32;
/// Longer than versions wait in memory until they become rows.
const SETTLE_TIME: Duration = Duration::from_secs(15);
const ELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Measurements with one number of keys.
#[derive(Default)]
struct TakeoverTimes {
    start: Vec<Duration>,
    hand_over: Vec<Duration>,
    kill: Vec<Duration>,
}

/// Measures with each of these numbers of keys, and with the default timings where there are fewest.
pub(crate) async fn measure(keys: &[u64], rounds: usize, progress: &Progress) -> anyhow::Result<String> {
    let mut table = format!(
        "{rounds} rounds each, median (least, most)\n\n{:>10} {:>13} {:>24} {:>41} {:>39}\n",
        "keys", "timings", "start of a member", "hand-over", "kill -9 to first write"
    );
    let fewest = keys.iter().min().map(|fewest| (*fewest, &DEFAULT_TIMINGS));
    for (count, timings) in keys.iter().map(|count| (*count, &SHORT_TIMINGS)).chain(fewest) {
        let step = progress.step(format_args!("{count} keys, timings {}", timings.name));
        let mut times = with_keys(count, timings.flags, rounds).await?;
        step.done();
        let start = shown(&mut times.start, None);
        let hand_over = shown(&mut times.hand_over, Some(TRANSFER_GOAL));
        let kill = shown(&mut times.kill, Some(timings.kill));
        // writing to a String cannot fail
        writeln!(
            table,
            "{count:>10} {:>13} {start:>24} {hand_over:>41} {kill:>39}",
            timings.name
        )
        .ok();
    }
    Ok(table)
}

/// The goal is one of the median: the most is that of a busy moment.
fn shown(all: &mut [Duration], goal: Option<Goal>) -> String {
    all.sort();
    let seconds = |at: usize| all.get(at).map_or(f64::NAN, Duration::as_secs_f64);
    let (median, least, most) = (seconds(all.len() / 2), seconds(0), seconds(all.len() - 1));
    let goal = goal.map_or(String::new(), |goal| format!(" {}", goal.beside(median)));
    format!("{median:.3} s ({least:.3}, {most:.3}){goal}")
}

async fn with_keys(count: u64, flags: &[&str], rounds: usize) -> anyhow::Result<TakeoverTimes> {
    let (_stand_in, pd) = crate::tikv::store()?;
    let mut members = Members::brains(&Program::kubebrain()?, &pd, 3, flags)?;
    fill(connect(&members, members.leader().await?).await?, count).await?;
    tokio::time::sleep(SETTLE_TIME).await; // until everything has become rows
    let mut times = TakeoverTimes::default();
    for _ in 0..rounds {
        let follower = a_follower(&members).await?;
        members.end(follower)?;
        let began = Instant::now();
        members.start(follower)?;
        times.start.push(began.elapsed());

        let (leader, target) = (members.leader().await?, a_follower(&members).await?);
        let (mut from, mut to) = (maintenance(&members, leader).await?, connect(&members, target).await?);
        let target = members.status(target).await?.header.context("a header")?.member_id;
        let began = Instant::now();
        from.move_leader(pb::MoveLeaderRequest { target_id: target }).await?;
        to.put(put(0)).await?;
        times.hand_over.push(began.elapsed());

        let (leader, other) = (members.leader().await?, a_follower(&members).await?);
        let mut other = connect(&members, other).await?;
        members.kill(leader)?;
        let began = Instant::now();
        while let Err(error) = other.put(put(0)).await {
            anyhow::ensure!(
                began.elapsed() < ELECTION_TIMEOUT,
                "no write after {ELECTION_TIMEOUT:?}: {error}"
            );
        }
        times.kill.push(began.elapsed());
        members.start(leader)?;
    }
    members.stop()?;
    Ok(times)
}

async fn a_follower(members: &Members) -> anyhow::Result<usize> {
    members.followers().await?.first().copied().context("no member follows")
}

async fn connect(members: &Members, member: usize) -> anyhow::Result<KvClient<Channel>> {
    Ok(KvClient::new(members.server(member)?.connect().await?))
}

async fn maintenance(members: &Members, member: usize) -> anyhow::Result<MaintenanceClient<Channel>> {
    Ok(MaintenanceClient::new(members.server(member)?.connect().await?))
}

/// Keys of a length and an order as in life: evenly spread.
fn put(number: u64) -> pb::PutRequest {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    pb::PutRequest {
        key: format!("/registry/filled/{spread:016x}").into(),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    }
}

async fn fill(kv: KvClient<Channel>, count: u64) -> anyhow::Result<()> {
    let txns = (0..count).step_by(PUTS_PER_TXN as usize).map(|first| {
        let puts = (first..count.min(first + PUTS_PER_TXN)).map(put);
        let op = |put| pb::RequestOp {
            request: Some(Op::RequestPut(put)),
        };
        let txn = pb::TxnRequest {
            success: puts.map(op).collect(),
            ..pb::TxnRequest::default()
        };
        let mut kv = kv.clone();
        async move { kv.txn(txn).await.map(drop) }
    });
    let all = futures::stream::iter(txns).buffer_unordered(IN_FLIGHT);
    all.try_for_each(|()| async { Ok(()) }).await.context("write the keys")
}
