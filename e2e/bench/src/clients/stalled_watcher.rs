//! A watcher that stops reading while others read on.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use programs::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::etcdserverpb as pb;

use super::arrivals::{self, Arrivals};
use super::say_percentiles;
use crate::grpc::{Connection, Connections, PUT, WindowSizes};
use crate::open_loop::{self, RequestSchedule};
use crate::report::{Report, Unit};
use crate::requests;
use crate::watch_stream::{self, WatchStream};

const PREFIX: &[u8] = b"/registry/stalled/";
const PREFIX_END: &[u8] = b"/registry/stalled0";
const KEYS: u64 = 1_000;
/// Watchers that read.
const READERS: u8 = 10;
/// Puts a second: 1 MB/s of events to each watcher, far more than windows and sockets hold.
const PUTS_PER_SECOND: f64 = 2_000.0;
const MEASURED_TIME: Duration = Duration::from_secs(5);
/// Time for what was held back.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0 * 1024.0;

/// The same load without and with such a watcher, which must get everything when it reads again.
pub(super) async fn measure(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, 1 + usize::from(READERS), WindowSizes::Large).await?;
    let (sender, mut events) = arrivals::channel();
    let mut watchers = JoinSet::new();
    for n in 1..=u64::from(READERS) {
        let stream = watch(connections.get(n)).await?;
        watchers.spawn(arrivals::follow(stream, sender.clone(), |_, key| {
            key.starts_with(PREFIX)
        }));
    }
    let measuring = async {
        let writer = connections.get(0);
        // the first load only fills the store, so that both that count find the same
        run(writer, &mut events).await?;
        let rss = server.usage()?.rss;
        let all_read = run(writer, &mut events).await?;
        let grown = server.usage()?.rss as f64 - rss as f64;
        report.say("all watchers read: RSS more", Unit::Mib, server.name(), grown / MIB);
        all_read.say("all watchers read", server, report);

        let other = Connections::open(server, 1, WindowSizes::Default).await?;
        let stalled = watch(other.get(0)).await?;
        let rss = server.usage()?.rss;
        let one_stalled = run(writer, &mut events).await?;
        let grown = server.usage()?.rss as f64 - rss as f64;
        report.say("one watcher stalled: RSS more", Unit::Mib, server.name(), grown / MIB);
        one_stalled.say("one watcher stalled", server, report);
        let rest = timeout(CATCH_UP_TIMEOUT, catch_up(stalled, one_stalled.puts.len() as u64)).await;
        rest.context("the stalled watcher did not catch up")?
    };
    watch_stream::while_watching(measuring, &mut watchers).await
}

/// Milliseconds from the time when a put was due.
struct ReaderLatencies {
    puts: Vec<f64>,
    events: Vec<f64>,
}

impl ReaderLatencies {
    fn say(&self, when: &str, server: &Server, report: &mut Report) {
        say_percentiles(&format!("{when}: put"), &self.puts, server.name(), report);
        say_percentiles(&format!("{when}: put to event"), &self.events, server.name(), report);
    }
}

async fn watch(connection: &Connection) -> anyhow::Result<WatchStream> {
    let range = (Bytes::from_static(PREFIX), Bytes::from_static(PREFIX_END));
    WatchStream::open(connection, [range]).await
}

async fn run(writer: &Connection, events: &mut Arrivals) -> anyhow::Result<ReaderLatencies> {
    let schedule = RequestSchedule::new(PUTS_PER_SECOND, MEASURED_TIME);
    let puts = open_loop::run(schedule, |n| put(writer.clone(), n));
    let (puts, events) = tokio::try_join!(puts, events.latencies(schedule, READERS))?;
    Ok(ReaderLatencies { puts, events })
}

async fn put(connection: Connection, n: u64) -> anyhow::Result<()> {
    let put = pb::PutRequest {
        key: [PREFIX, format!("{:06}", n % KEYS).as_bytes()].concat().into(),
        value: arrivals::value(n),
        ..pb::PutRequest::default()
    };
    connection.call::<pb::PutResponse>(PUT, requests::body(&put)?).await?;
    Ok(())
}

/// Reads `count` events, which must come in the order of revisions without a gap.
async fn catch_up(mut stream: WatchStream, count: u64) -> anyhow::Result<()> {
    let (mut received, mut last) = (0, None);
    while received < count {
        for event in stream.next().await?.events {
            let revision = event.kv.context("an event without a key")?.mod_revision;
            let expected = last.map_or(revision, |last: i64| last + 1);
            ensure!(revision == expected, "an event of revision {revision}, not {expected}");
            last = Some(revision);
            received += 1;
        }
    }
    ensure!(received == count, "{received} events of {count} puts");
    Ok(())
}
