//! Start and take-over of three brains on TiKV, with few keys and with many: it must not make a difference.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use e2e::members::Members;
use e2e::progress::Progress;
use e2e::server::Program;
use e2e::tikv::Tikv;
use e2e::wire::etcdserverpb as pb;
use futures::{StreamExt as _, TryStreamExt as _};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use pb::request_op::Request as Op;
use tokio::time::Instant;
use tonic::transport::Channel;

/// Short, because the wait for a dead leader's lease is no part of what may depend on the keys.
const ELECTION: [&str; 3] = [
    "--election-lease-duration=1.2s",
    "--election-renew-deadline=0.9s",
    "--election-retry-period=250ms",
];
const VALUE: usize = 100;
/// Puts of one transaction: as many as etcd takes.
const PUTS: u64 = 128;
const IN_FLIGHT: usize = 32;
/// Longer than versions wait in memory until they become rows.
const SETTLED: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(30);

/// What was measured with one number of keys.
#[derive(Default)]
struct Times {
    start: Vec<Duration>,
    hand_over: Vec<Duration>,
    kill: Vec<Duration>,
}

/// Measures with each of these numbers of keys.
pub(crate) async fn measure(keys: &[u64], rounds: usize, progress: &Progress) -> anyhow::Result<String> {
    let mut table = format!(
        "{rounds} rounds each, median (least, most)\n\n{:>10} {:>26} {:>26} {:>26}\n",
        "keys", "start of a member", "hand-over", "kill -9 to first write"
    );
    for count in keys {
        let step = progress.step(format_args!("{count} keys"));
        let mut times = with_keys(*count, rounds).await?;
        step.done();
        let [start, hand_over, kill] = [&mut times.start, &mut times.hand_over, &mut times.kill].map(|all| shown(all));
        // writing to a String cannot fail
        writeln!(table, "{count:>10} {start:>26} {hand_over:>26} {kill:>26}").ok();
    }
    Ok(table)
}

fn shown(all: &mut [Duration]) -> String {
    all.sort();
    let seconds = |at: usize| all.get(at).map_or(f64::NAN, Duration::as_secs_f64);
    let (median, least, most) = (seconds(all.len() / 2), seconds(0), seconds(all.len() - 1));
    format!("{median:.3} s ({least:.3}, {most:.3})")
}

async fn with_keys(count: u64, rounds: usize) -> anyhow::Result<Times> {
    let tikv = Tikv::for_test()?;
    let mut members = Members::brains(&Program::kubebrain()?, tikv.pd(), 3, &ELECTION)?;
    fill(connect(&members, members.leader().await?).await?, count).await?;
    tokio::time::sleep(SETTLED).await; // until everything has become rows
    let mut times = Times::default();
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
            anyhow::ensure!(began.elapsed() < PATIENCE, "no write after {PATIENCE:?}: {error}");
        }
        times.kill.push(began.elapsed());
        members.start(leader)?;
    }
    members.stop()?;
    Ok(times)
}

async fn a_follower(members: &Members) -> anyhow::Result<usize> {
    members.followers().await?.first().copied().context("nobody follows")
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
        value: vec![b'v'; VALUE].into(),
        ..pb::PutRequest::default()
    }
}

async fn fill(kv: KvClient<Channel>, count: u64) -> anyhow::Result<()> {
    let txns = (0..count).step_by(PUTS as usize).map(|first| {
        let puts = (first..count.min(first + PUTS)).map(put);
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
