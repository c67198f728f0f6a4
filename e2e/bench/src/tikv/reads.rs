//! Linearizable reads of one key, of the leader and of a follower, and what they cost either of them.

use programs::server::Server;
use testkit::goal::Goal;

use super::BrainsOnTikv;
use crate::disk::ServerDir;
use crate::load::RequestLoad;
use crate::{requests, updates};

const READS: u64 = 60_000;

pub(super) async fn measure(cluster: &BrainsOnTikv, place: &ServerDir) -> anyhow::Result<Vec<String>> {
    cluster.kv().await?.put(requests::put()).await?;
    let body = place.file("get");
    requests::write(&requests::get(), &body)?;
    let mut lines = Vec::new();
    let mut of_leader = Vec::new();
    for (what, server) in [("leader", cluster.leader()?), ("follower", cluster.follower()?)] {
        let (rate, costs) = read(cluster, server, &body)?;
        lines.push(format!("{rate:>12.0} reads/s    of the {what}"));
        for (whose, cost) in costs {
            lines.push(format!("{cost:>12.2} µs of CPU  {whose}, each read of the {what}"));
            if whose == "leader" {
                of_leader.push(cost);
            }
        }
    }
    if let [own, others] = of_leader[..] {
        let share = others / own;
        lines.push(format!(
            "{share:>12.3} x          the leader's share of a follower's read, of one of its own {}",
            Goal::AtMost(0.1).beside(share)
        ));
    }
    Ok(lines)
}

/// Reads a second, and the time that each took of every process.
fn read(
    cluster: &BrainsOnTikv,
    server: &Server,
    body: &std::path::Path,
) -> anyhow::Result<(f64, Vec<(&'static str, f64)>)> {
    let load = RequestLoad {
        clients: 8,
        streams: 32,
        requests: READS,
    };
    let before = cluster.usages()?;
    let outcome = load.run(server, "etcdserverpb.KV/Range", body)?;
    let spent = cluster.usages()?.since(&before);
    let each = spent.into_iter().map(|(what, cpu)| (what, updates::each(cpu, READS)));
    Ok((outcome.rate, each.collect()))
}
