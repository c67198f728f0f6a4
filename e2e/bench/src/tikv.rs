//! Three brains on TiKV: what they write, tell, read and cost.
//!
//! On a mock whose commits take 3 ms, in a process of its own, or on the cluster that `TIKV_PD` names.

mod events;
mod reads;
mod usages;
mod writes;

use anyhow::Context as _;
use pb::kv_client::KvClient;
use programs::members::Members;
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tikv::{MockTikv, REAL_PD_VARIABLE};
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::disk::ServerDir;
use usages::ProcessUsages;

/// Durations of the measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TikvPlan {
    /// Seconds for which updates are sent.
    pub(crate) seconds: u64,
    /// Seconds for which the idle cluster is observed.
    pub(crate) idle: u64,
}

/// Brains, and what they store in.
struct BrainsOnTikv {
    members: Members,
    /// None where the cluster is a real one.
    mock_tikv: Option<MockTikv>,
    leader: usize,
    follower: usize,
}

impl BrainsOnTikv {
    async fn start() -> anyhow::Result<Self> {
        let (mock_tikv, pd) = store()?;
        let members = Members::brains(&Program::kubebrain()?, &pd, 3, &[])?;
        let leader = members.leader().await?;
        let follower = *members.followers().await?.first().context("no member follows")?;
        Ok(Self {
            members,
            mock_tikv,
            leader,
            follower,
        })
    }

    fn leader(&self) -> anyhow::Result<&Server> {
        self.members.server(self.leader)
    }

    fn follower(&self) -> anyhow::Result<&Server> {
        self.members.server(self.follower)
    }

    async fn kv(&self) -> anyhow::Result<KvClient<Channel>> {
        Ok(KvClient::new(self.leader()?.connect().await?).max_decoding_message_size(usize::MAX))
    }

    fn usages(&self) -> anyhow::Result<ProcessUsages> {
        ProcessUsages::of(&self.members, self.leader, self.mock_tikv.as_ref().map(MockTikv::pid))
    }
}

/// The cluster that `TIKV_PD` names, or a mock; and how to reach it.
pub(crate) fn store() -> anyhow::Result<(Option<MockTikv>, String)> {
    if let Ok(pd) = std::env::var(REAL_PD_VARIABLE) {
        return Ok((None, pd));
    }
    let mock_tikv = MockTikv::start(None, &["--commit-latency=3ms"])?;
    let pd = mock_tikv.pd().to_owned();
    Ok((Some(mock_tikv), pd))
}

/// All of it, as lines for people.
pub(crate) async fn measure(plan: TikvPlan, place: &ServerDir, progress: &Progress) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    let step = progress.step("updates on an embedded store");
    let embedded = writes::embedded(place, plan.seconds).await?;
    step.done();
    lines.push(format!(
        "{embedded:>12.0} updates/s  one brain, embedded, {} s",
        plan.seconds
    ));
    let cluster = BrainsOnTikv::start().await?;
    for (what, part) in [("idle", 0), ("events", 1), ("reads", 2), ("updates", 3)] {
        let step = progress.step(format_args!("{what} on TiKV"));
        lines.extend(match part {
            0 => usages::idle(&cluster, plan.idle).await?,
            1 => events::measure(&cluster).await?,
            2 => reads::measure(&cluster, place).await?,
            _ => writes::on_tikv(&cluster, place, plan.seconds, embedded).await?,
        });
        step.done();
    }
    cluster.members.stop()?;
    Ok(lines.join("\n"))
}
