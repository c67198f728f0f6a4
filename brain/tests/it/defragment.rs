//! Defragmentation gives space back.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use etcd_types::pb::etcdserverpb as pb;
use pb::maintenance_client::MaintenanceClient;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tonic::transport::Channel;

use crate::program::Kubebrain;
use crate::wire::{Request, Target as _};

const KEYS: usize = 1_000;
const VALUE_BYTES: usize = 32 << 10;

/// Bytes that files below a directory take on the disk.
fn bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let each = entries.map(|entry| match entry.metadata() {
        Ok(of) if of.is_dir() => bytes(&entry.path()),
        Ok(of) => of.blocks() * 512,
        // It was removed after it was listed.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => panic!("{error}"),
    });
    each.sum()
}

async fn status(maintenance: &mut MaintenanceClient<Channel>) -> pb::StatusResponse {
    maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner()
}

#[tokio::test]
async fn deleted_keys_leave_no_bytes_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Kubebrain::start(dir.path()).await;
    let channel = Channel::from_shared(server.url.clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut maintenance = MaintenanceClient::new(channel);
    let mut random = StdRng::seed_from_u64(1);
    for n in 0..KEYS {
        let mut value = vec![0; VALUE_BYTES];
        random.fill(&mut value[..]);
        let put = pb::PutRequest {
            key: format!("key/{n}").into(),
            value: value.into(),
            ..pb::PutRequest::default()
        };
        server.client.call(Request::Put(put)).await.unwrap();
    }
    let written = (KEYS * VALUE_BYTES) as i64;
    let before = status(&mut maintenance).await.db_size;
    assert!(before > written / 4, "{before} of {written} bytes");
    let delete = pb::DeleteRangeRequest {
        key: "key/1".into(),
        range_end: "key0".into(),
        ..pb::DeleteRangeRequest::default()
    };
    server.client.call(Request::Delete(delete)).await.unwrap();
    let compact = pb::CompactionRequest {
        revision: KEYS as i64 + 2,
        physical: true,
    };
    server.client.call(Request::Compact(compact)).await.unwrap();
    maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
    let after = status(&mut maintenance).await;
    assert!(after.db_size < written / 10, "{} of {written} bytes", after.db_size);
    assert!(after.db_size_in_use <= after.db_size, "{after:?}");
    let files = bytes(&dir.path().join("rows"));
    assert!(files < written as u64 / 3, "{files} bytes of files");
    let count = pb::RangeRequest {
        key: "key/0".into(),
        range_end: "key0".into(),
        count_only: true,
        ..pb::RangeRequest::default()
    };
    let answer = server.client.call(Request::Range(count)).await.unwrap();
    assert!(format!("{answer:?}").contains("count: 1"), "{answer:?}");
    server.stop().await;
}
