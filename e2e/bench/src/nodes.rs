//! The store's share of large clusters: each node renews its lease every ten seconds, and pods come and go.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::{try_join, try_join3};
use programs::server::{Program, Server};
use tokio::time::{Instant, sleep_until};
use wire::mvccpb::Event;

use crate::clients::on_one_thread;
use crate::compactor::Compactions;
use crate::disk::{self, ServerDir};
use crate::grpc::{Connections, WindowSizes};
use crate::guarded_writes::{Change, GuardedWrites};
use crate::histogram::LatencyHistogram;
use crate::load_plan::{LoadTimes, QUOTA_FLAG, say_latencies};
use crate::objects::node_lease;
use crate::objects::pods::RUNNING;
use crate::open_loop::{self, RequestSchedule};
use crate::pod_fleet::{PodFleet, PodWrites};
use crate::prefix_watchers::PrefixWatchers;
use crate::report::{Report, Unit};
use crate::stored_bytes::StoredBytes;
use crate::{closed_loop, updates};

const CONNECTIONS: usize = 8;
const IN_FLIGHT: u64 = 64;
const WATCHERS: usize = 5;
/// Between two renewals of a node.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Pods that come and go, at most.
const MAX_PODS: u64 = 10_000;
const MIN_PODS: u64 = 100;
/// A pod is deleted after that many updates.
const LAST_STEP: u64 = 8;
/// Until the first request, for watchers and generators to be ready.
const START_DELAY: Duration = Duration::from_secs(1);
const MIB: f64 = 1024.0 * 1024.0;

/// Settings that are the same for both servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodesPlan {
    pub(crate) nodes: u64,
    /// Writes of pods a second.
    pub(crate) churn: u32,
    pub(crate) times: LoadTimes,
}

impl NodesPlan {
    /// Renewals a second.
    fn renewals(&self) -> f64 {
        self.nodes as f64 / RENEW_INTERVAL.as_secs_f64()
    }

    /// Writes a second.
    fn offered(&self) -> f64 {
        self.renewals() + f64::from(self.churn)
    }
}

/// One round on one server.
pub(crate) fn measure(program: &Program, dir: &ServerDir, plan: NodesPlan, report: &mut Report) -> anyhow::Result<()> {
    on_one_thread(|| async move {
        let server = Server::start_in(program, &dir.data(), &[QUOTA_FLAG])?;
        run(&server, plan, report).await?;
        server.stop()
    })
}

