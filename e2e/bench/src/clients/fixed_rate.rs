//! Updates at a rate that does not depend on the server: 80 % of etcd's peak.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use programs::server::Server;
use tokio::time::{Instant, sleep};
use wire::etcdserverpb as pb;

use super::{CONNECTIONS, IN_FLIGHT, say_percentiles};
use crate::grpc::{Connection, Connections, PUT, TXN, WindowSizes};
use crate::open_loop::{self, RequestSchedule};
use crate::report::{Report, Unit};
use crate::{closed_loop, requests, updates};

/// Of etcd's peak.
pub(super) const PEAK_FRACTION: f64 = 0.8;
const MEASURED_TIME: Duration = Duration::from_secs(10);
/// etcd's text when more than 5,000 requests are logged and not yet applied, and the time until the next attempt then.
const TOO_MANY: &str = "etcdserver: too many requests";
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// Updates before the peak is measured.
const WARM_UP_UPDATES: u64 = 10_000;

/// Updates a second with 256 in flight: the peak, by the same generator.
pub(super) async fn peak(server: &Server, count: u64) -> anyhow::Result<f64> {
    let connections = open(server).await?;
    let body = requests::body(&requests::update())?;
    let call = |connection, _| update(connection, body.clone());
    closed_loop::run(&connections, IN_FLIGHT, WARM_UP_UPDATES, call).await?;
    let took = closed_loop::run(&connections, IN_FLIGHT, count, call).await?;
    Ok(count as f64 / took.as_secs_f64())
}

/// Latencies at this rate.
pub(super) async fn measure(server: &Server, rate: f64, report: &mut Report) -> anyhow::Result<()> {
    let connections = open(server).await?;
    let body = requests::body(&requests::update())?;
    let warm_up = |connection, _| update(connection, body.clone());
    closed_loop::run(&connections, IN_FLIGHT, WARM_UP_UPDATES, warm_up).await?;
    let (before, cpu) = (connections.get(0).revision().await?, server.usage()?.cpu);
    let schedule = RequestSchedule::new(rate, MEASURED_TIME);
    let began = Instant::now();
    let refused = Arc::new(AtomicU64::new(0));
    let call = |n| insist(connections.get(n).clone(), body.clone(), Arc::clone(&refused));
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
    let refused = refused.load(Ordering::Relaxed) as f64 / schedule.count() as f64 * 100.0;
    report.say(
        &format!("{name}: refused once or more"),
        Unit::Percent,
        server.name(),
        refused,
    );
    Ok(())
}

/// With the key of the updates in place.
async fn open(server: &Server) -> anyhow::Result<Connections> {
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    let put = requests::body(&requests::put())?;
    connections.get(0).call::<pb::PutResponse>(PUT, put).await?;
    Ok(connections)
}

/// As [`update`], but again while the server refuses it because too many wait, as etcd does when it falls behind.
async fn insist(connection: Connection, body: Bytes, refused: Arc<AtomicU64>) -> anyhow::Result<()> {
    let mut is_first = true;
    loop {
        match update(connection.clone(), body.clone()).await {
            Err(error) if format!("{error:#}").contains(TOO_MANY) => {
                refused.fetch_add(u64::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
                sleep(RETRY_DELAY).await;
            }
            done => return done,
        }
    }
}

async fn update(connection: Connection, body: Bytes) -> anyhow::Result<()> {
    let answer: pb::TxnResponse = connection.call(TXN, body).await?;
    ensure!(answer.succeeded, "the key of the updates does not exist");
    Ok(())
}
