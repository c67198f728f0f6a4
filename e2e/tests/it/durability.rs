//! A brain that ends at any instant, loses its power or has flipped bits in its files: it loses nothing that was acknowledged, and shows
//! nothing that was not written.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Duration;

use programs::server::{Program, Server};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::harness::deadline;
use written::Written;

mod damage;
mod disk;
mod power;
mod restoring;
mod sync;
mod written;

/// Set to another number of ends for a longer run.
const KILLS_VARIABLE: &str = "KUBEBRAIN_KILLS";
/// Set this to make a run happen again.
const SEED_VARIABLE: &str = "KUBEBRAIN_SEED";
/// Names the point at which a brain with debug assertions ends itself.
const KILL_AT_VARIABLE: &str = "KUBEBRAIN_KILL_AT";

/// Named points that are passed while clients write, and how often at most before the end.
const KILL_POINTS: [(&str, u32); 18] = [
    ("log-unwritten", 300),
    ("log-written", 300),
    ("log-synced", 300),
    ("segment-made", 1),
    ("log-segment", 1),
    ("control-page", 8),
    ("batch-durable", 300),
    ("batch-published", 300),
    ("rows-unwritten", 4),
    ("rows-written", 4),
    ("tables-written", 2),
    ("tables-installed", 2),
    ("versions-deleted", 2),
    ("rows-synced", 2),
    ("watermark-raised", 2),
    ("slots-destroyed", 2),
    ("tables-unmerged", 1),
    ("tables-merged", 1),
];

/// Named points that are passed before the first start is over.
const FIRST_START_KILL_POINTS: [&str; 9] = [
    "control-page:1",
    "control-page:2",
    "tables-written:1",
    "tables-installed:1",
    "rows-made:1",
    "identity-written:1",
    // the log has its name there, and no record yet
    "identity-written:2",
    "log-unwritten:1",
    "log-written:1",
];

/// The number of SIGKILL.
const SIGKILL: i32 = 9;
/// For a load to come to its end.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Messages that brains may log after such an end.
const TORN_MESSAGES: [&str; 2] = [
    "truncated an incomplete, unacknowledged batch",
    "one of two pages is torn",
];

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")))
}

fn seeded() -> StdRng {
    let seed = number(SEED_VARIABLE).unwrap_or(4_711);
    eprintln!("{SEED_VARIABLE}={seed}");
    StdRng::seed_from_u64(seed)
}

#[track_caller]
fn start(program: &Program, dir: &Path) -> Server {
    let mut server = match Server::start_in(program, dir, &[]) {
        Ok(server) => server,
        Err(error) => panic!("{error:#}"),
    };
    for text in TORN_MESSAGES {
        server = server.expected_logs(text);
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn brain_that_is_killed_at_random_loses_and_invents_nothing() {
    let _deadline = deadline();
    let kills = number(KILLS_VARIABLE).unwrap_or(6);
    let (program, home, mut random) = (Program::kubebrain().unwrap(), TempDir::new().unwrap(), seeded());
    let (dir, mut written) = (home.path().join("data"), Written::default());
    for _ in 0..kills {
        let server = start(&program, &dir);
        let acknowledged = random.random_range(20..600);
        let killed = written.write_until(&server, acknowledged).await;
        server.kill().unwrap();
        written.join(killed).await;
        let server = start(&program, &dir);
        written.check(&server).await;
        server.stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brain_that_is_killed_at_a_named_point_loses_and_invents_nothing() {
    let _deadline = deadline();
    let (program, mut random) = (Program::kubebrain().unwrap(), seeded());
    for (point, most) in KILL_POINTS {
        let (home, mut written) = (TempDir::new().unwrap(), Written::default());
        let dir = home.path().join("data");
        // The first start makes the directory.
        start(&program, &dir).stop().unwrap();
        let at = format!("{point}:{}", random.random_range(1..=most));
        match Server::start_with(&program, &dir, (KILL_AT_VARIABLE, &at)) {
            Ok(mut server) => {
                let ended = timeout(LOAD_TIMEOUT, written.write_to_the_end(&server)).await;
                ended.unwrap_or_else(|_| panic!("{at} was not reached"));
                let status = written.has_ended(&mut server).await;
                assert_eq!(
                    status.signal(),
                    Some(SIGKILL),
                    "{at}: {status}, {}",
                    server.last_lines()
                );
            }
            Err(error) => assert_killed(&error, &at),
        }
        let server = start(&program, &dir);
        written.check(&server).await;
        server.stop().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brain_that_is_killed_in_its_first_start_begins_at_the_next() {
    let _deadline = deadline();
    let program = Program::kubebrain().unwrap();
    for at in FIRST_START_KILL_POINTS {
        let home = TempDir::new().unwrap();
        let dir = home.path().join("data");
        let error = Server::start_with(&program, &dir, (KILL_AT_VARIABLE, at)).expect_err(at);
        assert_killed(&error, at);
        let server = start(&program, &dir);
        Written::default().check(&server).await;
        server.stop().unwrap();
    }
}

/// A start ended by the signal, not by an error.
fn assert_killed(error: &anyhow::Error, at: &str) {
    let error = format!("{error:#}");
    assert!(error.contains(&format!("signal: {SIGKILL}")), "{at}: {error}");
}
