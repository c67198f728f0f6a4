//! Processor time and memory of every process of a cluster, and its requests to TiKV while it is idle.

use std::collections::BTreeMap;
use std::time::Duration;

use programs::members::Members;
use programs::server::ProcessUsage;
use testkit::goal::Goal;

use super::BrainsOnTikv;

/// Those of all processes, by what they are.
#[derive(Debug)]
pub(super) struct ProcessUsages(Vec<(&'static str, ProcessUsage)>);

impl ProcessUsages {
    pub(super) fn of(members: &Members, leader: usize, mock_tikv: Option<u32>) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for member in members.running() {
            let what = if member == leader { "leader" } else { "follower" };
            all.push((what, members.server(member)?.usage()?));
        }
        if let Some(pid) = mock_tikv {
            all.push(("mock", ProcessUsage::of(pid)?));
        }
        Ok(Self(all))
    }

    /// Processor time since then; of followers, that of the busiest.
    pub(super) fn since(&self, before: &Self) -> BTreeMap<&'static str, Duration> {
        let mut spent = BTreeMap::new();
        for ((what, now), (_, then)) in self.0.iter().zip(&before.0) {
            let entry: &mut Duration = spent.entry(*what).or_default();
            *entry = (*entry).max(now.cpu.saturating_sub(then.cpu));
        }
        spent
    }

    /// The most memory that a brain has used, in bytes.
    pub(super) fn peak_rss(&self) -> u64 {
        let brains = self.0.iter().filter(|(what, _)| *what != "mock");
        brains.map(|(_, usage)| usage.peak_rss).max().unwrap_or_default()
    }
}

/// Measures the cost of a cluster without requests.
pub(super) async fn idle(cluster: &BrainsOnTikv, seconds: u64) -> anyhow::Result<Vec<String>> {
    if let Some(mock_tikv) = &cluster.mock_tikv {
        mock_tikv.command("DELETE", "/requests", None).await?;
    }
    let before = cluster.usages()?;
    let time = Duration::from_secs(seconds);
    tokio::time::sleep(time).await; // the passing of time is what is measured
    let spent = cluster.usages()?.since(&before);
    let mut lines: Vec<String> = spent
        .iter()
        .map(|(what, cpu)| {
            let percent = cpu.as_secs_f64() / time.as_secs_f64() * 100.0;
            let goal = match *what {
                "mock" => String::new(),
                _ => Goal::AtMost(1.0).beside(percent).to_string(),
            };
            format!("{percent:>12.2} % of a core  {what}, idle {goal}")
        })
        .collect();
    if let Some(mock_tikv) = &cluster.mock_tikv {
        let counted = mock_tikv.command("GET", "/requests", None).await?;
        let counted: BTreeMap<String, u64> = serde_json::from_value(counted)?;
        let rate = counted.values().sum::<u64>() as f64 / time.as_secs_f64();
        let goal = Goal::AtMost(10.0).beside(rate);
        lines.push(format!(
            "{rate:>12.2} requests/s   of TiKV and PD, idle: {counted:?} {goal}"
        ));
    }
    Ok(lines)
}
