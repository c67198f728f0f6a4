//! A process that applies batches is killed; what comes back is a prefix that holds all it had synced.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{History, LsmRows, small};
use engine::rows::{Rows, laws};

const CHILD_DIR_VARIABLE: &str = "KUBEBRAIN_TEST_ROWS_CRASH_DIR";
const MAX_VALUE_VARIABLE: &str = "KUBEBRAIN_TEST_ROWS_CRASH_MAX_VALUE";
const SEED: u64 = 7;

fn history() -> History {
    let mut history = History::new(SEED);
    if let Ok(max) = std::env::var(MAX_VALUE_VARIABLE) {
        history.max_value = max.parse().unwrap();
    }
    history
}

/// Not a test by itself: the process that is killed. Prints each batch that `sync` covered.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR_VARIABLE) else {
        return;
    };
    let rows = LsmRows::open(Path::new(&dir), small()).unwrap();
    let history = history();
    let mut batch = History::batch_of(rows.fence().await.unwrap().as_ref());
    loop {
        batch += 1;
        history.apply(&rows, batch).await.unwrap();
        if batch.is_multiple_of(16) {
            rows.sync().await.unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "synced {batch}").unwrap();
            out.flush().unwrap();
        }
    }
}

#[tokio::test]
async fn after_a_kill_a_prefix_comes_back_that_holds_what_was_synced() {
    rounds(&history(), (1..=6).map(|round| 40 * round)).await;
}

/// Many tables, and merges under way.
#[tokio::test]
#[ignore = "long, writes 800 MB: make test-long"]
async fn after_a_kill_tables_of_a_prefix_come_back() {
    let mut history = history();
    history.max_value = 64 << 10;
    rounds(&history, [100, 350, 300, 20, 700, 30, 10, 400, 800, 5].into_iter()).await;
}

async fn rounds(history: &History, batches: impl Iterator<Item = u64>) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("rows");
    let model = engine::rows::mem::MemRows::new();
    let mut at_least = 0;
    for batches in batches {
        let synced = run_and_kill(&dir, history.max_value, at_least + batches);
        let rows = LsmRows::open(&dir, small()).unwrap();
        let batch = History::batch_of(rows.fence().await.unwrap().as_ref());
        assert!(batch >= synced, "batch {batch} came back, {synced} was synced");
        for batch in at_least + 1..=batch {
            history.apply(&model, batch).await.unwrap();
        }
        let wanted = laws::content(&model).await;
        assert!(
            laws::content(&rows).await == wanted,
            "the rows are not those of batch {batch}"
        );
        at_least = batch;
    }
}

/// Kills the child once it has synced batch `until`; returns the last batch that it reported as synced.
fn run_and_kill(dir: &Path, max_value: usize, until: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rows::tests::crash::child_that_is_killed", "--nocapture"])
        .env(CHILD_DIR_VARIABLE, dir)
        .env(MAX_VALUE_VARIABLE, max_value.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let number = |line: String| {
        line.strip_prefix("synced ")
            .map(|number| number.parse::<u64>().unwrap())
    };
    let mut synced = lines
        .by_ref()
        .filter_map(number)
        .find(|&batch| batch >= until)
        .expect("the child ended by itself");
    child.kill().unwrap();
    if let Some(last) = lines.filter_map(number).last() {
        synced = last;
    }
    assert!(!child.wait().unwrap().success());
    synced
}
