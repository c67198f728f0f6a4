//! The time limit of a test: one that hangs ends the whole process, and a list of everything that was running is printed.
//!
//! A thread that hangs cannot be ended, and neither can a thread that waits for it. The process can, and everything it started ends with
//! it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

type DescribeRunning = Box<dyn Fn() -> String + Send>;

static DESCRIPTIONS: Mutex<(u64, BTreeMap<u64, DescribeRunning>)> = Mutex::new((0, BTreeMap::new()));

/// The exit code of a process whose test hung; that of failed tests.
const FAILED_EXIT_CODE: i32 = 101;

/// Ends the process if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "its end tells the thread that waits")] SyncSender<()>);

impl Watchdog {
    /// Begins to count. The test is the one that runs on this thread.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        Self::otherwise(limit, move || {
            let text = format!(
                "\n{test} hangs: it did not finish within {limit:?}. Running processes:\n{}\n",
                running()
            );
            // not by a macro, whose output the test harness keeps to itself
            drop(std::io::stderr().write_all(text.as_bytes())); // if this fails, there is no other way to report it
            std::process::exit(FAILED_EXIT_CODE);
        })
    }

    fn otherwise(limit: Duration, overdue: impl FnOnce() + Send + 'static) -> Self {
        let (ended, is_ended) = sync_channel(0);
        std::thread::spawn(move || {
            if is_ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                overdue();
            }
        });
        Self(ended)
    }
}

/// Something that runs, as long as this is held.
#[derive(Debug)]
pub struct RunningMark(u64);

impl RunningMark {
    /// Will be shown by `describe` when a test hangs.
    #[must_use]
    pub fn describe(describe: impl Fn() -> String + Send + 'static) -> Self {
        let mut running = DESCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        running.0 += 1;
        let id = running.0;
        running.1.insert(id, Box::new(describe));
        Self(id)
    }
}

impl Drop for RunningMark {
    fn drop(&mut self) {
        DESCRIPTIONS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&self.0);
    }
}

fn running() -> String {
    let running = DESCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let described: Vec<_> = running.1.values().map(|describe| describe()).collect();
    described.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_done_in_time_is_overdue() {
        let (tell, told) = sync_channel(2);
        let tell_done = tell.clone();
        let done = Watchdog::otherwise(Duration::from_secs(600), move || tell_done.send("done").unwrap());
        drop(done);
        let _hangs = Watchdog::otherwise(Duration::from_millis(1), move || tell.send("hangs").unwrap());
        // the senders are gone when both threads are
        assert_eq!(told.iter().collect::<Vec<_>>(), ["hangs"]);
    }

    #[test]
    fn what_runs_is_described_until_it_ends() {
        let one = RunningMark::describe(|| "one server".to_owned());
        let other = RunningMark::describe(|| "other server".to_owned());
        drop(other);
        let text = running();
        assert!(text.contains("one server") && !text.contains("other server"), "{text}");
        drop(one);
        assert!(!running().contains("one server"));
    }
}
