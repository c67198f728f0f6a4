//! The time from a put to its event, at the leader and at a follower.

use std::time::Duration;

use anyhow::Context as _;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::server::Server;
use testkit::goal::Goal;
use tokio::time::{Instant, interval};
use tonic::Streaming;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::BrainsOnTikv;
use crate::requests;

const PUTS: usize = 2_000;
/// Between two puts.
const PUT_INTERVAL: Duration = Duration::from_millis(5);

pub(super) async fn measure(cluster: &BrainsOnTikv) -> anyhow::Result<Vec<String>> {
    let kv = cluster.kv().await?;
    let at_leader = watch(cluster.leader()?).await?;
    let at_follower = watch(cluster.follower()?).await?;
    let (puts, at_leader, at_follower) = tokio::try_join!(put(kv), seen(at_leader), seen(at_follower))?;
    let mut lines = Vec::new();
    let mut worst = Vec::new();
    for (what, seen) in [("leader", at_leader), ("follower", at_follower)] {
        let mut took: Vec<Duration> = seen.iter().zip(&puts).map(|(seen, put)| *seen - *put).collect();
        took.sort();
        let millis = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        let (median, p99) = (millis(0.5), millis(0.99));
        lines.push(format!(
            "{p99:>12.2} ms         put to event at the {what}, p99 (median {median:.2})"
        ));
        worst.push(p99);
    }
    let ratio = worst[1] / worst[0];
    lines.push(format!(
        "{ratio:>12.2} x          the follower's p99 of the leader's {}",
        Goal::AtMost(2.0).beside(ratio)
    ));
    Ok(lines)
}

/// Puts at an even pace, and when each was sent.
async fn put(mut kv: KvClient<Channel>) -> anyhow::Result<Vec<Instant>> {
    let mut puts = Vec::with_capacity(PUTS);
    let mut pace = interval(PUT_INTERVAL);
    for _ in 0..PUTS {
        pace.tick().await;
        puts.push(Instant::now());
        kv.put(requests::put()).await?;
    }
    Ok(puts)
}

async fn watch(server: &Server) -> anyhow::Result<Streaming<pb::WatchResponse>> {
    let create = pb::WatchCreateRequest {
        key: requests::HOT_KEY.into(),
        ..pb::WatchCreateRequest::default()
    };
    let request = pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    let requests = futures::StreamExt::chain(tokio_stream::once(request), tokio_stream::pending());
    let mut client = WatchClient::new(server.connect().await?);
    let mut stream = client.watch(requests).await?.into_inner();
    let created = stream.message().await?.context("the watch ended")?.created;
    anyhow::ensure!(created, "the watch was not created");
    Ok(stream)
}

/// When each event came.
async fn seen(mut stream: Streaming<pb::WatchResponse>) -> anyhow::Result<Vec<Instant>> {
    let mut seen = Vec::with_capacity(PUTS);
    while seen.len() < PUTS {
        let message = stream.message().await?.context("the watch ended")?;
        seen.extend(message.events.iter().map(|_| Instant::now()));
    }
    Ok(seen)
}
