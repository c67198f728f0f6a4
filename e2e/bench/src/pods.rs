//! Objects as they are today: pods that are created, updated by Zipf's law and replaced, while history grows and is compacted.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Context as _;
use programs::server::{Program, Server};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

mod lists;

use crate::clients::on_one_thread;
use crate::compactor::Compactions;
use crate::disk::{self, ServerDir};
use crate::grpc::{Connections, WindowSizes};
use crate::guarded_writes::GuardedWrites;
use crate::load_plan::{self, QUOTA_FLAG, say_latencies};
use crate::objects::pods::{PREFIX, RUNNING};
use crate::pod_fleet::{PodFleet, PodWrites};
use crate::prefix_watchers::PrefixWatchers;
use crate::report::{Report, Unit};
use crate::stored_bytes::StoredBytes;
use crate::zipf::Zipf;
use crate::{closed_loop, updates};

const CONNECTIONS: usize = 8;
const IN_FLIGHT: u64 = 64;
/// Of all operations: pods that are replaced.
const REPLACED_PART: f64 = 0.02;
/// All runs make the same choices.
const SEED: u64 = 20;
const MIB: f64 = 1024.0 * 1024.0;

/// Settings that are the same for both servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodsPlan {
    pub(crate) pods: u64,
    pub(crate) watchers: usize,
    pub(crate) times: load_plan::LoadTimes,
}

/// One round on one server.
pub(crate) fn measure(program: &Program, dir: &ServerDir, plan: PodsPlan, report: &mut Report) -> anyhow::Result<()> {
    on_one_thread(|| async move {
        let server = Server::start_in(program, &dir.data(), &[QUOTA_FLAG])?;
        let mut round = PodsRound {
            program,
            fleet: PodFleet::new(plan.pods),
            stored: StoredBytes::default(),
            plan,
            report,
        };
        round.load(&server).await.context("create pods")?;
        round.updates(&server).await.context("update pods")?;
        round.directory(dir).await?;
        server.kill()?;
        let began = Instant::now();
        let server = Server::start_in(program, &dir.data(), &[QUOTA_FLAG])?;
        round.first_read(&server, began).await.context("read after a restart")?;
        lists::measure(&server, &round.fleet, |name, rate| {
            round.report.say(
                &format!("{} pods: {name}", plan.pods),
                Unit::PerSecond,
                program.name,
                rate,
            );
        })
        .await
        .context("list pods")?;
        server.stop()
    })
}

struct PodsRound<'a> {
    program: &'a Program,
    fleet: PodFleet,
    stored: StoredBytes,
    plan: PodsPlan,
    report: &'a mut Report,
}

