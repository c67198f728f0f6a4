//! The index of keys counts as rows and memtables do, at every revision that it knows, whatever happens to the store.

use std::time::Duration;

use bytes::Bytes;
use engine::log::{Log, MemLog};
use engine::rows::Rows;
use engine::rows::mem::MemRows;
use mvcc::key_index::IndexPhase;
use mvcc::op::Span;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use store::state::StoreState;

use crate::counted::{Counted, Reads};
use crate::engine::Engine;
use crate::script::Run;
use crate::store::{requests, seed};
use crate::wire::{Request, Response, Target as _, pb};

/// Waits until the index is built.
pub(crate) async fn served(state: &StoreState) {
    while state.view().key_index.size().phase != IndexPhase::Serving {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Compares counts of the index with those of rows and memtables: at the newest revision, and at one that is not compacted. Returns the
/// number of counts that the index knew.
pub(crate) async fn compare(state: &StoreState, rng: &mut StdRng) -> usize {
    const BOUNDS: &[&[u8]] = &[
        b"\0",
        b"\0\0",
        b"a",
        b"a\0",
        b"a\0b",
        b"ab",
        b"b",
        b"b/",
        b"b0",
        b"\xff",
        b"\xff\xff",
        b"/registry/pods/",
        b"key-3",
        b"many/",
    ];
    let mut known = 0;
    let view = state.view();
    let bound = |rng: &mut StdRng| Bytes::from_static(BOUNDS[rng.random_range(0..BOUNDS.len())]);
    for newest in [true, false, false] {
        let oldest = view.compacted.max(1);
        let at = if newest {
            view.revision
        } else {
            rng.random_range(oldest..=view.revision)
        };
        let span = Span {
            key: bound(rng),
            end: bound(rng),
        };
        let counted = view.count_in_rows(&span, at).await.unwrap();
        if let Some(indexed) = view.count_in_index(&span, at).await {
            assert_eq!(indexed, counted, "{span:?} at {at}");
            known += 1;
        }
    }
    known
}

async fn agrees(log: impl Log + Clone, rows: impl Rows + Clone, requests: usize) {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut run = Run::new(seed());
    let mut known = 0;
    const STARTS: usize = 8;
    for start in 0..STARTS {
        let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        engine.index_keys();
        // It is built while others write, in some of the starts.
        if start % 2 == 0 {
            served(&engine.store.state).await;
        }
        for _ in 0..requests / STARTS {
            run.go(&mut engine, 1).await;
            known += compare(&engine.store.state, &mut rng).await;
        }
        served(&engine.store.state).await;
        assert!(compare(&engine.store.state, &mut rng).await > 0);
        if start % 3 == 0 {
            engine.kill().await;
        } else {
            engine.stop().await.unwrap();
        }
    }
    assert!(known > requests, "only {known} counts were known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_of_a_store_in_memory_counts_as_rows_do() {
    agrees(MemLog::new(), MemRows::new(), requests(3_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_of_the_embedded_store_counts_as_rows_do() {
    let dir = tempfile::tempdir().unwrap();
    let (log, rows) = crate::store::files(dir.path());
    agrees(log, rows, requests(1_000)).await;
}

/// Deletes everything at once, while others count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_of_many_keys_is_counted_at_once() {
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    engine.index_keys();
    served(&engine.store.state).await;
    let keys = 5_000;
    for n in 0..keys / 100 {
        let puts = (n * 100..(n + 1) * 100).map(|n| {
            let put = pb::PutRequest {
                key: format!("many/{n:06}").into(),
                ..pb::PutRequest::default()
            };
            let request = Some(pb::request_op::Request::RequestPut(put));
            pb::RequestOp { request }
        });
        let txn = pb::TxnRequest {
            success: puts.collect(),
            ..pb::TxnRequest::default()
        };
        engine.call(Request::Txn(txn)).await.unwrap();
    }
    let all = Span {
        key: "many/".into(),
        end: "many0".into(),
    };
    let state = engine.store.state.clone();
    let before = state.view();
    assert_eq!(before.count_in_index(&all, before.revision).await, Some(keys));
    let mut counting = tokio::task::JoinSet::new();
    counting.spawn(async move {
        // Everything, or nothing.
        loop {
            let view = state.view();
            match view.count_in_index(&all, view.revision).await {
                Some(0) => return (before.count_in_index(&all, before.revision).await, all),
                Some(count) => assert_eq!(count, keys),
                None => panic!("the index does not know the newest revision"),
            }
        }
    });
    let delete = pb::DeleteRangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        prev_kv: false,
    };
    engine.call(Request::Delete(delete)).await.unwrap();
    let (old, all) = counting.join_next().await.unwrap().unwrap();
    assert_eq!(old, Some(keys), "a view from before does not change");
    let view = engine.store.state.view();
    assert_eq!(view.count_in_rows(&all, view.revision).await.unwrap(), 0);
    drop(view);
    engine.stop().await.unwrap();
}

async fn range(engine: &mut Engine, range: pb::RangeRequest) -> pb::RangeResponse {
    match engine.call(Request::Range(range)).await.unwrap() {
        Response::Range(response) => response,
        other => panic!("answered by {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn counts_read_no_rows_and_pages_no_more_than_they_show() {
    let rows = Counted::new(MemRows::new(), Reads::default());
    let mut engine = Engine::start(MemLog::new(), rows.clone()).await.unwrap();
    for n in 0..3_000 {
        engine.put(format!("many/{n:05}").as_bytes(), b"a value").await.unwrap();
    }
    engine.index_keys();
    served(&engine.store.state).await;
    // The clock is paused: this lets the timers of the flush fire.
    while engine.store.state.view().memtables.bytes() > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    rows.hooks.take();
    let all = pb::RangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        ..pb::RangeRequest::default()
    };
    let count_only = pb::RangeRequest {
        count_only: true,
        ..all.clone()
    };
    assert_eq!(range(&mut engine, count_only).await.count, 3_000);
    let none = pb::RangeRequest {
        key: "none/".into(),
        range_end: "none0".into(),
        ..all.clone()
    };
    assert_eq!(range(&mut engine, none).await.count, 0);
    assert_eq!(rows.hooks.take(), (0, 0));
    let page = pb::RangeRequest {
        key: "many/01000".into(),
        limit: 10,
        ..all
    };
    let page = range(&mut engine, page).await;
    assert_eq!((page.kvs.len(), page.count, page.more), (10, 2_000, true));
    let (_, read) = rows.hooks.take();
    assert!(read <= 2 * 11, "{read} rows were read for 10 pairs");
    engine.stop().await.unwrap();
}
