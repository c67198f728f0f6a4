//! Decides whether a repeated event is logged again: by a fixed interval, for all or for each key, or less and less often.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The shortest time between two lines about one key, if no other is given.
const KEY_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The same for messages that name a reason.
const REASON_LOG_INTERVAL: Duration = Duration::from_secs(3_600);

/// Most keys that [`LogOnce`] remembers. One more makes it forget all, and each may be logged again.
const MAX_KEYS: usize = 1024;

/// The time of the last log line about each key, and the number of occurrences since. Over all keys, lines are limited as by
/// [`LogLimit`]. Without a key, all lines are of one kind. Clones share it.
#[derive(Debug, Clone)]
pub struct LogOnce<K = ()> {
    keys: Arc<Mutex<HashMap<K, (Instant, u64)>>>,
    interval: Duration,
    limit: LogLimit,
}

/// A log line about a key that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueLine {
    /// The occurrences of the key since its last line.
    pub count: u64,
    /// The lines about any keys that were left out since the last line.
    pub skipped: u64,
}

impl<K> Default for LogOnce<K> {
    fn default() -> Self {
        Self::every(KEY_LOG_INTERVAL)
    }
}

impl<K> LogOnce<K> {
    /// Creates one with this time between two lines about one key.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self {
            keys: Arc::default(),
            interval,
            limit: LogLimit::default(),
        }
    }
}

impl LogOnce<String> {
    /// Creates one for messages; a message may be logged again after an hour.
    #[must_use]
    pub fn hourly() -> Self {
        Self::every(REASON_LOG_INTERVAL)
    }
}

impl LogOnce {
    /// Counts one occurrence. If a line is due, returns the number of occurrences since the last line.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.due_for(()).map(|due| due.count)
    }
}

impl<K: Eq + Hash> LogOnce<K> {
    /// Counts one occurrence of a key. Returns the numbers for its line, if one is due.
    #[must_use]
    pub fn due_for(&self, key: K) -> Option<DueLine> {
        let now = Instant::now();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, count)) = keys.get_mut(&key) {
            *count += 1;
            if now - *last < self.interval {
                return None;
            }
            let skipped = self.limit.admit()?;
            *last = now;
            let count = std::mem::take(count);
            return Some(DueLine { count, skipped });
        }
        let skipped = self.limit.admit()?;
        if keys.len() >= MAX_KEYS {
            keys.retain(|_, (last, _)| now - *last < self.interval);
            if keys.len() >= MAX_KEYS {
                keys.clear();
            }
        }
        keys.insert(key, (now, 0));
        Some(DueLine { count: 1, skipped })
    }
}

/// Decides when something that continues is logged: after a pause that may double with each line.
#[derive(Debug)]
pub struct LogBackoff {
    silent_until: Instant,
    backoff: Backoff,
}

impl LogBackoff {
    /// Creates one that is due at once, then after `first`, twice that, and so on up to `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            silent_until: Instant::now(),
            backoff: Backoff::new(first, longest),
        }
    }

    /// Creates one that is due after each interval, the first time at its end: for lines about progress.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self {
            silent_until: Instant::now() + interval,
            backoff: Backoff::new(interval, interval),
        }
    }

    /// Returns true if a line is due, and records it as logged.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.silent_until {
            return false;
        }
        self.silent_until = now + self.backoff.next_delay();
        true
    }
}

/// Lines of one kind that [`LogLimit`] lets pass in [`LINE_LIMIT_INTERVAL`].
const LINES_PER_INTERVAL: u32 = 20;

/// The time in which that many lines pass.
const LINE_LIMIT_INTERVAL: Duration = Duration::from_secs(10);

/// Passes a few lines of one kind in each interval, for lines that each report something different. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LogLimit(Arc<Mutex<LimitState>>);

#[derive(Debug, Default)]
struct LimitState {
    /// When the interval began, and the lines that passed in it.
    interval: Option<(Instant, u32)>,
    /// The lines that did not pass since the last one that did.
    skipped: u64,
}

