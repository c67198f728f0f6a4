//! A backup of a store of many keys while clients write, and its restore into an empty directory: `kubebrain backup` beside etcdctl and etcdutl.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::server::{Program, Server};
use tokio::process::Command;
use tokio::time::Instant;
use wire::etcdserverpb as pb;

use crate::disk::{self, ServerDir};
use crate::grpc::{Connection, Connections, PUT, WindowSizes};
use crate::histogram::LatencyHistogram;
use crate::load_plan::{QUOTA_FLAG, say_latencies};
use crate::open_loop::{self, RequestSchedule};
use crate::report::{Report, Unit};
use crate::requests;
use crate::size::{fill, footprint, put_of};

const CONNECTIONS: usize = 8;
/// Puts a second, of keys that exist.
const PUTS_PER_SECOND: f64 = 2_000.0;
/// The time of the puts without a backup, and of a part of those beside one.
const PUTS_TIME: Duration = Duration::from_secs(20);
const PART_TIME: Duration = Duration::from_secs(2);
const MIB: f64 = 1024.0 * 1024.0;
/// The name that etcd's program has in all its versions.
const ETCD: &str = "etcd";

/// One round on one server.
pub(crate) async fn measure(
    program: &Program,
    place: &ServerDir,
    keys: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut round = BackupRound {
        program,
        place,
        keys,
        report,
    };
    let server = Server::start_in(program, &place.data(), &[QUOTA_FLAG])?;
    fill(&server, keys).await?;
    let connections = Connections::open(&server, CONNECTIONS, WindowSizes::Large).await?;
    let alone = round.puts(&connections, PUTS_TIME).await?;
    round.say_latencies("puts at 2,000/s", &alone);
    let before = footprint::forget_peak(&server)?;
    let (took, beside) = round.backup(&server, &connections).await?;
    let more = server.usage()?.peak_rss.saturating_sub(before) as f64 / MIB;
    round.say("backup while they continue", Unit::Seconds, took.as_secs_f64());
    round.say_latencies("puts at 2,000/s beside the backup", &beside);
    let part = beside.percentile(0.99).as_secs_f64() / alone.percentile(0.99).as_secs_f64();
    round.say("p99 beside the backup, of that without", Unit::Percent, part * 100.0);
    round.say("peak RSS of the server above that before", Unit::Mib, more);
    let stored = disk::occupied(&place.file("backup"))? as f64 / MIB;
    round.say("stored", Unit::Mib, stored);
    server.stop()?;
    let took = round.restore().await?;
    round.say("restored and compared", Unit::Seconds, took.as_secs_f64());
    Ok(())
}

struct BackupRound<'a> {
    program: &'a Program,
    place: &'a ServerDir,
    keys: u64,
    report: &'a mut Report,
}

impl BackupRound<'_> {
    fn say(&mut self, name: &str, unit: Unit, value: f64) {
        let name = format!("{} keys: {name}", self.keys);
        self.report.say(&name, unit, self.program.name, value);
    }

    fn say_latencies(&mut self, name: &str, times: &LatencyHistogram) {
        let name = format!("{} keys: {name}", self.keys);
        say_latencies(&name, times, self.program.name, self.report);
    }

    async fn puts(&self, connections: &Connections, time: Duration) -> anyhow::Result<LatencyHistogram> {
        let call = |n: u64| put(connections.get(n).clone(), n % self.keys);
        let mut times = LatencyHistogram::default();
        for millis in open_loop::run(RequestSchedule::new(PUTS_PER_SECOND, time), call).await? {
            times.record(Duration::from_secs_f64(millis / 1_000.0));
        }
        Ok(times)
    }

    fn is_etcd(&self) -> bool {
        self.program.name == ETCD
    }

    /// Makes one while the puts continue. Returns how long it took, and the times of the puts.
    async fn backup(&self, server: &Server, connections: &Connections) -> anyhow::Result<(Duration, LatencyHistogram)> {
        let directory = self.place.file("backup");
        std::fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
        let mut command = if self.is_etcd() {
            let mut command = Command::new(self.program.path.with_file_name("etcdctl"));
            command.args(["snapshot", "save"]).arg(directory.join("snapshot"));
            command
        } else {
            let mut command = Command::new(&self.program.path);
            command.args(["backup", "create", "--log-level=error"]);
            command.arg(format!("--destination=file://{}", directory.display()));
            command
        };
        command.arg(format!("--endpoints={}", server.endpoint()));
        let began = Instant::now();
        let making = async {
            let done = command.kill_on_drop(true).output().await.context("start the backup")?;
            succeeded(&done)?;
            anyhow::Ok(began.elapsed())
        };
        let mut making = std::pin::pin!(making);
        let (mut took, mut times) = (None, LatencyHistogram::default());
        while took.is_none() {
            let mut part = std::pin::pin!(self.puts(connections, PART_TIME));
            let done = loop {
                tokio::select! {
                    made = &mut making, if took.is_none() => took = Some(made?),
                    done = &mut part => break done?,
                }
            };
            times.merge(&done);
        }
        Ok((took.context("the backup did not end")?, times))
    }

    /// Restores it into an empty directory.
    async fn restore(&self) -> anyhow::Result<Duration> {
        let (from, to) = (self.place.file("backup"), self.place.file("restored"));
        let mut command = if self.is_etcd() {
            let mut command = Command::new(self.program.path.with_file_name("etcdutl"));
            command.args(["snapshot", "restore"]).arg(from.join("snapshot"));
            command
        } else {
            let mut command = Command::new(&self.program.path);
            command.args(["backup", "restore", "latest", "--log-level=error"]);
            command.arg(format!("--destination=file://{}", from.display()));
            command
        };
        command.arg("--data-dir").arg(&to);
        let began = Instant::now();
        succeeded(&command.output().await.context("start the restore")?)?;
        let took = began.elapsed();
        ensure!(Path::new(&to).is_dir(), "nothing was restored");
        Ok(took)
    }
}

fn succeeded(done: &std::process::Output) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{}: {said}", done.status);
    Ok(())
}

async fn put(connection: Connection, n: u64) -> anyhow::Result<()> {
    connection
        .call::<pb::PutResponse>(PUT, requests::body(&put_of(n))?)
        .await?;
    Ok(())
}