async fn run(server: &Server, plan: NodesPlan, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    let compactions = Compactions::default();
    let stored = StoredBytes::default();
    let leases = NodeLeases::create(plan.nodes, &connections, &compactions)
        .await
        .context("create leases")?;
    let fleet = PodFleet::new(plan.nodes.clamp(MIN_PODS, MAX_PODS));
    fill(&fleet, &connections, &compactions, &stored)
        .await
        .context("create pods")?;

    let renewals = RequestSchedule::new(plan.renewals(), plan.times.load).delayed(START_DELAY);
    let churn = RequestSchedule::new(f64::from(plan.churn), plan.times.load).delayed(START_DELAY);
    let to_event = Arc::new(Mutex::new(LatencyHistogram::default()));
    let on_event = {
        let to_event = Arc::clone(&to_event);
        move |event: &Event, at: Instant| {
            let due = renewals.at(renewal(event, plan.nodes)?);
            let mut to_event = to_event.lock().unwrap_or_else(PoisonError::into_inner);
            to_event.record(at.saturating_duration_since(due));
            Ok(())
        }
    };
    let mut watchers = PrefixWatchers::start(server, node_lease::PREFIX, WATCHERS, on_event).await?;
    let lease_writes = GuardedWrites::new(&connections, &compactions);
    let pods = PodWrites {
        writes: GuardedWrites::new(&connections, &compactions),
        stored: &stored,
    };
    let cpu = server.usage()?.cpu;
    let renewing = async {
        let renew = |n| leases.renew(n, &lease_writes, renewals.at(n));
        let missed = open_loop::run_in_lanes(renewals, plan.nodes, renew).await?;
        missed
            .iter()
            .for_each(|n| lease_writes.missed(renewals.end() - renewals.at(*n)));
        anyhow::Ok(())
    };
    let churning = async {
        let write = |n| next_write(&fleet, fleet.slot(n % fleet.len()), &pods, churn.at(n));
        let missed = open_loop::run_in_lanes(churn, fleet.len(), write).await?;
        missed
            .iter()
            .for_each(|n| pods.writes.missed(churn.end() - churn.at(*n)));
        anyhow::Ok(())
    };
    let writing = async {
        try_join(renewing, churning).await?;
        anyhow::Ok((renewals.at(0).elapsed(), server.usage()?.cpu - cpu))
    };
    let compacting = compactions.run(
        connections.get(0),
        &stored,
        plan.times.compaction_interval,
        renewals.end(),
    );
    let looking = footprints(server, renewals.at(0), plan.times.load);
    let loads = try_join3(writing, compacting, looking);
    let ((took, spent), (), footprints) = watchers.while_reading(loads).await?;
    watchers
        .finish(lease_writes.last_revision(), lease_writes.count())
        .await?;
    let outcome = NodesOutcome {
        took,
        spent,
        count: lease_writes.count() + pods.writes.count(),
        refused: lease_writes.refused() + pods.writes.refused(),
        footprints,
        longest_compaction: compactions.times().into_iter().max(),
        renewals: lease_writes.times().all(),
        pod_writes: pods.writes.times().all(),
        to_event: to_event.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    outcome.say(plan, server.name(), report);
    Ok(())
}

/// The result of a load.
struct NodesOutcome {
    took: Duration,
    /// Processor time of the server.
    spent: Duration,
    /// Writes that were done.
    count: u64,
    refused: u64,
    footprints: [Footprint; 3],
    longest_compaction: Option<Duration>,
    renewals: LatencyHistogram,
    pod_writes: LatencyHistogram,
    to_event: LatencyHistogram,
}

impl NodesOutcome {
    fn say(&self, plan: NodesPlan, program: &'static str, report: &mut Report) {
        let row = |name: &str| format!("{} nodes: {name}", plan.nodes);
        let (took, spent, count) = (self.took.as_secs_f64(), self.spent.as_secs_f64(), self.count as f64);
        let mut say = |name: &str, unit, value| report.say(&row(name), unit, program, value);
        say("writes, offered", Unit::PerSecond, plan.offered());
        say("writes, reached", Unit::PerSecond, count / took);
        say(
            "refused, of all writes",
            Unit::Percent,
            self.refused as f64 / count * 100.0,
        );
        say(
            "server CPU of a write",
            Unit::MicrosEach,
            updates::each(self.spent, self.count),
        );
        say("server CPU of one core", Unit::Percent, spent / took * 100.0);
        for (when, Footprint { rss, directory }) in ["start", "middle", "end"].into_iter().zip(&self.footprints) {
            say(&format!("RSS, {when}"), Unit::Mib, *rss as f64 / MIB);
            say(&format!("directory, {when}"), Unit::Mib, *directory as f64 / MIB);
        }
        if let Some(longest) = self.longest_compaction {
            say("compaction, the longest", Unit::Seconds, longest.as_secs_f64());
        }
        let mut all = self.renewals.clone();
        all.merge(&self.pod_writes);
        for (name, times) in [
            ("write", &all),
            ("lease renewal", &self.renewals),
            ("pod write", &self.pod_writes),
            ("lease renewal to event", &self.to_event),
        ] {
            say_latencies(&row(name), times, program, report);
        }
    }
}

/// The leases of all nodes.
struct NodeLeases(Vec<NodeLeaseState>);

#[derive(Default)]
struct NodeLeaseState {
    revision: Cell<i64>,
    renewals: Cell<u64>,
}

impl NodeLeases {
    async fn create(count: u64, connections: &Connections, compactions: &Compactions) -> anyhow::Result<Self> {
        let leases = Self((0..count).map(|_| NodeLeaseState::default()).collect());
        let writes = GuardedWrites::new(connections, compactions);
        let create = |_, node| leases.put(node, 0, &writes, Instant::now());
        closed_loop::run(connections, IN_FLIGHT, count, create).await?;
        Ok(leases)
    }

    /// Renewal `n` of all: nodes renew in turn.
    async fn renew(&self, n: u64, writes: &GuardedWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let count = self.0.len() as u64;
        let (node, renewals) = (n % count, n / count + 1);
        let before = self.0[node as usize].renewals.get();
        ensure!(
            before + 1 == renewals,
            "renewal {renewals} of node {node} after {before}"
        );
        self.put(node, renewals, writes, due).await
    }

    async fn put(&self, node: u64, renewals: u64, writes: &GuardedWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let lease = &self.0[node as usize];
        let value = Change::Put(node_lease::value(node, renewals));
        let revision = writes
            .write(&node_lease::key(node), lease.revision.get(), value, due)
            .await?;
        lease.revision.set(revision);
        lease.renewals.set(renewals);
        Ok(())
    }
}

/// The number of the renewal that an event is of: the version of a lease counts its renewals, and its creation.
fn renewal(event: &Event, nodes: u64) -> anyhow::Result<u64> {
    let kv = event.kv.as_ref().context("an event without a key")?;
    let node = node_lease::node(&kv.key).filter(|node| *node < nodes);
    let node = node.with_context(|| format!("an event of {}", kv.key.escape_ascii()))?;
    let round = u64::try_from(kv.version - 2).context("an event before the first renewal")?;
    Ok(round * nodes + node)
}

/// Creates pods at all steps of a life, so that as many are deleted at any time as at another.
async fn fill(
    fleet: &PodFleet,
    connections: &Connections,
    compactions: &Compactions,
    stored: &StoredBytes,
) -> anyhow::Result<()> {
    let writes = PodWrites {
        writes: GuardedWrites::new(connections, compactions),
        stored,
    };
    let create = |_, slot| {
        fleet.create(
            slot,
            RUNNING + slot % (LAST_STEP + 1 - RUNNING),
            &writes,
            Instant::now(),
        )
    };
    closed_loop::run(connections, IN_FLIGHT, fleet.len(), create).await?;
    Ok(())
}

/// The next write in the life of a pod.
async fn next_write(fleet: &PodFleet, slot: u64, to: &PodWrites<'_>, due: Instant) -> anyhow::Result<()> {
    match fleet.step(slot) {
        None => fleet.create(slot, 0, to, due).await,
        Some(LAST_STEP..) => fleet.delete(slot, to, due).await,
        Some(_) => fleet.update(slot, to, due).await,
    }
}

/// Memory and disk of a server at one time.
struct Footprint {
    rss: u64,
    directory: u64,
}

/// When the load starts, in its middle, and at its end.
async fn footprints(server: &Server, began: Instant, load: Duration) -> anyhow::Result<[Footprint; 3]> {
    let at = async |time| {
        sleep_until(time).await;
        let (rss, directory) = (server.usage()?.rss, disk::occupied(server.dir())?);
        anyhow::Ok(Footprint { rss, directory })
    };
    Ok([at(began).await?, at(began + load / 2).await?, at(began + load).await?])
}

#[cfg(test)]
mod tests {
    use wire::mvccpb::KeyValue;

    use super::*;

    #[test]
    fn events_are_of_the_renewals_that_their_versions_count() {
        let of = |key, version| {
            let kv = KeyValue {
                key,
                version,
                ..KeyValue::default()
            };
            let event = Event {
                kv: Some(kv),
                ..Event::default()
            };
            renewal(&event, 100).ok()
        };
        assert_eq!(of(node_lease::key(7), 2), Some(7));
        assert_eq!(of(node_lease::key(7), 4), Some(207));
        assert_eq!(of(node_lease::key(7), 1), None);
        assert_eq!(of(node_lease::key(100), 2), None);
        assert_eq!(of("/registry/pods/a/b".into(), 2), None);
    }

    #[test]
    fn offered_writes_are_renewals_and_churn() {
        let plan = NodesPlan {
            nodes: 100_000,
            churn: 1_000,
            times: LoadTimes::new(Duration::from_secs(60), None),
        };
        assert_eq!((plan.renewals(), plan.offered()), (10_000.0, 11_000.0));
    }
}
