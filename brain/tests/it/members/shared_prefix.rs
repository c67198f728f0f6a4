//! Two clusters on one TiKV.

use std::collections::BTreeMap;

use bytes::Bytes;
use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;

use super::Site;
use crate::program::Process;

/// More slots than a compaction leaves.
const WRITES: usize = 150;

/// Starts the only member of a cluster of its own.
async fn start(site: &Site, member: usize, prefix: &str) -> Process {
    let mut flags = site.flags(member, member + 1);
    flags.retain(|flag| !flag.starts_with("--initial-cluster="));
    flags.push(format!("--initial-cluster=b{member}={}", site.peer_url(member)));
    flags.push(format!("--tikv-key-prefix={prefix}"));
    let member = Process::begin(&flags, site.client_url(member));
    member.says("ready to serve client requests").await;
    member
}

/// Writes, and leaves everything in rows and as little as possible in the log.
async fn use_up(member: &Process) {
    let mut kv = KvClient::new(member.connect().await);
    let mut revision = 0;
    for n in 0..WRITES {
        let put = pb::PutRequest {
            key: format!("{:02}", n % 20).into(),
            value: n.to_string().into(),
            ..pb::PutRequest::default()
        };
        revision = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
    }
    member.compact(revision).await;
}

/// The content of a prefix without its registers: locks are renewed all the time.
fn contents(site: &Site, prefix: &str) -> BTreeMap<Bytes, (u64, Bytes)> {
    let first = [&[u8::try_from(prefix.len()).unwrap()], prefix.as_bytes()].concat();
    let is_theirs = |key: &Bytes| key.strip_prefix(&first[..]).is_some_and(|rest| rest[0] != b'c');
    let all = site.tikv.contents().into_iter();
    all.filter(|(key, _)| is_theirs(key)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_whose_prefixes_begin_alike_compact_and_take_over_apart() {
    let site = Site::new(2).await;
    let prefixes = ["p", "pr"];
    let mut members = Vec::new();
    for (n, prefix) in prefixes.into_iter().enumerate() {
        let member = start(&site, n, prefix).await;
        use_up(&member).await;
        members.push(member);
    }
    for (n, other) in [(0, 1), (1, 0)] {
        let before = contents(&site, prefixes[other]);
        assert!(before.len() > 20, "{before:?}");
        members.remove(n).kill().await;
        members.insert(n, start(&site, n, prefixes[n]).await);
        use_up(&members[n]).await;
        assert_eq!(contents(&site, prefixes[other]), before, "{} changed", prefixes[other]);
    }
    for member in members {
        member.stop().await;
    }
}
