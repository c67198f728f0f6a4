//! Update transactions for a while, and the flushes that they cause.

use pb::kv_client::KvClient;
use programs::server::{Program, Server};
use testkit::goal::Goal;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::BrainsOnTikv;
use crate::disk::ServerDir;
use crate::load::{LoadResult, RequestLoad};
use crate::{requests, updates};

/// Updates that measure the rate, to calculate the number of updates that takes a given time.
const PROBE_UPDATES: u64 = 20_000;
/// A minute of updates is more than etcd's default quota.
const NO_QUOTA_FLAG: &str = "--quota-backend-bytes=-1";
const MIB: f64 = 1024.0 * 1024.0;

/// Updates a second of one brain with a store of its own.
pub(super) async fn embedded(place: &ServerDir, seconds: u64) -> anyhow::Result<f64> {
    let server = Server::start_in(&Program::kubebrain()?, &place.data(), &[NO_QUOTA_FLAG])?;
    let mut kv = KvClient::new(server.connect().await?);
    let (outcome, _) = sustained(&server, &mut kv, place, seconds).await?;
    server.stop()?;
    Ok(outcome.rate)
}

/// The same of three brains on TiKV.
pub(super) async fn on_tikv(
    cluster: &BrainsOnTikv,
    place: &ServerDir,
    seconds: u64,
    embedded: f64,
) -> anyhow::Result<Vec<String>> {
    let before = cluster.usages()?;
    let mut kv = cluster.kv().await?;
    let (outcome, count) = sustained(cluster.leader()?, &mut kv, place, seconds).await?;
    let after = cluster.usages()?;
    let ratio = outcome.rate / embedded;
    let mut lines = vec![format!(
        "{:>12.0} updates/s  through the leader of three on TiKV, {seconds} s: {ratio:.2} x embedded {}",
        outcome.rate,
        Goal::AtLeast(0.4).beside(ratio)
    )];
    for (what, cpu) in after.since(&before) {
        let each = updates::each(cpu, count);
        lines.push(format!("{each:>12.1} µs of CPU  {what}, each update"));
    }
    let peak = after.peak_rss() as f64 / MIB;
    lines.push(format!("{peak:>12.0} MiB        peak RSS of a brain"));
    Ok(lines)
}

/// Sends updates for about this many seconds. Returns the outcome and the number of all updates, those of the probe included.
async fn sustained(
    server: &Server,
    kv: &mut KvClient<Channel>,
    place: &ServerDir,
    seconds: u64,
) -> anyhow::Result<(LoadResult, u64)> {
    kv.put(requests::put()).await?;
    let body = place.file("update");
    requests::write(&requests::update(), &body)?;
    let load = |requests| RequestLoad {
        clients: 8,
        streams: 32,
        requests,
    };
    let probe = load(PROBE_UPDATES).run(server, "etcdserverpb.KV/Txn", &body)?;
    let count = (probe.rate * seconds as f64) as u64;
    let before = updates::revision(kv).await?;
    let outcome = load(count).run(server, "etcdserverpb.KV/Txn", &body)?;
    let made = updates::revision(kv).await? - before;
    anyhow::ensure!(
        u64::try_from(made) == Ok(count),
        "{count} updates made {made} revisions"
    );
    Ok((outcome, count + PROBE_UPDATES))
}
