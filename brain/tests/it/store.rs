//! The engine over every pair of log and rows, against the model: through flushes, compactions, restarts and faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::watch::PrevKv;
use engine::hooked::{HookedRows, RowsHooks};
use engine::log::frame::is_barrier;
use engine::log::{Fault, Faulty, Log, MemLog};
use engine::rows::mem::MemRows;
use engine::rows::{RowChange, Rows, RowsError};
use engine_local::log::{FileLog, FileLogOptions};
use engine_local::rows::{LsmOptions, LsmRows};
use etcd_types::pb::etcdserverpb::kv_server::Kv as _;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use crate::engine::Engine;
use crate::failing_rows::failing_after;
use crate::script::run;
use crate::wire::{Request, Target, pb};

/// A seed that a failure names. `SEED` chooses another one.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    eprintln!("SEED={seed}");
    seed
}

/// `REQUESTS` makes scripts longer.
pub(crate) fn requests(default: usize) -> usize {
    std::env::var("REQUESTS").map_or(default, |text| text.parse().unwrap())
}

pub(crate) fn files(dir: &std::path::Path) -> (FileLog, LsmRows) {
    let log = FileLog::open(&dir.join("log"), FileLogOptions::default()).unwrap();
    let rows = LsmRows::open(&dir.join("rows"), LsmOptions::default()).unwrap();
    (log, rows)
}

