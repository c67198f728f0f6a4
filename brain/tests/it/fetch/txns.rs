//! The rows that txns look at are read before the txns are evaluated, and counted.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{fill, start, text};
use crate::wire::{Request, Response, Target as _, pb};

#[tokio::test(start_paused = true)]
async fn txn_reads_spans_in_any_order_of_its_operations() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 600, 0).await;
    rows.hooks.take();
    let span = || (Bytes::from("many/"), Bytes::from("many0"));
    let range = |limit, count_only, revision| {
        let (key, range_end) = span();
        let range = pb::RangeRequest {
            key,
            range_end,
            limit,
            count_only,
            revision,
            ..pb::RangeRequest::default()
        };
        op(pb::request_op::Request::RequestRange(range))
    };
    let remove = |from: &'static str, to: &'static str| {
        let delete = pb::DeleteRangeRequest {
            key: from.into(),
            range_end: to.into(),
            prev_kv: false,
        };
        op(pb::request_op::Request::RequestDeleteRange(delete))
    };
    let put = pb::PutRequest {
        key: "many/00700".into(),
        ..pb::PutRequest::default()
    };
    let revision = engine.store.state.view().revision;
    let txn = pb::TxnRequest {
        success: vec![
            range(2, false, 0),
            remove("many/00000", "many/00300"),
            range(2, false, 0),
            op(pb::request_op::Request::RequestPut(put)),
            range(0, true, 0),
            range(1, false, revision),
        ],
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    let found: Vec<_> = answer.responses.iter().map(brief).collect();
    assert_eq!(
        found,
        [
            "600 many/00000=a value many/00001=a value",
            "deleted 300",
            "300 many/00300=a value many/00301=a value",
            "put",
            "301",
            "600 many/00000=a value",
        ]
    );
    engine.stop().await.unwrap();
}

/// Puts `lock` if it does not exist, and lists all keys otherwise.
fn lock_or_list() -> pb::TxnRequest {
    let compare = pb::Compare {
        key: "lock".into(),
        target: 1,
        target_union: Some(pb::compare::TargetUnion::CreateRevision(0)),
        ..pb::Compare::default()
    };
    let put = pb::PutRequest {
        key: "lock".into(),
        ..pb::PutRequest::default()
    };
    let list = pb::RangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        ..pb::RangeRequest::default()
    };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![op(pb::request_op::Request::RequestPut(put))],
        failure: vec![op(pb::request_op::Request::RequestRange(list))],
    }
}

#[tokio::test(start_paused = true)]
async fn branch_that_is_not_taken_is_not_read() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 600, 0).await;
    rows.hooks.scans.store(0, Ordering::SeqCst);
    let nested = op(pb::request_op::Request::RequestTxn(lock_or_list()));
    let txn = pb::TxnRequest {
        success: vec![nested],
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    assert_eq!(brief(&answer.responses[0]), "txn");
    assert_eq!(rows.hooks.scans.load(Ordering::SeqCst), 0, "keys were looked at");
    let Response::Txn(answer) = engine.call(Request::Txn(lock_or_list())).await.unwrap() else {
        panic!("not a txn");
    };
    assert!(brief(&answer.responses[0]).starts_with("600 many/00000=a value many/00001=a value"));
    engine.stop().await.unwrap();
}

/// The compare holds when the rows are read, and no longer when it is evaluated.
#[tokio::test(start_paused = true)]
async fn branch_that_was_not_expected_is_read_then() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 600, 0).await;
    let kv = &engine.kv;
    let txn = || pb::kv_server::Kv::txn(kv, tonic::Request::new(lock_or_list()));
    let answers = futures::future::join_all((0..3).map(|_| txn())).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().into_inner()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.succeeded).count(), 1);
    for answer in answers.iter().filter(|answer| !answer.succeeded) {
        assert!(brief(&answer.responses[0]).starts_with("600 many/00000=a value"));
    }
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn values_behind_the_limit_of_a_range_are_not_read() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 600, 0).await;
    rows.hooks.take();
    let range = pb::RangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        limit: 2,
        ..pb::RangeRequest::default()
    };
    let put = pb::PutRequest {
        key: "other".into(),
        ..pb::PutRequest::default()
    };
    let txn = pb::TxnRequest {
        success: vec![
            op(pb::request_op::Request::RequestRange(range)),
            op(pb::request_op::Request::RequestPut(put)),
        ],
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    assert_eq!(brief(&answer.responses[0]), "600 many/00000=a value many/00001=a value");
    let (_, _, objects) = rows.hooks.take();
    assert!((2..=4).contains(&objects), "{objects} values were read");
    engine.stop().await.unwrap();
}

fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn brief(response: &pb::ResponseOp) -> String {
    use pb::response_op::Response as Op;
    match response.response.as_ref().unwrap() {
        Op::ResponseRange(range) => {
            let kv = |kv: &etcd_types::pb::mvccpb::KeyValue| {
                format!(" {}={}", kv.key.escape_ascii(), kv.value.escape_ascii())
            };
            let kvs: String = range.kvs.iter().map(kv).collect();
            format!("{}{kvs}", range.count)
        }
        Op::ResponsePut(_) => "put".to_owned(),
        Op::ResponseDeleteRange(delete) => format!("deleted {}", delete.deleted),
        Op::ResponseTxn(_) => "txn".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn nested_operations_count_in_total() {
    let (mut engine, _) = start().await;
    let count = || {
        op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            count_only: true,
            ..pb::RangeRequest::default()
        }))
    };
    let nested = || {
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            success: (0..60).map(|_| count()).collect(),
            ..pb::TxnRequest::default()
        }))
    };
    let mut txn = pb::TxnRequest {
        success: (0..10).map(|_| nested()).collect(),
        ..pb::TxnRequest::default()
    };
    engine.call(Request::Txn(txn.clone())).await.unwrap();
    txn.success.extend((0..50).map(|_| nested()));
    assert_eq!(
        text(engine.call(Request::Txn(txn)).await),
        "etcdserver: too many operations in txn request"
    );
    engine.stop().await.unwrap();
}

/// Eight nested txns that look at 360 keys each, all of them in rows: the values are needed, and there are more points than are read with
/// values that are not needed.
#[tokio::test(start_paused = true)]
async fn txn_of_many_points_reads_the_values_that_it_needs() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 8 * 360, 0).await;
    let key = |n: usize| Bytes::from(format!("many/{n:05}"));
    let compare = |n| pb::Compare {
        key: key(n),
        target: 3,
        target_union: Some(pb::compare::TargetUnion::Value("a value".into())),
        ..pb::Compare::default()
    };
    let put = |n, prev_kv, ignore_value| {
        op(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: key(n),
            prev_kv,
            ignore_value,
            ..pb::PutRequest::default()
        }))
    };
    let success = |n| match n % 4 {
        0 => put(n, true, false),
        1 => put(n, true, true),
        2 => op(pb::request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
            key: key(n),
            prev_kv: true,
            ..pb::DeleteRangeRequest::default()
        })),
        _ => op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: key(n),
            ..pb::RangeRequest::default()
        })),
    };
    let nested = |n: usize| {
        let from = n * 360;
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            compare: (from..from + 120).map(compare).collect(),
            success: (from + 120..from + 240).map(success).collect(),
            failure: (from + 240..from + 360).map(|n| put(n, false, false)).collect(),
        }))
    };
    let txn = pb::TxnRequest {
        success: (0..8).map(nested).collect(),
        ..pb::TxnRequest::default()
    };
    let Response::Txn(answer) = engine.call(Request::Txn(txn)).await.unwrap() else {
        panic!("not a txn");
    };
    let nested = answer.responses.into_iter().map(|response| match response.response {
        Some(pb::response_op::Response::ResponseTxn(txn)) => txn,
        other => panic!("answered by {other:?}"),
    });
    for txn in nested {
        assert!(txn.succeeded, "a value that was not read was compared");
        for (n, response) in txn.responses.into_iter().enumerate() {
            use pb::response_op::Response as Op;
            let prev = match response.response.unwrap() {
                Op::ResponsePut(put) => put.prev_kv,
                Op::ResponseDeleteRange(delete) => delete.prev_kvs.first().cloned(),
                Op::ResponseRange(range) => range.kvs.first().cloned(),
                Op::ResponseTxn(_) => None,
            };
            assert_eq!(prev.unwrap().value, "a value", "operation {n}");
        }
    }
    engine.stop().await.unwrap();
}

/// Nested txns: each counts the keys of one span `counts` times and puts a key of its own.
fn counting(name: &str, nested: usize, counts: usize) -> pb::TxnRequest {
    let count = || {
        op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: "many/".into(),
            range_end: "many0".into(),
            count_only: true,
            ..pb::RangeRequest::default()
        }))
    };
    let nested = (0..nested).map(|_| {
        op(pb::request_op::Request::RequestTxn(pb::TxnRequest {
            success: (0..counts).map(|_| count()).collect(),
            ..pb::TxnRequest::default()
        }))
    });
    let put = op(pb::request_op::Request::RequestPut(pb::PutRequest {
        key: name.to_owned().into(),
        ..pb::PutRequest::default()
    }));
    pb::TxnRequest {
        success: nested.chain([put]).collect(),
        ..pb::TxnRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn txn_that_looks_at_too_many_rows_is_refused() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 600, 0).await;
    let refused = engine.call(Request::Txn(counting("key", 8, 60))).await;
    assert_eq!(text(refused), "etcdserver: request is too large");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn batch_ends_when_it_looked_at_many_rows() {
    let (mut engine, _) = start().await;
    fill(&mut engine, 600, 0).await;
    let slot = || engine.store.state.committed().0;
    let before = slot();
    let kv = &engine.kv;
    let txns = (0..20).map(|n| {
        let txn = counting(&format!("key/{n}"), 1, 100);
        async move { pb::kv_server::Kv::txn(kv, tonic::Request::new(txn)).await.unwrap() }
    });
    let revisions = futures::future::join_all(txns)
        .await
        .into_iter()
        .map(|answer| answer.into_inner().header.unwrap().revision);
    let revisions: Vec<i64> = revisions.collect();
    assert!(revisions.is_sorted(), "in order: {revisions:?}");
    let batches = slot() - before;
    assert_eq!(batches, 20, "each txn looks at 60,000 rows");
    engine.stop().await.unwrap();
}
