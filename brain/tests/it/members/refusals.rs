//! Storage that is not this member's, or not what was written: refused by name, and left as it is.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use engine::log::frame::is_barrier;
use etcd_types::pb::etcdserverpb as pb;
use mvcc::row::Manifest;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use prost::Message as _;
use tokio::time::timeout;
use tonic::Code;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

type Contents = BTreeMap<Bytes, (u64, Bytes)>;

/// A store with some writes in it, whose member was stopped.
async fn used() -> Site {
    let site = Site::new(2).await;
    let member = site.lone().await;
    put(&member, 20).await;
    member.stop().await;
    site
}

/// The same, with everything in rows, and history from revision 3 on.
async fn compacted() -> Site {
    let site = Site::new(1).await;
    let member = site.lone().await;
    put(&member, 20).await;
    member.compact(3).await;
    member.stop().await;
    site
}

async fn put(member: &Process, times: usize) {
    let mut kv = KvClient::new(member.connect().await);
    for n in 0..times {
        let put = pb::PutRequest {
            key: format!("key/{n}").into(),
            value: vec![b'v'; 100].into(),
            ..pb::PutRequest::default()
        };
        kv.put(put).await.unwrap();
    }
}

/// A member with these flags says why it does not start, and changes nothing.
async fn is_refused(site: &Site, more: &[&str], reasons: &[&str]) {
    let before = site.tikv.contents();
    let mut member = site.begin(0, 1, more);
    let (code, said) = member.ended().await;
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(code, Some(1), "{said}");
    for reason in reasons {
        assert!(
            last.starts_with("kubebrain: ") && last.contains(reason),
            "{reason:?} is not in {last:?}"
        );
    }
    unchanged(&before, &site.tikv.contents());
}

fn unchanged(before: &Contents, after: &Contents) {
    let changed: Vec<_> = before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value))
        .map(|(key, _)| key)
        .chain(after.keys().filter(|key| !before.contains_key(*key)))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// The slots of the log, but for barriers.
