//! Updates over many connections, beside the peak of the same server over few.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use programs::server::Server;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};
use wire::etcdserverpb as pb;

use crate::disk::ServerDir;
use crate::grpc::{Connection, Connections, PUT, WindowSizes};
use crate::load::RequestLoad;
use crate::report::{Report, Unit};
use crate::{requests, updates};

/// Files that a server keeps for other things than connections: a brain 1,024, etcd 150.
const OTHER_FILES: u64 = 1_200;
/// A brain gives one address half of its connections.
const CONNECTION_FILES_FACTOR: u64 = 2;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which updates run before counting begins, and time of the count.
const WARM_UP_TIME: Duration = Duration::from_secs(1);
const MEASURED_TIME: Duration = Duration::from_secs(5);

/// As many as the limit of open files permits, which is raised if possible: servers that start later inherit it.
pub(super) fn possible(most: u64) -> u64 {
    let (old, wanted) = (
        getrlimit(Resource::Nofile),
        most * CONNECTION_FILES_FACTOR + OTHER_FILES,
    );
    if old.current.is_some_and(|files| files < wanted) {
        let raised = |maximum: Option<u64>| Rlimit {
            current: maximum.map(|maximum| maximum.min(wanted)),
            maximum,
        };
        let beyond = raised(old.maximum.map(|maximum| maximum.max(wanted)));
        // what neither allows is fewer connections, as the name of the row says
        if setrlimit(Resource::Nofile, beyond).is_err() {
            setrlimit(Resource::Nofile, raised(old.maximum)).ok();
        }
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    most.min(files.saturating_sub(OTHER_FILES) / CONNECTION_FILES_FACTOR)
}

/// Measures `clients` connections with one request in flight on each, and before that 16 connections with 64 on each.
pub(super) async fn measure(
    server: &Server,
    place: &ServerDir,
    clients: u32,
    report: &mut Report,
) -> anyhow::Result<()> {
    let connections = Connections::open(server, 1, WindowSizes::Large).await?;
    let client = connections.get(0);
    let put = requests::body(&requests::put())?;
    client.call::<pb::PutResponse>(PUT, put).await?;
    let body = place.file("update");
    requests::write(&requests::update(), &body)?;
    let idle = sockets(server)?;
    let mut rates = Vec::new();
    for (clients, streams) in [(16, 64), (clients, 1)] {
        let load = RequestLoad {
            clients,
            streams,
            requests: u64::from(u32::MAX), // it is ended before
        };
        let mut generator = load.start(server, "etcdserverpb.KV/Txn", &body)?;
        let counted = count(server, client, &mut generator, idle + u64::from(clients)).await;
        generator.kill().await.context("end h2load")?;
        let (rate, cpu) = counted.with_context(|| format!("updates over {clients} connections"))?;
        let name = format!("updates, {clients} connections with {streams} in flight each");
        report.say(&name, Unit::PerSecond, server.name(), rate);
        report.say(&format!("{name}: server CPU"), Unit::MicrosEach, server.name(), cpu);
        rates.push(rate);
    }
    let name = format!("updates, {clients} connections / 16");
    report.say(&name, Unit::Share, server.name(), rates[1] / rates[0]);
    Ok(())
}

/// Waits until `connected` sockets are open, then measures. Returns revisions a second, each from a successful update, and microseconds
/// of the server's CPU for each.
async fn count(
    server: &Server,
    client: &Connection,
    generator: &mut Child,
    connected: u64,
) -> anyhow::Result<(f64, f64)> {
    let all = async {
        while sockets(server)? < connected {
            sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    if let Ok(connected) = timeout(CONNECT_TIMEOUT, all).await {
        connected?;
    } else {
        bail!(
            "{} of {connected} sockets are open after {CONNECT_TIMEOUT:?}",
            sockets(server)?
        );
    }
    sleep(WARM_UP_TIME).await;
    let (before, began, cpu) = (client.revision().await?, Instant::now(), server.usage()?.cpu);
    sleep(MEASURED_TIME).await; // the passing of time is what is measured
    let (after, took, spent) = (client.revision().await?, began.elapsed(), server.usage()?.cpu - cpu);
    let sockets = sockets(server)?;
    ensure!(sockets >= connected, "{sockets} of {connected} sockets are open still");
    if let Some(status) = generator.try_wait()? {
        bail!("h2load exited unexpectedly: {status}");
    }
    let made = u64::try_from(after - before)?;
    ensure!(made > 0, "no update succeeded");
    Ok((made as f64 / took.as_secs_f64(), updates::each(spent, made)))
}

/// Sockets that the server has open.
fn sockets(server: &Server) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/fd", server.pid());
    let mut sockets = 0;
    for entry in std::fs::read_dir(&path).with_context(|| format!("read {path}"))? {
        // a file that was closed since it was listed has no link
        let link = std::fs::read_link(entry?.path());
        sockets += u64::from(link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:")));
    }
    Ok(sockets)
}