impl PodsRound<'_> {
    fn say(&mut self, name: &str, unit: Unit, value: f64) {
        let name = self.row(name);
        self.report.say(&name, unit, self.program.name, value);
    }

    fn row(&self, name: &str) -> String {
        format!("{} pods: {name}", self.plan.pods)
    }

    /// Creates pods that run.
    async fn load(&mut self, server: &Server) -> anyhow::Result<()> {
        let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
        let compactions = Compactions::default();
        let writes = PodWrites {
            writes: GuardedWrites::new(&connections, &compactions),
            stored: &self.stored,
        };
        let (fleet, cpu) = (&self.fleet, server.usage()?.cpu);
        let create = |_, rank| {
            let (slot, writes) = (fleet.slot(rank), &writes);
            fleet.create(slot, RUNNING, writes, Instant::now())
        };
        let took = closed_loop::run(&connections, IN_FLIGHT, fleet.len(), create).await?;
        let (times, spent, count) = (writes.writes.times().all(), server.usage()?.cpu - cpu, fleet.len());
        let alive = self.stored.alive() as f64;
        self.say("key and value", Unit::BytesEach, alive / count as f64);
        self.say("creates", Unit::PerSecond, count as f64 / took.as_secs_f64());
        let name = self.row("create");
        say_latencies(&name, &times, self.program.name, self.report);
        self.say("server CPU of a create", Unit::MicrosEach, updates::each(spent, count));
        Ok(())
    }

    /// Updates and replaces while watchers read along and compactions run.
    async fn updates(&mut self, server: &Server) -> anyhow::Result<()> {
        let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
        let compactions = Compactions::default();
        let writes = PodWrites {
            writes: GuardedWrites::new(&connections, &compactions),
            stored: &self.stored,
        };
        let mut watchers = PrefixWatchers::start(server, PREFIX, self.plan.watchers, |_, _| Ok(())).await?;
        let times = self.plan.times;
        let (began, cpu) = (Instant::now(), server.usage()?.cpu);
        let end = began + times.load;
        let chance = RefCell::new((StdRng::seed_from_u64(SEED), Zipf::new(self.fleet.len())));
        let workers = (0..IN_FLIGHT.min(self.fleet.len() / 2)).map(|_| work(&self.fleet, &writes, &chance, end));
        let loads = async {
            let workers = async {
                futures::future::try_join_all(workers).await?;
                let ended = LoadEnd {
                    took: began.elapsed(),
                    compacting: compactions.running_time(),
                    spent: server.usage()?.cpu - cpu,
                };
                Ok(ended)
            };
            let compacting = compactions.run(connections.get(0), &self.stored, times.compaction_interval, end);
            let (ended, ()) = futures::future::try_join(workers, compacting).await?;
            anyhow::Ok(ended)
        };
        let ended = watchers.while_reading(loads).await?;
        let count = writes.writes.count();
        watchers.finish(writes.writes.last_revision(), count).await?;
        let (write_times, peak) = (writes.writes.times(), server.usage()?.peak_rss);
        let (in_compactions, pause) = (writes.writes.count_in_compactions(), writes.writes.longest_pause());
        self.say_rates(WriteRates::of(count, in_compactions, &ended));
        let name = "no write done, the longest time";
        self.say(name, Unit::Millis, pause.as_secs_f64() * 1_000.0);
        for (when, histogram) in [
            ("write while no compaction runs", &write_times.between_compactions),
            ("write while a compaction runs", &write_times.in_compactions),
        ] {
            let name = self.row(when);
            say_latencies(&name, histogram, self.program.name, self.report);
        }
        if let Some(longest) = compactions.times().iter().max() {
            self.say("compaction, the longest", Unit::Seconds, longest.as_secs_f64());
        }
        self.say(
            "server CPU of a write",
            Unit::MicrosEach,
            updates::each(ended.spent, count),
        );
        self.say("peak RSS", Unit::Mib, peak as f64 / MIB);
        Ok(())
    }

    fn say_rates(&mut self, rates: WriteRates) {
        self.say("writes", Unit::PerSecond, rates.all);
        self.say(
            "writes while no compaction runs",
            Unit::PerSecond,
            rates.between_compactions,
        );
        if let Some(rate) = rates.in_compactions {
            let name = "writes while a compaction runs";
            self.say(name, Unit::PerSecond, rate);
            self.say(
                &format!("{name}, of those without"),
                Unit::Share,
                rate / rates.between_compactions,
            );
        }
    }

    /// The size of the directory, when the load has just ended and when the server has nothing left to do.
    async fn directory(&mut self, dir: &ServerDir) -> anyhow::Result<()> {
        let kept = self.stored.kept() as f64;
        let at_end = disk::occupied(&dir.data())?;
        let settled = disk::settled(&dir.data()).await?;
        self.say("alive", Unit::Mib, self.stored.alive() as f64 / MIB);
        self.say("alive and history", Unit::Mib, kept / MIB);
        for (when, bytes) in [("at the end", at_end), ("settled", settled)] {
            self.say(&format!("directory, {when}"), Unit::Mib, bytes as f64 / MIB);
            let part = bytes as f64 / kept * 100.0;
            self.say(&format!("directory, {when}: of alive and history"), Unit::Percent, part);
        }
        Ok(())
    }

    async fn first_read(&mut self, server: &Server, began: Instant) -> anyhow::Result<()> {
        let pods = self.fleet.stored();
        let pod = &pods[pods.len() / 2];
        let read = lists::read(server, &pod.key).await?;
        let took = began.elapsed();
        self.fleet.check(pod, &read)?;
        self.say("kill -9, restart to first read", Unit::Seconds, took.as_secs_f64());
        Ok(())
    }
}

/// Time and processor time of a load.
struct LoadEnd {
    took: Duration,
    /// The part of that time in which compactions ran.
    compacting: Duration,
    /// Processor time of the server.
    spent: Duration,
}

/// Writes a second.
#[derive(Debug, PartialEq)]
struct WriteRates {
    all: f64,
    between_compactions: f64,
    /// `None` if no compaction ran.
    in_compactions: Option<f64>,
}

impl WriteRates {
    /// Of this many writes, those that were done while compactions ran included.
    fn of(count: u64, in_compactions: u64, ended: &LoadEnd) -> Self {
        let rate = |count: u64, time: Duration| count as f64 / time.as_secs_f64();
        Self {
            all: rate(count, ended.took),
            between_compactions: rate(count - in_compactions, ended.took.saturating_sub(ended.compacting)),
            in_compactions: (!ended.compacting.is_zero()).then(|| rate(in_compactions, ended.compacting)),
        }
    }
}

/// One operation after another until `end`.
async fn work(
    fleet: &PodFleet,
    writes: &PodWrites<'_>,
    chance: &RefCell<(StdRng, Zipf)>,
    end: Instant,
) -> anyhow::Result<()> {
    while Instant::now() < end {
        let (slot, is_replaced) = {
            let (random, zipf) = &mut *chance.borrow_mut();
            let slot = loop {
                let slot = fleet.slot(zipf.rank(random.random()));
                if fleet.take(slot) {
                    break slot;
                }
            };
            (slot, random.random_bool(REPLACED_PART))
        };
        match is_replaced {
            true => fleet.replace(slot, writes).await?,
            false => fleet.update(slot, writes, Instant::now()).await?,
        }
        fleet.release(slot);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_count_by_the_time_in_which_compactions_ran() {
        let ended = |compacting| LoadEnd {
            took: Duration::from_secs(10),
            compacting: Duration::from_secs(compacting),
            spent: Duration::ZERO,
        };
        let rates = WriteRates::of(1_000, 180, &ended(2));
        let expected = WriteRates {
            all: 100.0,
            between_compactions: 102.5,
            in_compactions: Some(90.0),
        };
        assert_eq!(rates, expected);
        assert_eq!(WriteRates::of(1_000, 0, &ended(0)).in_compactions, None);
    }
}
