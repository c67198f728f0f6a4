//! Updates at a rate that does not depend on the server: 80 % of etcd's peak.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use e2e::server::Server;
use e2e::wire::etcdserverpb as pb;
use tokio::time::Instant;

use super::grpc::{Connection, Connections, PUT, TXN, Windows};
use super::open_loop::{self, Schedule};
use super::{CONNECTIONS, IN_FLIGHT, closed_loop, say_percentiles};
use crate::bench::report::{Report, Unit};
use crate::bench::{requests, updates};

/// Of etcd's peak.
pub(super) const PART: f64 = 0.8;
const TIME: Duration = Duration::from_secs(10);
/// Updates before the peak is measured.
const WARM_UP: u64 = 10_000;

/// Updates a second with 256 in flight: the peak, by the same generator.
pub(super) async fn peak(server: &Server, count: u64) -> anyhow::Result<f64> {
    let connections = open(server).await?;
    let body = requests::body(&requests::update())?;
    let call = |connection, _| update(connection, body.clone());
    closed_loop::run(&connections, IN_FLIGHT, WARM_UP, call).await?;
    let took = closed_loop::run(&connections, IN_FLIGHT, count, call).await?;
    Ok(count as f64 / took.as_secs_f64())
}

/// Latencies at this rate.
pub(super) async fn measure(server: &Server, rate: f64, report: &mut Report) -> anyhow::Result<()> {
    let connections = open(server).await?;
    let body = requests::body(&requests::update())?;
    let warm_up = |connection, _| update(connection, body.clone());
    closed_loop::run(&connections, IN_FLIGHT, WARM_UP, warm_up).await?;
    let (before, cpu) = (connections.get(0).revision().await?, server.usage()?.cpu);
    let schedule = Schedule::new(rate, TIME);
    let began = Instant::now();
    let call = |n| update(connections.get(n).clone(), body.clone());
    let times = open_loop::run(schedule, call).await?;
    let (took, spent) = (began.elapsed().as_secs_f64(), server.usage()?.cpu - cpu);
    let made = connections.get(0).revision().await? - before;
    ensure!(
        u64::try_from(made) == Ok(schedule.count()),
        "{} updates made {made} revisions",
        schedule.count()
    );
    let name = "updates at 80 % of etcd's peak";
    let reached = schedule.count() as f64 / took;
    report.say(name, Unit::PerSecond, server.name(), reached);
    say_percentiles(name, &times, server.name(), report);
    let each = updates::each(spent, schedule.count());
    report.say(&format!("{name}: server CPU"), Unit::MicrosEach, server.name(), each);
    Ok(())
}

/// With the key of the updates in place.
async fn open(server: &Server) -> anyhow::Result<Connections> {
    let connections = Connections::open(server, CONNECTIONS, Windows::Large).await?;
    let put = requests::body(&requests::put())?;
    connections.get(0).call::<pb::PutResponse>(PUT, put).await?;
    Ok(connections)
}

async fn update(connection: Connection, body: Bytes) -> anyhow::Result<()> {
    let answer: pb::TxnResponse = connection.call(TXN, body).await?;
    ensure!(answer.succeeded, "the key of the updates is not there");
    Ok(())
}
