//! Many watchers of one prefix, and writers that keep them busy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use programs::server::Server;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use wire::etcdserverpb as pb;

use crate::grpc::{Connection, Connections, PUT, WindowSizes};
use crate::report::{Report, Unit};
use crate::watch_stream::{self, WatchStream};
use crate::{closed_loop, requests, updates};

const PREFIX: &[u8] = b"/registry/events/";
const PREFIX_END: &[u8] = b"/registry/events0";
const VALUE_BYTES: usize = 512;
const CONNECTIONS: usize = 10;
/// Over all connections.
const STREAMS: u64 = 100;
const WATCHES_PER_STREAM: u32 = 10;
const WATCHERS: u32 = STREAMS as u32 * WATCHES_PER_STREAM;
const WRITERS: u64 = 16;
/// Puts whose events have not all been received: writers wait before there are more.
const MAX_PUTS_AHEAD: u32 = 64;
const MEASURED_TIME: Duration = Duration::from_secs(5);
/// Time for events of the last puts.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Events a second that 1,000 watchers receive, and their cost.
pub(super) async fn measure(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    // a permit for each event that may be in flight
    let room = Arc::new(Semaphore::new((MAX_PUTS_AHEAD * WATCHERS) as usize));
    let stop = CancellationToken::new();
    let mut watchers = JoinSet::new();
    for n in 0..STREAMS {
        let ranges = (0..WATCHES_PER_STREAM).map(|_| (Bytes::from_static(PREFIX), Bytes::from_static(PREFIX_END)));
        let stream = WatchStream::open(connections.get(n), ranges).await?;
        watchers.spawn(count(stream, room.clone(), stop.clone()));
    }
    let writer = Connections::open(server, 1, WindowSizes::Large).await?;
    let (began, cpu) = (Instant::now(), server.usage()?.cpu);
    let put = |connection: Connection, n| {
        let room = &room;
        async move {
            room.acquire_many(WATCHERS).await?.forget();
            let body = requests::body(&put(n))?;
            connection.call::<pb::PutResponse>(PUT, body).await?;
            Ok(())
        }
    };
    let mut puts = 0;
    let writing = async {
        // a batch keeps writers busy and ends in time
        while began.elapsed() < MEASURED_TIME {
            closed_loop::run(&writer, WRITERS, WRITERS, &put).await?;
            puts += WRITERS;
        }
        let all = room.acquire_many(MAX_PUTS_AHEAD * WATCHERS);
        drop(
            timeout(DRAIN_TIMEOUT, all)
                .await
                .context("not all events were received")??,
        );
        anyhow::Ok(())
    };
    watch_stream::while_watching(writing, &mut watchers).await?;
    let (took, spent) = (began.elapsed().as_secs_f64(), server.usage()?.cpu - cpu);
    stop.cancel();
    while let Some(counts) = watchers.join_next().await {
        let counts = counts??;
        let all = counts.len() == WATCHES_PER_STREAM as usize && counts.values().all(|count| *count == puts);
        ensure!(all, "watchers received {counts:?} events of {puts}");
    }
    let events = puts * u64::from(WATCHERS);
    let name = "events to 1,000 watchers of one prefix";
    report.say(name, Unit::PerSecond, server.name(), events as f64 / took);
    let each = updates::each(spent, events);
    report.say(&format!("{name}: server CPU"), Unit::MicrosEach, server.name(), each);
    Ok(())
}

fn put(n: u64) -> pb::PutRequest {
    pb::PutRequest {
        key: [PREFIX, format!("{n:06}").as_bytes()].concat().into(),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    }
}

/// Events of each watch, which come in the order of revisions.
async fn count(
    mut stream: WatchStream,
    room: Arc<Semaphore>,
    stop: CancellationToken,
) -> anyhow::Result<BTreeMap<i64, u64>> {
    let mut received = BTreeMap::<i64, (u64, i64)>::new();
    loop {
        let response = tokio::select! {
            () = stop.cancelled() => break,
            response = stream.next() => response?,
        };
        let (count, last) = received.entry(response.watch_id).or_default();
        for event in &response.events {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            ensure!(revision > *last, "an event of revision {revision} after {last}");
            (*count, *last) = (*count + 1, revision);
        }
        room.add_permits(response.events.len());
    }
    Ok(received.into_iter().map(|(id, (count, _))| (id, count)).collect())
}
