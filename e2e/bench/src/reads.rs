//! Reads of one key, and of a thousand at once.

use anyhow::ensure;
use bytes::Bytes;
use pb::kv_client::KvClient;
use programs::server::Server;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::disk::ServerDir;
use crate::load::RequestLoad;
use crate::report::{Report, Unit};
use crate::{requests, updates};

const LISTED_KEYS: usize = 1_000;
const VALUE_BYTES: usize = 1_024;
/// One list is as long as a thousand points.
const POINTS_PER_LIST: u64 = 60;

/// Both on one server.
pub(crate) async fn measure(
    server: &Server,
    kv: &mut KvClient<Channel>,
    place: &ServerDir,
    count: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    fill(kv).await?;
    let points = RequestLoad {
        clients: 8,
        streams: 32,
        requests: count,
    };
    read(server, kv, place, points, "get of 512 B", requests::get(), report).await?;
    let lists = RequestLoad {
        clients: 4,
        streams: 4,
        requests: (count / POINTS_PER_LIST).max(1),
    };
    read(
        server,
        kv,
        place,
        lists,
        "list of 1,000 × 1 KiB",
        requests::list(),
        report,
    )
    .await
}

async fn fill(kv: &mut KvClient<Channel>) -> anyhow::Result<()> {
    for n in 0..LISTED_KEYS {
        let key = [requests::LISTED_PREFIX, format!("{n:04}").as_bytes()].concat().into();
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        kv.put(pb::PutRequest {
            key,
            value,
            ..pb::PutRequest::default()
        })
        .await?;
    }
    Ok(())
}

async fn read(
    server: &Server,
    kv: &mut KvClient<Channel>,
    place: &ServerDir,
    load: RequestLoad,
    name: &str,
    request: pb::RangeRequest,
    report: &mut Report,
) -> anyhow::Result<()> {
    let body = place.file("read");
    requests::write(&request, &body)?;
    // the store does not change, so all answers are as long as this one; an error would have no body
    let one = requests::framed(&kv.range(request).await?.into_inner());
    let cpu = server.usage()?.cpu;
    let outcome = load.run(server, "etcdserverpb.KV/Range", &body)?;
    let spent = server.usage()?.cpu - cpu;
    let expected = one * load.requests;
    ensure!(
        outcome.body_bytes == expected,
        "{name}: bodies of {} bytes, not {expected}",
        outcome.body_bytes
    );
    report.add(name, Unit::PerSecond, server.name(), outcome.rate);
    let each = updates::each(spent, load.requests);
    report.add(&format!("{name}: server CPU"), Unit::MicrosEach, server.name(), each);
    Ok(())
}