impl LogLimit {
    /// Returns `None` if the line is one too many, else the number of lines that were left out before it.
    #[must_use]
    pub fn admit(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, passed) = match state.interval {
            Some((began, passed)) if now - began < LINE_LIMIT_INTERVAL => (began, passed),
            _ => (now, 0),
        };
        if passed >= LINES_PER_INTERVAL {
            state.skipped += 1;
            return None;
        }
        state.interval = Some((began, passed + 1));
        Some(std::mem::take(&mut state.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn flood_of_lines_is_cut_and_the_rest_is_counted() {
        let log = LogLimit::default();
        let passed = (0..1_000).filter(|_| log.admit().is_some()).count();
        assert_eq!(passed, LINES_PER_INTERVAL as usize);
        tokio::time::advance(LINE_LIMIT_INTERVAL).await;
        assert_eq!((log.admit(), log.admit()), (Some(980), Some(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn line_is_due_once_a_minute_with_its_count() {
        let log = LogOnce::default();
        assert_eq!((log.due(), log.due(), log.clone().due()), (Some(1), None, None));
        tokio::time::advance(KEY_LOG_INTERVAL).await;
        assert_eq!((log.due(), log.due()), (Some(3), None));
    }

    #[tokio::test(start_paused = true)]
    async fn line_is_due_once_an_interval_for_each_key_and_all_are_limited() {
        let log = LogOnce::default();
        let due = |count, skipped| Some(DueLine { count, skipped });
        assert_eq!(
            (log.due_for(1), log.due_for(1), log.due_for(2)),
            (due(1, 0), None, due(1, 0))
        );
        tokio::time::advance(KEY_LOG_INTERVAL).await;
        assert_eq!((log.due_for(1), log.due_for(1)), (due(2, 0), None));
        let passed = (10..10_010).filter(|key| log.due_for(*key).is_some()).count();
        assert_eq!(passed, LINES_PER_INTERVAL as usize - 1);
        tokio::time::advance(LINE_LIMIT_INTERVAL).await;
        assert_eq!(log.due_for(0), due(1, 10_000 - u64::from(LINES_PER_INTERVAL) + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn line_that_the_limit_left_out_is_due_once_the_limit_permits_it() {
        let log = LogOnce::default();
        for other in 0..LINES_PER_INTERVAL - 1 {
            assert!(log.due_for(other).is_some());
        }
        assert!(log.due_for(LINES_PER_INTERVAL).is_some());
        tokio::time::advance(KEY_LOG_INTERVAL).await;
        for other in 100..100 + LINES_PER_INTERVAL {
            assert!(log.due_for(other).is_some());
        }
        assert_eq!(
            (log.due_for(LINES_PER_INTERVAL), log.due_for(LINES_PER_INTERVAL + 1)),
            (None, None)
        );
        tokio::time::advance(LINE_LIMIT_INTERVAL).await;
        let due = |count, skipped| Some(DueLine { count, skipped });
        assert_eq!(
            (log.due_for(LINES_PER_INTERVAL), log.due_for(LINES_PER_INTERVAL + 1)),
            (due(2, 2), due(1, 0))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn message_is_due_again_after_an_hour_and_memory_is_bounded() {
        let log = LogOnce::hourly();
        let is_due = |message: &str| log.due_for(message.to_owned()).is_some();
        assert!(is_due("a") && !is_due("a") && is_due("b"));
        tokio::time::advance(REASON_LOG_INTERVAL - Duration::from_millis(1)).await;
        assert!(!is_due("a"));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(is_due("a") && !is_due("a"));
        tokio::time::advance(LINE_LIMIT_INTERVAL).await;
        for n in 0..10 * MAX_KEYS {
            tokio::time::advance(LINE_LIMIT_INTERVAL / LINES_PER_INTERVAL).await;
            assert!(is_due(&n.to_string()));
            assert!(log.keys.lock().unwrap().len() <= MAX_KEYS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failure_that_goes_on_is_logged_less_and_less_often() {
        let second = Duration::from_secs(1);
        let mut log = LogBackoff::new(second, 2 * second);
        assert!(log.is_due() && !log.is_due());
        for pause in [second, 2 * second, 2 * second] {
            tokio::time::advance(pause - Duration::from_millis(1)).await;
            assert!(!log.is_due());
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(log.is_due());
        }
    }
    #[tokio::test(start_paused = true)]
    async fn progress_is_due_at_the_end_of_each_interval() {
        let second = Duration::from_secs(1);
        let mut log = LogBackoff::every(second);
        for _ in 0..3 {
            assert!(!log.is_due());
            tokio::time::advance(second).await;
            assert!(log.is_due());
        }
    }
}
