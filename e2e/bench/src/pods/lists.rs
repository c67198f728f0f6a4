//! Lists of pods: in pages, as kube-apiserver answers clients from the store, and in one stream where the server has it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use pb::kv_client::KvClient;
use programs::server::Server;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;
use wire::mvccpb::KeyValue;

use crate::objects::pods::PREFIX;
use crate::pod_fleet::{PodFleet, StoredPod};
use crate::requests;

/// Pods of a list, if there are that many.
const LISTED_PODS: usize = 10_000;
const PAGE_PODS: i64 = 500;
/// A list is repeated until it has taken this long: one of a thousand pods takes a few hundredths of a second.
const MIN_DURATION: Duration = Duration::from_secs(2);

/// Says the rates of pods.
pub(super) async fn measure(server: &Server, fleet: &PodFleet, mut say: impl FnMut(&str, f64)) -> anyhow::Result<()> {
    let mut kv = client(server).await?;
    let mut expected = fleet.stored();
    expected.truncate(LISTED_PODS);
    let name = format!("list of {} in pages of {PAGE_PODS}", expected.len());
    let began = Instant::now();
    let listed = pages(&mut kv, expected.len()).await?;
    let took = began.elapsed();
    check(fleet, &expected, &listed)?;
    say(&format!("{name}, after a restart"), rate(listed.len(), took));

    let (mut pods, mut took) = (0, Duration::ZERO);
    while took < MIN_DURATION {
        let began = Instant::now();
        let listed = pages(&mut kv, expected.len()).await?;
        took += began.elapsed();
        pods += listed.len();
        check(fleet, &expected, &listed)?;
    }
    say(&format!("{name}, again"), rate(pods, took));

    let (mut pods, mut took) = (0, Duration::ZERO);
    while took < MIN_DURATION {
        let began = Instant::now();
        let Some(listed) = stream(&mut kv, expected.len()).await? else {
            return Ok(());
        };
        took += began.elapsed();
        pods += listed.len();
        check(fleet, &expected, &listed)?;
    }
    say(
        &format!("list of {} in a RangeStream", expected.len()),
        rate(pods, took),
    );
    Ok(())
}

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64()
}

/// Reads one key, which must exist.
pub(super) async fn read(server: &Server, key: &Bytes) -> anyhow::Result<KeyValue> {
    let get = pb::RangeRequest {
        key: key.clone(),
        ..pb::RangeRequest::default()
    };
    let answer = client(server).await?.range(get).await?.into_inner();
    let kv = answer.kvs.into_iter().next();
    kv.with_context(|| format!("{} does not exist", key.escape_ascii()))
}

async fn client(server: &Server) -> anyhow::Result<KvClient<Channel>> {
    Ok(KvClient::new(server.connect().await?).max_decoding_message_size(usize::MAX))
}

/// The first pods, all pages at the revision of the first one.
async fn pages(kv: &mut KvClient<Channel>, count: usize) -> anyhow::Result<Vec<KeyValue>> {
    let (mut from, mut revision) = (Bytes::from_static(PREFIX.as_bytes()), 0);
    let mut listed = Vec::new();
    while listed.len() < count {
        let request = pb::RangeRequest {
            key: from,
            range_end: requests::prefix_end(PREFIX),
            limit: PAGE_PODS.min((count - listed.len()) as i64),
            revision,
            ..pb::RangeRequest::default()
        };
        let page = kv.range(request).await?.into_inner();
        revision = page.header.unwrap_or_default().revision;
        let last = page.kvs.last().context("an empty page")?;
        from = [&last.key[..], b"\0"].concat().into();
        listed.extend(page.kvs);
    }
    Ok(listed)
}

/// The same in one stream; `None` where the server has none.
async fn stream(kv: &mut KvClient<Channel>, count: usize) -> anyhow::Result<Option<Vec<KeyValue>>> {
    let request = pb::RangeRequest {
        key: Bytes::from_static(PREFIX.as_bytes()),
        range_end: requests::prefix_end(PREFIX),
        limit: count as i64,
        ..pb::RangeRequest::default()
    };
    let mut chunks = match kv.range_stream(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::Unimplemented => return Ok(None),
        Err(status) => return Err(status.into()),
    };
    let mut listed = Vec::new();
    while let Some(chunk) = chunks.message().await? {
        listed.extend(chunk.range_response.unwrap_or_default().kvs);
    }
    Ok(Some(listed))
}

fn check(fleet: &PodFleet, expected: &[StoredPod], listed: &[KeyValue]) -> anyhow::Result<()> {
    ensure!(
        listed.len() == expected.len(),
        "{} pods of {} are listed",
        listed.len(),
        expected.len()
    );
    expected
        .iter()
        .zip(listed)
        .try_for_each(|(pod, read)| fleet.check(pod, read))
}
