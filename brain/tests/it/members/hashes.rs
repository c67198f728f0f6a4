//! Hashes of the history: the same on all members, and after restarts.

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use tonic::transport::Channel;

use super::Site;
use crate::program::{Kubebrain, Process};
use crate::wire::{Request, Target as _};

const COMPACTED_REVISION: i64 = 20;

fn put(n: i64, lease: i64) -> pb::PutRequest {
    pb::PutRequest {
        key: format!("key/{}", n % 7).into(),
        value: vec![b'v'; usize::try_from(n * 40).unwrap()].into(),
        lease,
        ..pb::PutRequest::default()
    }
}

fn delete(key: &'static str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: key.into(),
        ..pb::DeleteRangeRequest::default()
    }
}

fn compact() -> pb::CompactionRequest {
    pb::CompactionRequest {
        revision: COMPACTED_REVISION,
        physical: true,
    }
}

/// Returns the hash and the revisions that it covers, at each revision from the compacted to the newest one. The member may need to wait
/// for the newest one.
async fn hashes(channel: Channel, newest: i64) -> Vec<(u32, i64, i64)> {
    let first = pb::RangeRequest {
        key: "key/1".into(),
        ..pb::RangeRequest::default()
    };
    let read = KvClient::new(channel.clone()).range(first).await.unwrap().into_inner();
    assert_eq!(read.header.unwrap().revision, newest);
    let (mut maintenance, mut hashes) = (MaintenanceClient::new(channel), Vec::new());
    for revision in COMPACTED_REVISION..=newest {
        let answer = maintenance
            .hash_kv(pb::HashKvRequest { revision })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.header.unwrap().revision, newest);
        hashes.push((answer.hash, answer.hash_revision, answer.compact_revision));
    }
    hashes
}

/// Each change of history changes them.
fn differ(hashes: &[(u32, i64, i64)]) {
    assert!(hashes.len() > 10, "{hashes:?}");
    for (one, next) in hashes.iter().zip(&hashes[1..]) {
        assert!(
            one.0 != next.0 && one.1 + 1 == next.1 && one.2 == COMPACTED_REVISION,
            "{hashes:?}"
        );
    }
}

#[tokio::test]
async fn members_have_the_same_hashes_and_keep_them_over_restarts() {
    let site = Site::new(2).await;
    let start = async || (site.start(0, 2, &[]).await, site.start(1, 2, &[]).await);
    let of = async |(one, other): &(Process, Process), newest| {
        let hashes = [
            hashes(one.connect().await, newest).await,
            hashes(other.connect().await, newest).await,
        ];
        assert_eq!(hashes[0], hashes[1]);
        hashes[0].clone()
    };
    let members = start().await;
    let channel = members.1.connect().await;
    let mut kv = KvClient::new(channel.clone());
    let lease = pb::LeaseGrantRequest { ttl: 600, id: 9 };
    LeaseClient::new(channel).lease_grant(lease).await.unwrap();
    for n in 1..=30 {
        kv.put(put(n, if n % 3 == 0 { 9 } else { 0 })).await.unwrap();
    }
    kv.delete_range(delete("key/1")).await.unwrap();
    kv.compact(compact()).await.unwrap();
    let before = of(&members, 32).await;
    differ(&before);
    members.0.stop().await;
    members.1.kill().await;
    let members = start().await;
    assert_eq!(of(&members, 32).await, before);
    members.0.stop().await;
    members.1.stop().await;
}

#[tokio::test]
async fn hashes_of_a_data_directory_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Kubebrain::start(dir.path()).await;
    for n in 1..=30 {
        server.client.call(Request::Put(put(n, 0))).await.unwrap();
    }
    server.client.call(Request::Delete(delete("key/1"))).await.unwrap();
    server.client.call(Request::Compact(compact())).await.unwrap();
    let channel = async |server: &Kubebrain| {
        Channel::from_shared(server.url.clone())
            .unwrap()
            .connect()
            .await
            .unwrap()
    };
    let before = hashes(channel(&server).await, 32).await;
    differ(&before);
    server.kill().await;
    let server = Kubebrain::start(dir.path()).await;
    assert_eq!(hashes(channel(&server).await, 32).await, before);
    server.stop().await;
}