pub(crate) async fn agrees_with_the_model(log: impl Log + Clone, rows: impl Rows + Clone, requests: usize) {
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    engine.index_keys();
    let (report, model) = run(seed(), requests, &mut engine).await;
    assert!(
        report.last_revision > 100 && report.refused.len() > 5,
        "too little happened: {report:?}"
    );
    engine.check(&model).await;
    engine.stop().await.unwrap();
    let mut again = Engine::start(log, rows).await.unwrap();
    again.check(&model).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_in_memory_agrees_with_the_model() {
    agrees_with_the_model(MemLog::new(), MemRows::new(), requests(4_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_engine_agrees_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let (log, rows) = files(dir.path());
    agrees_with_the_model(log, rows, requests(2_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_over_a_faulty_log_agrees_with_the_model() {
    for one_in in [2, 7] {
        let log = Faulty::seeded(MemLog::new(), seed() + u64::from(one_in), one_in);
        agrees_with_the_model(log, MemRows::new(), requests(600)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_comes_back_with_everything_it_acknowledged() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let mut revision = 1;
    for round in 0..8 {
        let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        assert_eq!(engine.store.state.view().revision, revision, "round {round}");
        if round % 3 == 2 {
            engine.compact().await;
        }
        revision = engine.puts(200).await;
        engine.kill().await;
        let mut again = Engine::start(log.clone(), rows.clone()).await.unwrap();
        for n in 0..17 {
            let found = again.mod_revision(format!("key-{n}").as_bytes()).await;
            assert!(
                found > Some(revision - 17 - 17),
                "round {round}: key-{n} is at {found:?}, the last put was {revision}"
            );
        }
        again.kill().await;
    }
}

#[tokio::test]
async fn history_reads_superseded_versions_many_at_once() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let last = engine.puts(500).await;
    engine.stop().await.unwrap();
    let engine = Engine::start(log, rows.clone()).await.unwrap();
    let mut gets = rows.gets();
    for (prev_kv, superseded, most) in [(PrevKv::Omitted, 0, 0), (PrevKv::Included, 500 - 17, 3)] {
        let read = engine.store.history.read(2, usize::MAX, prev_kv).await.unwrap();
        assert_eq!(read.last().unwrap().revision, last);
        let found = read.iter().flat_map(|committed| &committed.events);
        assert_eq!(found.filter(|event| event.prev_kv.is_some()).count(), superseded);
        let asked = rows.gets() - gets;
        assert!(asked <= most, "{asked} requests for {superseded} superseded versions");
        gets += asked;
    }
    engine.stop().await.unwrap();
}

/// A stream of all keys whose first message was read.
async fn streamed(engine: &Engine) -> BoxStream<'static, Result<pb::RangeStreamResponse, Status>> {
    let all = pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..Default::default()
    };
    let mut stream = engine
        .kv
        .range_stream(tonic::Request::new(all))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        stream.next().await.unwrap().unwrap().range_response.unwrap().kvs.len(),
        10
    );
    stream.boxed()
}

#[tokio::test]
async fn a_range_stream_that_nobody_reads_holds_no_view() {
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    for n in 0..200 {
        engine.put(format!("key-{n:03}").as_bytes(), b"old").await.unwrap();
    }
    let (slow, late) = (streamed(&engine).await, streamed(&engine).await);
    let held = Arc::downgrade(&engine.store.state.view());
    let revision = engine.store.state.view().revision;
    for n in 0..200 {
        engine.put(format!("key-{n:03}").as_bytes(), b"new").await.unwrap();
    }
    assert!(held.upgrade().is_none(), "a stream holds a view");
    let rest: Vec<_> = slow
        .map(|message| message.unwrap().range_response.unwrap())
        .collect()
        .await;
    let kvs: Vec<_> = rest.iter().flat_map(|response| &response.kvs).collect();
    assert!(kvs.len() == 190 && kvs.iter().all(|kv| kv.value == "old"));
    let last = rest.last().unwrap();
    assert_eq!((last.count, last.header.unwrap().revision), (200, revision));
    engine.compact().await;
    let ended = late.map(|message| message.map(|_| ()).map_err(|status| status.message().to_owned()));
    let ended: Vec<_> = ended.collect().await;
    assert_eq!(
        ended,
        [Err("etcdserver: mvcc: required revision has been compacted".to_owned())]
    );
    engine.stop().await.unwrap();
}

/// Puts this many keys, deletes them in one revision, and waits until they are gone.
async fn everything_is_deleted_at_once(engine: &mut Engine, keys: usize) {
    for n in 0..keys {
        engine.put(format!("all/{n}").as_bytes(), b"value").await.unwrap();
    }
    let delete = pb::DeleteRangeRequest {
        key: "all/".into(),
        range_end: "all0".into(),
        ..Default::default()
    };
    engine.call(Request::Delete(delete)).await.unwrap();
    engine.compact().await;
}

#[tokio::test(start_paused = true)]
async fn a_compaction_behind_a_deletion_of_any_size_ends() {
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    // around the size of the steps in which rows are deleted
    for keys in [249, 250, 251, 499, 500, 501, 1_000] {
        everything_is_deleted_at_once(&mut engine, keys).await;
    }
    engine.stop().await.unwrap();
}

/// A medium that is full whenever a test says so.
#[derive(Clone, Default)]
struct Full(Arc<AtomicBool>);

impl RowsHooks for Full {
    async fn before_apply(&self, _: &[RowChange]) -> Result<(), RowsError> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(RowsError::Full(anyhow::anyhow!("on command"))),
            false => Ok(()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_space_for_rows_stops_and_loses_nothing() {
    let (log, rows) = (MemLog::new(), HookedRows::new(MemRows::new(), Full::default()));
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    engine.puts(20).await;
    rows.hooks.0.store(true, Ordering::SeqCst);
    let mut acknowledged = 0;
    // Writes until no more memtables can be handed to the flush.
    while let Ok(revision) = engine.put(b"a", b"value").await {
        acknowledged = revision;
    }
    assert!(acknowledged > 200, "only {acknowledged} writes");
    timeout(Duration::from_secs(5), engine.stop()).await.unwrap().unwrap();
    rows.hooks.0.store(false, Ordering::SeqCst);
    let mut again = Engine::start(log, rows).await.unwrap();
    // A write that was not acknowledged may be found, too.
    let found = again.mod_revision(b"a").await;
    assert!(found >= Some(acknowledged), "{found:?} instead of {acknowledged}");
    again.stop().await.unwrap();
}

/// Every n-th append is lost, or done and not answered; no client notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_of_whose_appends_every_nth_fails_agrees_with_the_model() {
    for fault in [Fault::Lost, Fault::Unanswered, Fault::Unavailable] {
        for n in [2, 3, 7] {
            let log = Faulty::new(MemLog::new());
            (1..=800).for_each(|time| log.fail_nth(time * n, fault));
            agrees_with_the_model(log.clone(), MemRows::new(), requests(500)).await;
            assert!(log.appends() > 200, "few appends");
        }
    }
}

/// Killed while appends fail in every way: acknowledged writes are found after the restart.
#[tokio::test(start_paused = true)]
async fn a_killed_engine_over_a_faulty_log_comes_back_with_everything_it_acknowledged() {
    let seed = seed();
    let (log, rows) = (Faulty::seeded(MemLog::keeping(is_barrier), seed, 3), MemRows::new());
    let mut acknowledged = 1;
    for round in 0..20 {
        let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        let revision = engine.store.state.view().revision;
        assert!(
            revision >= acknowledged,
            "seed {seed}, round {round}: {revision} of {acknowledged} are left"
        );
        if round % 3 == 2 {
            engine.compact().await;
        }
        acknowledged = engine.puts(40).await;
        let mut under_way = JoinSet::new();
        let last = under_way.spawn(async move {
            let outcome = engine.put(b"last", b"").await;
            (engine, outcome)
        });
        let before = log.appends();
        while log.appends() == before && !last.is_finished() {
            tokio::task::yield_now().await;
        }
        under_way.shutdown().await;
    }
    assert!(acknowledged > 800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_revisions_are_read_right_after_a_flush_that_was_cut_short() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let mut first = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let old = first.put(b"a", b"small").await.unwrap();
    first.stop().await.unwrap();

    // The fence of the new epoch and the first step of the flush, which the large value fills.
    let cut = failing_after(2, rows.clone());
    let mut second = Engine::start(log.clone(), cut).await.unwrap();
    let new = second.put(b"a", &vec![7; 1 << 20]).await.unwrap();
    second.put(b"b", &vec![7; 1 << 20]).await.unwrap();
    second.stop().await.unwrap_err();

    let mut third = Engine::start(log, rows).await.unwrap();
    assert_eq!(third.mod_revision_at(b"a", old).await, Some(old));
    assert_eq!(third.mod_revision(b"a").await, Some(new));
}
