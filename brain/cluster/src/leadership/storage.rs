//! Detects that a leader's storage does not answer: a member that renews the lock but cannot append to the log, or cannot read the
//! rows, must not lead; another member may have a better path to storage.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use crate::followers::Followers;
use engine::log::{DynLog, Slot, Unanswered};
use engine::rows::DynRows;
use store::state::StoreState;

/// The least time limit of storage, however short a lease is. A stuck connection costs one attempt of the TiKV client, 2.5 s, and
/// is replaced.
const MIN_STORAGE_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which appends in flight are checked.
const APPEND_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The pause before rows that did not answer are read again.
const ROWS_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The bytes of the log that are read to test whether it can be read.
const LOG_PROBE_BYTES: usize = 1;

/// The time limit of a write of rows, as a multiple of the limit of other calls. TiKV itself needs 10 to 20 s until a region has a
/// new leader, and another member may have no better path to it.
const ROWS_WRITE_TIMEOUT_FACTOR: u32 = 10;

/// Returns the time after which a leader steps down if storage does not answer, given the lease of its lock.
pub(super) fn limit(lease: Duration) -> Duration {
    lease.max(MIN_STORAGE_TIMEOUT)
}

/// Completes when an append or a read of the log, or a read or a write of the rows, exceeds its limit for a lock with this lease;
/// returns which one. `leads` is set once the member leads and has a view of its own.
pub(super) async fn failed(
    state: &StoreState,
    rows: &DynRows,
    leads: &AtomicBool,
    unanswered: &Unanswered,
    followers: Option<&Followers>,
    lease: Duration,
) -> String {
    let limit = limit(lease);
    let overdue = async {
        let mut look = tokio::time::interval(APPEND_CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if let Some((what, age)) = unanswered.overdue(limit) {
                return format!("storage has not answered {what} for {age:.1?}");
            }
        }
    };
    tokio::select! {
    reason = overdue => reason,
    reason = unreadable(state, rows, leads, limit) => reason,
    reason = unwritten(state, followers, limit * ROWS_WRITE_TIMEOUT_FACTOR) => reason,
    }
}

/// Reads the manifest repeatedly, as views read: at their timestamp, so that no flush interferes. A member that begins to lead still has
/// a follower's view, which may be too old to be read: until it leads, it is enough that the rows can be read at all.
async fn unreadable(state: &StoreState, rows: &DynRows, leads: &AtomicBool, limit: Duration) -> String {
    loop {
        let begun = Instant::now();
        let mut why = String::from("no answer");
        let read = async {
            while let Err(error) = state.view().rows.fence().await {
                why = format!("{:#}", anyhow::Error::from(error));
                if !leads.load(Ordering::Relaxed) && rows.fence().await.is_ok() {
                    return;
                }
                tokio::time::sleep(ROWS_RETRY_DELAY).await;
            }
        };
        if tokio::time::timeout(limit, read).await.is_err() {
            return format!("the rows could not be read for {limit:?}: {why}");
        }
        tokio::time::sleep_until(begun + limit / 2).await;
    }
}

/// Completes with the reason when a write of rows has been tried for longer than `limit` while a follower could lead. Acknowledged
/// data is in the log: only memory fills up in the meantime, and the write may still succeed.
async fn unwritten(state: &StoreState, followers: Option<&Followers>, limit: Duration) -> String {
    let Some(followers) = followers else {
        return std::future::pending().await;
    };
    let mut look = tokio::time::interval(APPEND_CHECK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let overdue = state.writing_rows().filter(|age| *age > limit);
        if let Some(age) = overdue
            && followers.identity(None).is_some()
        {
            return format!("the rows have not accepted a write for {age:.1?}");
        }
    }
}

/// Waits until `since` at least, and until log and rows can be read.
pub(super) async fn recovered((log, rows): (DynLog, DynRows), next: Slot, since: Instant, limit: Duration) {
    tokio::time::sleep_until(since).await;
    loop {
        let read = async { log.read(next, LOG_PROBE_BYTES).await.is_ok() && rows.fence().await.is_ok() };
        if tokio::time::timeout(limit, read).await == Ok(true) {
            return;
        }
        tokio::time::sleep(ROWS_RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::log::{MemLog, WatchedLog};
    use engine::rows::mem::MemRows;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn rows_that_take_no_write_are_a_reason_only_while_somebody_follows() {
        let (log, rows): (DynLog, DynRows) = (Arc::new(MemLog::new()), Arc::new(MemRows::new()));
        let replica = store::replica::Replica::load(&log, &rows).await.unwrap();
        let (state, followers) = (replica.state(), Followers::default());
        let limit = MIN_STORAGE_TIMEOUT * ROWS_WRITE_TIMEOUT_FACTOR;
        let mut stuck = std::pin::pin!(unwritten(state, Some(&followers), limit));
        let follower = followers.enter(1, Some("one".to_owned()));
        assert!(
            tokio::time::timeout(2 * limit, &mut stuck).await.is_err(),
            "nothing is written"
        );
        drop(follower);
        let writing = state.write_rows();
        assert!(
            tokio::time::timeout(2 * limit, &mut stuck).await.is_err(),
            "nobody follows"
        );
        drop(writing);
        let _follower = followers.enter(1, Some("one".to_owned()));
        let _writing = state.write_rows();
        assert!(
            tokio::time::timeout(limit, &mut stuck).await.is_err(),
            "it is not over the limit"
        );
        tokio::time::timeout(limit, stuck).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn storage_that_answers_has_not_failed() {
        let unanswered = Unanswered::default();
        let log: DynLog = Arc::new(WatchedLog::new(Arc::new(MemLog::new()), unanswered.clone()));
        let rows: DynRows = Arc::new(MemRows::new());
        let replica = store::replica::Replica::load(&log, &rows).await.unwrap();
        let leads = AtomicBool::new(true);
        let failed = failed(replica.state(), &rows, &leads, &unanswered, None, MIN_STORAGE_TIMEOUT);
        assert!(tokio::time::timeout(100 * MIN_STORAGE_TIMEOUT, failed).await.is_err());
        recovered((log, rows), Slot::FIRST, Instant::now(), MIN_STORAGE_TIMEOUT).await;
    }
}
