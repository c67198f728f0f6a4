//! The rows that a write needs are read before the writer takes it: no request waits for the reads of others, and no
//! row is read that is not needed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::log::MemLog;
use engine::rows::mem::MemRows;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::pausable_rows::{Gates, PausableRows};
use crate::wire::{Answer, Request, Response, Target as _, pb};
use counted::{Counted, counted};

mod counted;
mod history;
mod leases;
mod txns;

async fn start() -> (Engine, Counted) {
    let rows = counted();
    (Engine::start(MemLog::new(), rows.clone()).await.unwrap(), rows)
}

/// Puts `keys` keys, attached to a lease, and waits until none of them is in memory.
async fn fill(engine: &mut Engine, keys: usize, lease: i64) {
    for n in 0..keys {
        let put = pb::PutRequest {
            key: format!("many/{n:05}").into(),
            value: "a value".into(),
            lease,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    flushed(engine).await;
}

/// Waits until no version is in memory.
async fn flushed(engine: &Engine) {
    // The clock is paused: this lets the timers of the flush fire, and no real time passes.
    let flushed = async {
        while engine.store.state.view().memtables.bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), flushed)
        .await
        .expect("rows are flushed in time");
}

async fn delete(engine: &mut Engine, prev_kv: bool) -> pb::DeleteRangeResponse {
    let delete = pb::DeleteRangeRequest {
        key: "many/".into(),
        range_end: "many0".into(),
        prev_kv,
    };
    match engine.call(Request::Delete(delete)).await.unwrap() {
        Response::Delete(answer) => answer,
        other => panic!("answered by {other:?}"),
    }
}

fn text(answer: Answer) -> String {
    answer.map_or_else(|refused| refused.text, |_| "accepted".to_owned())
}

#[tokio::test(start_paused = true)]
async fn writes_do_not_wait_for_rows_that_others_need() {
    let (mut engine, rows) = start().await;
    rows.hooks.is_silent.store(true, Ordering::SeqCst);
    let kv = &engine.kv;
    let put = |key: &'static str| {
        let put = pb::PutRequest {
            key: key.into(),
            ..pb::PutRequest::default()
        };
        pb::kv_server::Kv::put(kv, tonic::Request::new(put))
    };
    let mut silent = Box::pin(put("silent/1"));
    assert!(futures::poll!(&mut silent).is_pending());
    for key in ["new", "new", "other"] {
        let answer = timeout(Duration::from_secs(1), put(key)).await;
        answer.expect("waits for what another one needs").unwrap();
    }
    let refused = silent.await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request timed out");
    // The caller has gone, and its read was cancelled.
    let gone = timeout(Duration::from_millis(10), put("silent/2")).await;
    assert!(gone.is_err());
    assert_eq!(rows.hooks.under_way.load(Ordering::SeqCst), 0);
    rows.hooks.is_silent.store(false, Ordering::SeqCst);
    put("silent/1").await.unwrap();
    engine.put(b"new", b"").await.unwrap();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deletion_of_many_keys_reads_no_values() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 3_000, 0).await;
    rows.hooks.take();
    let answer = delete(&mut engine, false).await;
    let (gets, _, objects) = rows.hooks.take();
    assert_eq!(
        (answer.deleted, gets, objects),
        (3_000, 0, 0),
        "deleted, single reads, values"
    );
    // Watchers that want them read them.
    let revision = answer.header.unwrap().revision;
    let history = engine.history(revision).await;
    let prev = history[0]
        .events
        .iter()
        .map(|event| event.prev_kv.as_ref().unwrap().value.clone());
    assert!(prev.into_iter().all(|value| value == "a value"));
    fill(&mut engine, 1_500, 0).await;
    let answer = delete(&mut engine, true).await;
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (1_500, 1_500));
    assert!(answer.prev_kvs.iter().all(|kv| kv.value == "a value"));
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn acknowledged_writes_are_answered_while_the_flush_is_stuck() {
    let gates = PausableRows::new(MemRows::new(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), gates.clone()).await.unwrap();
    gates.hooks.change.hold();
    // Each fills a memtable; all of them together are no more than may be in memory.
    for n in 0..12 {
        let answer = timeout(Duration::from_secs(1), engine.put(b"key", &[b'v'; 17 << 10])).await;
        answer.unwrap_or_else(|_| panic!("put {n} is not answered")).unwrap();
    }
    gates.hooks.change.release();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_reads_do_not_keep_others_waiting() {
    let (mut engine, rows) = start().await;
    fill(&mut engine, 1, 0).await;
    rows.hooks.is_silent.store(true, Ordering::SeqCst);
    let kv = &engine.kv;
    let put = |key: String| {
        let put = pb::PutRequest {
            key: key.into(),
            ..pb::PutRequest::default()
        };
        pb::kv_server::Kv::put(kv, tonic::Request::new(put))
    };
    let mut silent = futures::future::join_all((0..1_100).map(|n| put(format!("silent/{n}"))));
    assert!(futures::poll!(&mut silent).is_pending());
    let healthy = timeout(Duration::from_secs(1), put("many/00000".to_owned()));
    tokio::select! {
        answer = healthy => drop(answer.expect("waits for what others read").unwrap()),
        _ = &mut silent => panic!("silent rows answered"),
    }
    drop(silent);
    rows.hooks.is_silent.store(false, Ordering::SeqCst);
    engine.stop().await.unwrap();
}
