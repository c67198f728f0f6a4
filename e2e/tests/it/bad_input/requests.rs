//! Requests that cannot be served get etcd's code and text, and the next one is served.

use super::*;
use pb::lease_client::LeaseClient;
use pb::request_op::Request as Op;

fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn success(ops: Vec<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest {
        success: ops,
        ..pb::TxnRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_served_get_etcds_words() {
    let _deadline = deadline();
    const INVALID: Code = Code::InvalidArgument;
    let server = brain(&[]);
    let mut kv = kv(&server).await;
    for n in 0..5 {
        kv.put(put("a", n.to_string())).await.unwrap(); // revisions 2 to 6
    }
    refused(kv.put(put("", "x")).await, INVALID, "etcdserver: key is not provided");
    refused(kv.range(get("")).await, INVALID, "etcdserver: key is not provided");
    refused(
        kv.put(put("a", vec![0; 1_572_864])).await,
        INVALID,
        "etcdserver: request is too large",
    );
    let many = (0..129).map(|n| op(Op::RequestRange(get(&n.to_string())))).collect();
    refused(
        kv.txn(success(many)).await,
        INVALID,
        "etcdserver: too many operations in txn request",
    );
    let twice = vec![op(Op::RequestPut(put("k", "1"))), op(Op::RequestPut(put("k", "2")))];
    refused(
        kv.txn(success(twice)).await,
        INVALID,
        "etcdserver: duplicate key given in txn request",
    );
    let future = pb::RangeRequest {
        revision: 7,
        ..get("a")
    };
    refused(
        kv.range(future).await,
        Code::OutOfRange,
        "etcdserver: mvcc: required revision is a future revision",
    );
    kv.compact(pb::CompactionRequest {
        revision: 4,
        physical: false,
    })
    .await
    .unwrap();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    refused(
        kv.range(pb::RangeRequest {
            revision: 3,
            ..get("a")
        })
        .await,
        Code::OutOfRange,
        compacted,
    );
    let again = pb::CompactionRequest {
        revision: 4,
        physical: false,
    };
    refused(kv.compact(again).await, Code::OutOfRange, compacted);
    let leased = pb::PutRequest {
        lease: 404,
        ..put("a", "x")
    };
    refused(
        kv.put(leased).await,
        Code::NotFound,
        "etcdserver: requested lease not found",
    );
    let unsorted = pb::RangeRequest {
        sort_order: 9,
        ..get("a")
    };
    refused(kv.range(unsorted).await, INVALID, "etcdserver: invalid sort option");
    let mut lease = LeaseClient::new(server.connect().await.unwrap());
    let unknown = lease.lease_revoke(pb::LeaseRevokeRequest { id: 404 }).await;
    refused(unknown, Code::NotFound, "etcdserver: requested lease not found");
    let backwards = pb::RangeRequest {
        range_end: b"A".to_vec().into(),
        ..get("a")
    };
    assert_eq!(kv.range(backwards).await.unwrap().into_inner().count, 0);
    let header = kv.range(get("a")).await.unwrap().into_inner().header.unwrap();
    assert_eq!(header.revision, 6, "something that was refused has left a trace");
    server.stop().unwrap();
}
