//! Many watches of keys that are not written: the server memory that each watch takes.

use anyhow::ensure;
use bytes::Bytes;
use futures::future::try_join_all;
use programs::server::Server;
use tokio::task::JoinSet;
use wire::etcdserverpb as pb;

use super::arrivals;
use crate::grpc::{Connections, PUT, WindowSizes};
use crate::report::{Report, Unit};
use crate::requests;
use crate::watch_stream::{self, WatchStream};

const CONNECTIONS: usize = 10;
/// Over all connections.
pub(super) const STREAMS: u64 = 100;

/// Opens this many watches, rounded up to the same number on each stream. In the end, one watch of each stream must receive an event.
pub(super) async fn measure(server: &Server, watches: u64, report: &mut Report) -> anyhow::Result<()> {
    let per_stream = watches.div_ceil(STREAMS);
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    connections.get(0).revision().await?;
    let before = server.usage()?.rss;
    let streams = (0..STREAMS).map(|stream| {
        let ranges = (0..per_stream).map(move |n| (key(stream, n), Bytes::new()));
        WatchStream::open(connections.get(stream), ranges)
    });
    let streams = try_join_all(streams).await?;
    let more = server.usage()?.rss.saturating_sub(before);
    let name = format!("{watches} idle watches: RSS");
    let each = more as f64 / (per_stream * STREAMS) as f64;
    report.say(&name, Unit::BytesEach, server.name(), each);

    let (sender, mut events) = arrivals::channel();
    let mut watchers = JoinSet::new();
    for (n, stream) in streams.into_iter().enumerate() {
        let last = key(n as u64, per_stream - 1);
        let is_last = move |id: i64, found: &[u8]| id as u64 == per_stream && found == last;
        watchers.spawn(arrivals::follow(stream, sender.clone(), is_last));
    }
    let proof = async {
        for stream in 0..STREAMS {
            let put = pb::PutRequest {
                key: key(stream, per_stream - 1),
                value: arrivals::value(stream),
                ..pb::PutRequest::default()
            };
            let body = requests::body(&put)?;
            connections.get(0).call::<pb::PutResponse>(PUT, body).await?;
            let number = events.next().await?.number;
            ensure!(number == stream, "the event of put {number} after put {stream}");
        }
        anyhow::Ok(())
    };
    watch_stream::while_watching(proof, &mut watchers).await
}

fn key(stream: u64, n: u64) -> Bytes {
    format!("/registry/idle/{stream:03}/{n:06}").into()
}
