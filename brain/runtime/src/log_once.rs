//! Decides whether a repeated event is logged again: by a fixed interval, by message, or less and less often.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The shortest time between two lines of [`LogOnce`].
const INTERVAL: Duration = Duration::from_secs(60);

/// The time of the last log line of one kind, and the number of occurrences since. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LogOnce(Arc<Mutex<(Option<Instant>, u64)>>);

impl LogOnce {
    /// Counts one occurrence. If a line is due, returns the number of occurrences since the last line.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, count) = &mut *state;
        *count += 1;
        if last.is_some_and(|last| now - last < INTERVAL) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

/// A message may be logged again after this time.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(3_600);

/// Most messages that are remembered. One more clears the memory, and each may be logged again.
const MAX_MESSAGES: usize = 256;

/// Messages that were logged, with the time. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogOncePerMessage(Arc<Mutex<BTreeMap<String, Instant>>>);

impl LogOncePerMessage {
    /// Returns true if the message is due: it was never logged, or more than an hour ago. Records it as logged.
    #[must_use]
    pub fn is_due(&self, message: &str) -> bool {
        let now = Instant::now();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(message).is_some_and(|last| now - *last < MESSAGE_INTERVAL) {
            return false;
        }
        if logged.len() >= MAX_MESSAGES {
            logged.clear();
        }
        logged.insert(message.to_owned(), now);
        true
    }
}

/// Most keys that [`LogOncePerKey`] remembers. One more makes it forget all, and each may be logged again.
const MAX_KEYS: usize = 1024;

/// The time of the last log line about each key, and the number of occurrences since. Over all keys, lines are limited as by
/// [`LogLimit`]. Clones share it.
#[derive(Debug, Clone)]
pub struct LogOncePerKey<K> {
    keys: Arc<Mutex<HashMap<K, (Instant, u64)>>>,
    limit: LogLimit,
}

/// A log line about a key that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The occurrences of the key since its last line.
    pub count: u64,
    /// The lines about any keys that were left out since the last line.
    pub skipped: u64,
}

impl<K> Default for LogOncePerKey<K> {
    fn default() -> Self {
        Self {
            keys: Arc::default(),
            limit: LogLimit::default(),
        }
    }
}

impl<K: Eq + Hash> LogOncePerKey<K> {
    /// Counts one occurrence of a key. Returns the numbers for its line, if one is due.
    #[must_use]
    pub fn due(&self, key: K) -> Option<Due> {
        let now = Instant::now();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= MAX_KEYS && !keys.contains_key(&key) {
            keys.retain(|_, (last, _)| now - *last < INTERVAL);
            if keys.len() >= MAX_KEYS {
                keys.clear();
            }
        }
        let known = keys.get_mut(&key);
        if let Some((last, count)) = known {
            *count += 1;
            if now - *last < INTERVAL {
                return None;
            }
            let count = std::mem::take(count);
            *last = now;
            return self.limit.admit().map(|skipped| Due { count, skipped });
        }
        keys.insert(key, (now, 0));
        self.limit.admit().map(|skipped| Due { count: 1, skipped })
    }
}

/// Decides when a continuing failure is logged: after a pause that doubles with each line.
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

/// Lines of one kind that [`LogLimit`] lets pass in [`LIMIT_INTERVAL`].
const LIMIT: u32 = 20;

/// The time in which that many lines pass.
const LIMIT_INTERVAL: Duration = Duration::from_secs(10);

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
            Some((began, passed)) if now - began < LIMIT_INTERVAL => (began, passed),
            _ => (now, 0),
        };
        if passed >= LIMIT {
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
        assert_eq!(passed, LIMIT as usize);
        tokio::time::advance(LIMIT_INTERVAL).await;
        assert_eq!((log.admit(), log.admit()), (Some(980), Some(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn line_is_due_once_a_minute_with_its_count() {
        let log = LogOnce::default();
        assert_eq!((log.due(), log.due(), log.clone().due()), (Some(1), None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((log.due(), log.due()), (Some(3), None));
    }

    #[tokio::test(start_paused = true)]
    async fn message_is_due_again_after_an_hour_and_memory_is_bounded() {
        let log = LogOncePerMessage::default();
        assert!(log.is_due("a") && !log.is_due("a") && log.is_due("b"));
        tokio::time::advance(MESSAGE_INTERVAL).await;
        assert!(log.is_due("a") && !log.is_due("a"));
        for n in 0..10 * MAX_MESSAGES {
            assert!(log.is_due(&n.to_string()));
            assert!(log.0.lock().unwrap().len() <= MAX_MESSAGES);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn line_is_due_once_a_minute_for_each_key_and_all_are_limited() {
        let log = LogOncePerKey::default();
        let due = |count, skipped| Some(Due { count, skipped });
        assert_eq!((log.due(1), log.due(1), log.due(2)), (due(1, 0), None, due(1, 0)));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((log.due(1), log.due(1)), (due(2, 0), None));
        let passed = (10..10 * MAX_KEYS).filter(|key| log.due(*key).is_some()).count();
        assert_eq!(passed, LIMIT as usize - 1);
        assert!(log.keys.lock().unwrap().len() <= MAX_KEYS);
        tokio::time::advance(LIMIT_INTERVAL).await;
        assert!(log.due(0).is_some_and(|due| due.skipped > 9_000));
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
}
