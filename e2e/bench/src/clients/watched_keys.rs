//! Many keys, each with a watcher of its own: how long after a put its event comes.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use programs::server::Server;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wire::etcdserverpb as pb;

use super::{arrivals, say_percentiles};
use crate::grpc::{Connection, Connections, PUT, WindowSizes};
use crate::open_loop::{self, RequestSchedule};
use crate::report::Report;
use crate::requests;
use crate::watch_stream::{self, WatchStream};

const CONNECTIONS: usize = 10;
/// Over all connections.
const STREAMS: u64 = 100;
const KEYS_PER_STREAM: u64 = 100;
const KEYS: u64 = STREAMS * KEYS_PER_STREAM;
/// Puts one after the other.
const SINGLE_PUTS: u64 = 2_000;
/// Puts a second under a steady load.
const PUTS_PER_SECOND: f64 = 1_000.0;
const MEASURED_TIME: Duration = Duration::from_secs(5);

/// 10,000 watchers of 10,000 keys: one put at a time, then a steady rate of them.
pub(super) async fn measure(server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    let (sender, mut events) = arrivals::channel();
    let mut watchers = JoinSet::new();
    for n in 0..STREAMS {
        let ranges = (0..KEYS_PER_STREAM).map(|of_stream| (key(n * KEYS_PER_STREAM + of_stream), Bytes::new()));
        let stream = WatchStream::open(connections.get(n), ranges).await?;
        let first = n * KEYS_PER_STREAM;
        let is_of_its_key = move |id: i64, found: &[u8]| found == key(first + id as u64 - 1);
        watchers.spawn(arrivals::follow(stream, sender.clone(), is_of_its_key));
    }
    let writer = Connections::open(server, 1, WindowSizes::Large).await?;
    let measuring = async {
        let mut times = Vec::new();
        for n in 0..SINGLE_PUTS {
            let began = Instant::now();
            put(writer.get(0).clone(), n).await?;
            let arrival = events.next().await?;
            ensure!(arrival.number == n, "the event of put {} after put {n}", arrival.number);
            times.push(arrival.at.duration_since(began).as_secs_f64() * 1_000.0);
        }
        let name = "10,000 watched keys, one put at a time: put to event";
        say_percentiles(name, &times, server.name(), report);
        let schedule = RequestSchedule::new(PUTS_PER_SECOND, MEASURED_TIME);
        let puts = open_loop::run(schedule, |n| put(writer.get(0).clone(), n));
        let (_, times) = tokio::try_join!(puts, events.latencies(schedule, 1))?;
        let name = "10,000 watched keys, 1,000 puts/s: put to event";
        say_percentiles(name, &times, server.name(), report);
        anyhow::Ok(())
    };
    watch_stream::while_watching(measuring, &mut watchers).await
}

fn key(n: u64) -> Bytes {
    format!("/registry/watched/{n:06}").into()
}

/// Keys in an order that looks random, each as often as any other.
fn key_of_put(n: u64) -> u64 {
    n.wrapping_mul(982_451_653) % KEYS
}

async fn put(connection: Connection, n: u64) -> anyhow::Result<()> {
    let put = pb::PutRequest {
        key: key(key_of_put(n)),
        value: arrivals::value(n),
        ..pb::PutRequest::default()
    };
    connection.call::<pb::PutResponse>(PUT, requests::body(&put)?).await?;
    Ok(())
}
