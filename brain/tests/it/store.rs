//! The engine over every pair of log and rows, against the model: through flushes, compactions, restarts and faults.

use brain::log::frame::is_barrier;
use brain::log::{Fault, Faulty, FileLog, Log, MemLog, Options as LogOptions};
use brain::rows::Rows;
use brain::rows::fjall::{FjallRows, Options as RowsOptions};
use brain::rows::mem::MemRows;
use tokio::task::JoinSet;

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

/// Every n-th append gets lost, or is done and not answered: nobody notices.
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

/// Killed while appends fail in every way: what was acknowledged is there.
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
