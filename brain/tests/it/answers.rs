//! Answers are charged to the caller before they are built: an answer that a connection has no memory for is refused, and a
//! write that is refused changes nothing.

use std::sync::Arc;

use ::watch::{self, Replay};
use api::concurrency::{Cleanup, Concurrency};
use api::election::ElectionService;
use api::lease::LeaseService;
use bytes::Bytes;
use election::election_server::Election as _;
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use etcd_types::pb::v3electionpb as election;
use pb::kv_server::Kv as _;
use pb::request_op::Request as Wire;
use prometheus::IntGauge;
use runtime::budget::{Account, Budget, Meter};
use store::history::LogHistory;
use tokio_util::sync::CancellationToken;
use tonic::{Request as Ask, Status};

use crate::counted::{Counted, Reads};
use crate::engine::Engine;
use crate::wire::pb;

type Small = Engine;

const VALUES: usize = 64;

/// The account of a connection that may take `bytes` bytes.
fn account(bytes: usize) -> Account {
    Budget::new(2 * bytes, IntGauge::new("held", "held").unwrap()).account(None)
}

/// A request whose answer is charged.
fn charged<T>(message: T, account: &Account) -> Ask<T> {
    let mut ask = Ask::new(message);
    ask.extensions_mut().insert(Meter::new(account).unwrap());
    ask
}

/// A store whose rows hold values of `size` bytes, and nothing is in memory.
async fn stored(size: usize) -> (Small, Reads) {
    let rows = Counted::new(MemRows::new(), Reads::default());
    let reads = rows.hooks.clone();
    let mut engine = Engine::start(MemLog::default(), rows).await.unwrap();
    for n in 0..VALUES {
        let key = format!("part/{n:04}");
        engine.put(key.as_bytes(), &vec![b'v'; size]).await.unwrap();
    }
    engine.compact().await;
    assert_eq!(
        engine.store.state.view().memtables.bytes(),
        0,
        "values are still in memory"
    );
    reads.take();
    (engine, reads)
}

fn all() -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::from_static(b"part/"),
        range_end: Bytes::from_static(b"part0"),
        ..Default::default()
    }
}

fn op(request: Wire) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn new() -> pb::PutRequest {
    pb::PutRequest {
        key: Bytes::from_static(b"part/new"),
        ..Default::default()
    }
}

async fn count(engine: &Small) -> i64 {
    engine.kv.range(Ask::new(all())).await.unwrap().get_ref().count
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>) {
    match answer {
        Err(status) => assert_eq!(status.message(), "etcdserver: too many requests"),
        Ok(_) => panic!("the answer was built"),
    }
}

#[tokio::test]
async fn range_beyond_its_budget_reads_few_values() {
    let (engine, reads) = stored(64 << 10).await;
    let account = account(1 << 20);
    assert_refused(engine.kv.range(charged(all(), &account)).await);
    let (_, rows) = reads.take();
    assert!(rows <= VALUES + 16, "{rows} rows were read for {VALUES} keys");
    assert_eq!(account.used(), 0);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn range_in_an_order_reads_only_the_values_it_answers() {
    let (engine, reads) = stored(64 << 10).await;
    let first = pb::RangeRequest {
        limit: 1,
        sort_order: 1,
        sort_target: 2,
        ..all()
    };
    let answer = engine.kv.range(Ask::new(first)).await.unwrap().into_inner();
    assert_eq!((answer.kvs.len(), answer.count, answer.more), (1, VALUES as i64, true));
    assert_eq!(
        (&answer.kvs[0].key[..], answer.kvs[0].value.len()),
        (&b"part/0000"[..], 64 << 10)
    );
    let (_, rows) = reads.take();
    assert!(
        rows <= VALUES + 1,
        "{rows} rows were read for {VALUES} keys and one value"
    );
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn read_txn_is_charged_for_each_of_its_answers() {
    let (engine, _) = stored(1 << 10).await;
    let account = account(1 << 20);
    let txn = |ranges: usize| pb::TxnRequest {
        success: (0..ranges).map(|_| op(Wire::RequestRange(all()))).collect(),
        ..Default::default()
    };
    engine.kv.txn(charged(txn(2), &account)).await.unwrap();
    assert_refused(engine.kv.txn(charged(txn(40), &account)).await);
    assert_eq!(account.used(), 0);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn write_txn_changes_nothing_if_its_answer_is_refused() {
    let (mut engine, _) = stored(1 << 10).await;
    let account = account(1 << 20);
    let before = engine.store.state.view().revision;
    let deletes = pb::DeleteRangeRequest {
        key: Bytes::from_static(b"part/0001"),
        ..Default::default()
    };
    let mut success = vec![op(Wire::RequestPut(new())), op(Wire::RequestDeleteRange(deletes))];
    success.extend((0..40).map(|_| op(Wire::RequestRange(all()))));
    let txn = pb::TxnRequest {
        success,
        ..Default::default()
    };
    assert_refused(engine.kv.txn(charged(txn.clone(), &account)).await);
    assert_eq!(
        (count(&engine).await, engine.store.state.view().revision),
        (VALUES as i64, before)
    );
    assert_eq!(engine.put(b"other", b"").await.unwrap(), before + 1);
    // A request with enough memory succeeds.
    let done = engine.kv.txn(Ask::new(txn)).await.unwrap().into_inner();
    assert_eq!((done.responses.len(), count(&engine).await), (42, VALUES as i64));
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn writes_change_nothing_if_what_they_superseded_cannot_be_answered() {
    let (engine, _) = stored(8 << 10).await;
    let account = account(4 << 10);
    let delete = pb::DeleteRangeRequest {
        key: all().key,
        range_end: all().range_end,
        prev_kv: true,
    };
    assert_refused(engine.kv.delete_range(charged(delete.clone(), &account)).await);
    assert_eq!(count(&engine).await, VALUES as i64);
    let put = pb::PutRequest {
        key: Bytes::from_static(b"part/0001"),
        prev_kv: true,
        ..Default::default()
    };
    assert_refused(engine.kv.put(charged(put, &account)).await);
    assert_eq!(count(&engine).await, VALUES as i64);
    let deleted = engine.kv.delete_range(Ask::new(delete)).await.unwrap().into_inner();
    assert_eq!((deleted.prev_kvs.len(), count(&engine).await), (VALUES, 0));
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn election_charges_whoever_asks_for_its_leader() {
    let (engine, reads) = stored(64 << 10).await;
    let stop = CancellationToken::new();
    let api = engine.kv.store.clone();
    let kv = Arc::new(api::kv::KvService { store: api.clone() });
    let (cleanup, _clean_up) = Cleanup::new(kv.clone(), stop.clone());
    let service = ElectionService(Arc::new(Concurrency {
        kv,
        leases: Arc::new(LeaseService::new(api.clone(), None)),
        hub: engine.store.hub.clone(),
        replay: Arc::new(Replay::new(
            Arc::new(LogHistory::new(Arc::new(MemLog::default()), api.state.clone())),
            watch::WatchLimits::default(),
        )),
        cleanup,
        stop,
    }));
    let ask = || election::LeaderRequest {
        name: Bytes::from_static(b"part"),
    };
    let leader = service.leader(Ask::new(ask())).await.unwrap().into_inner();
    assert_eq!(leader.kv.unwrap().key, "part/0000");
    let (_, rows) = reads.take();
    assert!(rows <= VALUES + 1, "{rows} rows were read for {VALUES} candidates");
    assert_refused(service.leader(charged(ask(), &account(32 << 10))).await);
    engine.stop().await.unwrap();
}
