//! kill -9 of a process that appends: every acknowledged append is found afterwards.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

/// Set for the child: the directory it appends in.
const CHILD_DIR_VARIABLE: &str = "BRAIN_LOG_CRASH_DIR";

/// Not a test of its own: the process that is killed. It prints each slot that was acknowledged.
#[tokio::test]
async fn child_appends_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR_VARIABLE) else {
        return;
    };
    let log = open_small(Path::new(&dir));
    let mut next = read_all(&log, 0).await.last().map_or(1, |(slot, _)| slot + 1);
    loop {
        let appends = (next..next + 5).map(|slot| log.append(Slot(slot), record(slot, 0, 90)));
        for answer in futures::future::join_all(appends).await {
            answer.unwrap();
        }
        next += 5;
        let mut out = std::io::stderr().lock();
        writeln!(out, "acknowledged {}", next - 1).unwrap();
    }
}

#[tokio::test]
async fn acknowledged_records_survive_kill_9() {
    let dir = scratch();
    let mut acknowledged = 0;
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_appends_until_it_is_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD_DIR_VARIABLE, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in 0..=round * 3 {
            let line = lines.next().expect("the child ended by itself").unwrap();
            acknowledged = line.strip_prefix("acknowledged ").expect(&line).parse().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            if let Some(Ok(more)) = line.strip_prefix("acknowledged ").map(str::parse) {
                acknowledged = more;
            }
        }
        let log = open_small(dir.path());
        let found = read_all(&log, 0).await;
        assert!(
            found.len() as u64 >= acknowledged,
            "{} records of {acknowledged}",
            found.len()
        );
        for (n, (slot, bytes)) in found.iter().enumerate() {
            assert_eq!((*slot, bytes), (n as u64 + 1, &record(*slot, 0, 90)));
        }
    }
    assert!(acknowledged > 100);
}
