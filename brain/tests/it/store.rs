//! The engine over every pair of log and rows, against the model: through flushes, compactions, restarts and faults.

use brain::log::frame::is_barrier;
use brain::log::{Fault, Faulty, FileLog, Log, MemLog, Options as LogOptions};
use brain::rows::Rows;
use brain::rows::fjall::{FjallRows, Options as RowsOptions};
use brain::rows::mem::MemRows;
use tokio::task::JoinSet;

use crate::cut::CutRows;
use crate::engine::Engine;
use crate::script::run;

/// A seed that a failure names. `SEED` chooses another one.
fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    eprintln!("SEED={seed}");
    seed
}

/// `REQUESTS` makes scripts longer.
fn requests(default: usize) -> usize {
    std::env::var("REQUESTS").map_or(default, |text| text.parse().unwrap())
}

fn files(dir: &std::path::Path) -> (FileLog, FjallRows) {
    let log = FileLog::open(&dir.join("log"), LogOptions::default()).unwrap();
    let rows = FjallRows::open(&dir.join("rows"), RowsOptions::default()).unwrap();
    (log, rows)
}

async fn agrees_with_the_model<L: Log, R: Rows>(log: L, rows: R, requests: usize) {
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
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

/// Late attempts of an append: more than a writer makes until its successor is there.
const ATTEMPTS: usize = 12;

#[tokio::test(start_paused = true)]
async fn a_deposed_writer_commits_and_acknowledges_nothing() {
    let (log, rows) = (Faulty::new(MemLog::keeping(is_barrier)), MemRows::new());
    let mut old = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let revision = old.puts(20).await;
    // Its next append is held back until a successor has written, flushed, compacted and destroyed.
    (0..ATTEMPTS).for_each(|_| log.fail_next(Fault::Late));
    let mut late = JoinSet::new();
    late.spawn(async move {
        let outcome = old.put(b"late", b"").await;
        (old, outcome)
    });
    while log.held() == 0 {
        tokio::task::yield_now().await;
    }
    let mut new = Engine::start(log.inner().clone(), rows.clone()).await.unwrap();
    new.puts(200).await;
    new.compact().await;
    assert!(log.inner().watermark().await.unwrap().0 > 30, "nothing was destroyed");
    for (slot, answer) in log.land_late(true).await {
        assert!(answer.is_err(), "a late append took slot {slot}");
    }
    let (old, outcome) = late.join_next().await.unwrap().unwrap();
    assert!(outcome.is_err(), "a deposed writer acknowledged {outcome:?}");
    assert_eq!(
        old.store.state.view().revision,
        revision,
        "a deposed writer showed something"
    );
    assert_eq!(new.mod_revision(b"late").await, None);
    new.stop().await.unwrap();
    let mut again = Engine::start(log.inner().clone(), rows).await.unwrap();
    assert_eq!(again.mod_revision(b"late").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_revisions_are_read_right_after_a_flush_that_was_cut_short() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let mut first = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let old = first.put(b"a", b"small").await.unwrap();
    first.stop().await.unwrap();

    // The fence of the new epoch and the first step of the flush, which the large value fills.
    let cut = CutRows::after(2, rows.clone());
    let mut second = Engine::start(log.clone(), cut).await.unwrap();
    let new = second.put(b"a", &vec![7; 1 << 20]).await.unwrap();
    second.stop().await.unwrap_err();

    let mut third = Engine::start(log, rows).await.unwrap();
    assert_eq!(third.mod_revision_at(b"a", old).await, Some(old));
    assert_eq!(third.mod_revision(b"a").await, Some(new));
}
