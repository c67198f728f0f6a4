//! Requests that are larger than what TiKV takes.

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use tonic::Code;
use tonic::transport::Channel;

use super::Site;
use crate::program::Process;

/// More than TiKV takes in one entry of its raft log, and less than the flag allows.
const TOO_LARGE_BYTES: usize = 9 << 20;

/// The largest value that TiKV takes, but for what is stored around it.
const LARGE_BYTES: usize = 7 << 20;

const MAX_REQUEST_BYTES_FLAG: &str = "--max-request-bytes=10485760";

fn put(key: Vec<u8>, bytes: usize) -> pb::PutRequest {
    pb::PutRequest {
        key: key.into(),
        value: vec![b'v'; bytes].into(),
        ..pb::PutRequest::default()
    }
}

async fn client(member: &Process) -> KvClient<Channel> {
    KvClient::new(member.connect().await).max_decoding_message_size(64 << 20)
}

async fn is_too_large(kv: &mut KvClient<Channel>, ops: Vec<pb::PutRequest>) {
    let refused = if let [put] = &ops[..] {
        kv.put(put.clone()).await.unwrap_err()
    } else {
        let success = ops.into_iter().map(|put| pb::RequestOp {
            request: Some(Op::RequestPut(put)),
        });
        let txn = pb::TxnRequest {
            success: success.collect(),
            ..pb::TxnRequest::default()
        };
        kv.txn(txn).await.unwrap_err()
    };
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, "etcdserver: request is too large")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_too_large_for_tikv_are_refused_and_others_survive_a_restart() {
    let site = Site::new(2).await;
    let (leader, follower) = (
        site.start(0, 2, &[MAX_REQUEST_BYTES_FLAG]).await,
        site.start(1, 2, &[MAX_REQUEST_BYTES_FLAG]).await,
    );
    for member in [&leader, &follower] {
        let mut kv = client(member).await;
        is_too_large(&mut kv, vec![put(b"value".to_vec(), TOO_LARGE_BYTES)]).await;
        is_too_large(&mut kv, vec![put(vec![b'k'; TOO_LARGE_BYTES], 1)]).await;
        is_too_large(&mut kv, vec![put(vec![b'k'; 8 << 10], 1)]).await;
        let three = [b"a", b"b", b"c"].map(|key| put(key.to_vec(), TOO_LARGE_BYTES / 3));
        is_too_large(&mut kv, three.to_vec()).await;
        kv.put(put(b"large".to_vec(), LARGE_BYTES)).await.unwrap();
    }
    let mut kv = client(&leader).await;
    let flushed = pb::CompactionRequest {
        revision: 3,
        physical: true,
    };
    kv.compact(flushed).await.unwrap();
    follower.stop().await;
    leader.stop().await;
    let again = site.start(0, 2, &[MAX_REQUEST_BYTES_FLAG]).await;
    let mut kv = client(&again).await;
    let all = pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::RangeRequest::default()
    };
    let found = kv.range(all).await.unwrap().into_inner();
    assert_eq!(found.header.unwrap().revision, 3);
    let found: Vec<_> = found.kvs.iter().map(|kv| (&kv.key[..], kv.value.len())).collect();
    assert_eq!(found, [(&b"large"[..], LARGE_BYTES)]);
    kv.put(put(b"after".to_vec(), 1)).await.unwrap();
    again.stop().await;
}
