//! Update transactions, and a server that has nothing to do.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use pb::kv_client::KvClient;
use programs::server::{Program, Server};
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::disk::ServerDir;
use crate::load::RequestLoad;
use crate::report::{Report, Unit};
use crate::watcher::KeyWatcher;
use crate::{reads, requests};

/// Connections, and streams on each.
const CONNECTIONS_AND_STREAMS: [(u32, u32); 2] = [(8, 32), (16, 64)];
const MIB: f64 = 1024.0 * 1024.0;

/// One round on one server: updates with few and many in flight, then reads.
pub(crate) async fn measure(
    program: &Program,
    place: &ServerDir,
    count: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let server = Server::start_in(program, &place.data(), &[])?;
    let mut kv = KvClient::new(server.connect().await?).max_decoding_message_size(usize::MAX);
    kv.put(requests::put()).await?;
    for (clients, streams) in CONNECTIONS_AND_STREAMS {
        let load = RequestLoad {
            clients,
            streams,
            requests: count,
        };
        update(&server, &mut kv, place, load, report).await?;
    }
    let peak = server.usage()?.peak_rss as f64 / MIB;
    report.add("updates: peak RSS", Unit::Mib, program.name, peak);
    reads::measure(&server, &mut kv, place, count, report).await?;
    server.stop()
}

async fn update(
    server: &Server,
    kv: &mut KvClient<Channel>,
    place: &ServerDir,
    load: RequestLoad,
    report: &mut Report,
) -> anyhow::Result<()> {
    let body = place.file("update");
    requests::write(&requests::update(), &body)?;
    let watcher = KeyWatcher::start(server, requests::HOT_KEY).await?;
    let (before, cpu) = (revision(kv).await?, server.usage()?.cpu);
    let outcome = load.run(server, "etcdserverpb.KV/Txn", &body)?;
    let (after, spent) = (revision(kv).await?, server.usage()?.cpu - cpu);
    // each that succeeded made a revision, so none had another status than 0
    let made = after - before;
    ensure!(
        u64::try_from(made) == Ok(load.requests),
        "{} updates made {made} revisions",
        load.requests
    );
    let events = watcher.finish(after)?;
    ensure!(
        events == load.requests,
        "the watcher received {events} events of {} updates",
        load.requests
    );
    let name = format!("updates, {} in flight", load.in_flight());
    report.add(&name, Unit::PerSecond, server.name(), outcome.rate);
    report.add(
        &format!("{name}: server CPU"),
        Unit::MicrosEach,
        server.name(),
        each(spent, load.requests),
    );
    Ok(())
}

/// Measures the cost of a brain without requests.
pub(crate) async fn idle(
    program: &Program,
    place: &ServerDir,
    seconds: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let server = Server::start_in(program, &place.data(), &[])?;
    let mut kv = KvClient::new(server.connect().await?);
    kv.put(requests::put()).await?;
    let before = server.usage()?.cpu;
    let time = Duration::from_secs(seconds);
    tokio::time::sleep(time).await; // the passing of time is what is measured
    let usage = server.usage()?;
    let percent = (usage.cpu - before).as_secs_f64() / time.as_secs_f64() * 100.0;
    report.add("idle: CPU of one core", Unit::Percent, program.name, percent);
    report.add("idle: RSS", Unit::Mib, program.name, usage.rss as f64 / MIB);
    server.stop()
}

/// The store's revision.
pub(crate) async fn revision(kv: &mut KvClient<Channel>) -> anyhow::Result<i64> {
    let absent = pb::RangeRequest {
        key: Bytes::from_static(b"-"),
        ..pb::RangeRequest::default()
    };
    let header = kv.range(absent).await?.into_inner().header;
    Ok(header.map_or(0, |header| header.revision))
}

/// Microseconds of each.
pub(crate) fn each(spent: Duration, count: u64) -> f64 {
    spent.as_secs_f64() * 1e6 / count as f64
}