fn slots(contents: &Contents) -> Vec<(Bytes, u64)> {
    let prefix = Site::key(b'w', b"");
    let taken = contents.iter().filter(|(_, (_, record))| !is_barrier(record));
    taken
        .filter_map(|(key, _)| Some((key.clone(), key.strip_prefix(&prefix[..])?)))
        .map(|(key, slot)| (key.clone(), u64::from_be_bytes(slot.try_into().unwrap())))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tikv_cluster_than_the_store_was_begun_on_is_refused() {
    let site = used().await;
    // As if PD's addresses led to a copy of the data.
    let other = 4_711_u64.to_be_bytes();
    assert!(
        site.tikv
            .damage(&Site::key(b'c', b"cluster"), other.to_vec())
            .await
            .unwrap()
    );
    let found = site.tikv.cluster_id();
    let reason = format!("the store belongs to TiKV cluster 4711, but the addresses of PD belong to cluster {found}");
    is_refused(&site, &[], &[&reason]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tikv_cluster_that_the_flag_does_not_name_is_refused_even_when_empty() {
    let site = Site::new(1).await;
    let found = site.tikv.cluster_id();
    let reason = format!("--tikv-cluster-id is 4711, but the addresses of PD belong to cluster {found}");
    is_refused(&site, &["--tikv-cluster-id=4711"], &[&reason]).await;
    assert!(site.tikv.contents().is_empty());
    let named = format!("--tikv-cluster-id={found}");
    site.start(0, 1, &[&named]).await.stop().await;
    is_refused(&site, &["--tikv-cluster-id=4711"], &[&reason]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_prefix_of_a_cluster_with_another_token_is_refused() {
    let site = used().await;
    let reasons = [
        r#"the cluster with the token "etcd-cluster", not "other""#,
        "choose another --tikv-key-prefix",
    ];
    is_refused(&site, &["--initial-cluster-token=other"], &reasons).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused() {
    let site = used().await;
    let key = Site::key(b'f', b"");
    let mut manifest = Manifest::decode(site.tikv.contents()[&key[..]].1.clone()).unwrap();
    manifest.format = 99;
    assert!(site.tikv.damage(&key, manifest.encode_to_vec()).await.unwrap());
    is_refused(&site, &[], &["the data is of format 99", "start a newer version"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_fence_watermark_or_owner_is_refused() {
    for (kind, rest, reason) in [
        (b'f', &b""[..], "the fence does not decode"),
        (b'c', b"watermark", "the watermark is"),
        (b'c', b"owner", "the key prefix belongs to"),
        (b'c', b"members", "the rows of members are damaged"),
    ] {
        let site = compacted().await;
        assert!(
            site.tikv.damage(&Site::key(kind, rest), "rot").await.unwrap(),
            "{reason}"
        );
        is_refused(&site, &[], &[reason]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_meets_a_damaged_slot_stops_the_service_and_names_it() {
    let site = compacted().await;
    let taken = slots(&site.tikv.contents());
    let (key, slot) = &taken[taken.len() / 2];
    assert!(site.tikv.damage(key, "rot").await.unwrap());
    // The start does not read log slots whose records are in rows.
    let member = site.lone().await;
    let create = pb::WatchCreateRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        start_revision: 3,
        ..pb::WatchCreateRequest::default()
    };
    let request = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    };
    let requests = futures::StreamExt::chain(futures::stream::iter([request]), futures::stream::pending());
    let mut watches = pb::watch_client::WatchClient::new(member.connect().await);
    let _stream = watches.watch(requests).await.unwrap();
    member.says("stored history is damaged").await;
    member.says("cannot read history").await;
    assert_eq!(
        member.said(&format!("slot {slot} ")),
        member.said("stored history is damaged") + member.said("cannot read history")
    );
    let mut kv = KvClient::new(member.connect().await);
    let refused = kv
        .range(pb::RangeRequest {
            key: b"a".to_vec().into(),
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::DataLoss, "etcdserver: corrupt cluster")
    );
    assert!(
        site.tikv.contents().contains_key(key),
        "what is damaged is not cleared away"
    );
    member.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_slot_is_refused_wherever_it_stands() {
    let site = used().await;
    let taken = slots(&site.tikv.contents());
    // The last one is not known to be committed before the next leader's barrier: that must not be placed.
    for (key, slot) in [taken.first(), taken.get(taken.len() / 2), taken.last()]
        .into_iter()
        .flatten()
    {
        let whole = site.tikv.contents()[key].1.clone();
        let mut flipped = whole.to_vec();
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        for damage in [Bytes::from_static(b"rot"), flipped.into()] {
            assert!(site.tikv.damage(key, damage).await.unwrap());
            is_refused(&site, &[], &[&format!("slot {slot}")]).await;
        }
        assert!(site.tikv.damage(key, whole).await.unwrap());
    }
    site.lone().await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_damaged_under_a_running_member_stop_its_service() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    put(&member, 5).await;
    member.compact(5).await;
    let mut kv = KvClient::new(member.connect().await);
    let key = Site::key(b'r', b"");
    let objects: Vec<Bytes> = site
        .tikv
        .contents()
        .into_keys()
        .filter(|found| found.starts_with(&key))
        .collect();
    assert!(!objects.is_empty(), "nothing was flushed");
    for object in &objects {
        assert!(site.tikv.damage(object, "rot").await.unwrap());
    }
    let before = site.tikv.contents();
    let read = pb::RangeRequest {
        key: b"key/1".to_vec().into(),
        ..pb::RangeRequest::default()
    };
    let refused = kv.range(read.clone()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::DataLoss, "etcdserver: corrupt cluster")
    );
    member.says("key/1").await;
    let refused = kv
        .put(pb::PutRequest {
            key: b"b".to_vec().into(),
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss);
    let leader = Site::key(b'c', b"leader");
    let but_the_lock = |contents: Contents| contents.into_iter().filter(|(key, _)| key != &leader[..]).collect();
    unchanged(&but_the_lock(before), &but_the_lock(site.tikv.contents()));
    member.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_damaged_under_a_running_leader_is_refused_by_who_joins() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    put(&leader, 5).await;
    let status = MaintenanceClient::new(leader.connect().await)
        .status(pb::StatusRequest {})
        .await;
    assert_eq!(status.unwrap().get_ref().leader, status_id(&leader).await);
    for (key, _) in slots(&site.tikv.contents()) {
        assert!(site.tikv.damage(&key, "rot").await.unwrap());
    }
    let mut follower = site.begin(1, 2, &[]);
    let (code, said) = follower.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains("slot "), "{said}");
    // The leader has the records in memory, and continues until it must read the slot.
    put(&leader, 1).await;
    leader.kill().await;
}

async fn status_id(member: &Process) -> u64 {
    let mut maintenance = MaintenanceClient::new(member.connect().await);
    let status = timeout(STEP_TIMEOUT, maintenance.status(pb::StatusRequest {}))
        .await
        .unwrap();
    status.unwrap().into_inner().header.unwrap().member_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_meets_a_damaged_slot_ends_the_leader_and_names_it() {
    let site = Site::new(1).await;
    let mut member = site.lone().await;
    put(&member, 5).await;
    let taken = slots(&site.tikv.contents());
    let (key, slot) = taken.get(2).unwrap();
    assert!(site.tikv.damage(key, "rot").await.unwrap());
    let mut kv = KvClient::new(member.connect().await);
    kv.compact(pb::CompactionRequest {
        revision: 6,
        physical: false,
    })
    .await
    .unwrap();
    let (code, said) = timeout(Duration::from_secs(30), member.ended()).await.unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains(&format!("slot {slot}")), "{said}");
    assert!(
        site.tikv.contents().contains_key(key),
        "what is damaged is not cleared away"
    );
}
