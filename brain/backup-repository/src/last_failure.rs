//! The failure of a destination, for programs that wait for it to end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time for which requests must have failed, without one that succeeds: the next attempt may succeed.
const MIN_DURATION: Duration = Duration::from_secs(15);
/// The time for which requests must have waited, without an answer to any of them. It is shorter than their timeout, because a destination
/// that answers nothing is a failure before the second of them has ended.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Maximum length of a text, in bytes. An answer of a store may be a whole page, and has details of the request at its end.
const MAX_TEXT_BYTES: usize = 512;

/// The failure of the requests to a destination. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastFailure(Arc<Mutex<Requests>>);

#[derive(Debug, Default)]
struct Requests {
    failure: Option<Failure>,
    /// Requests that wait for their answer.
    waiting: usize,
    /// Since when requests have waited or timed out, without an answer to any of them, and without one that the destination took more of.
    unanswered_since: Option<Instant>,
}

#[derive(Debug)]
struct Failure {
    first: Instant,
    last: Instant,
    text: String,
}

impl LastFailure {
    /// Returns why requests failed again and again for 15 seconds or more, or that none was answered for 30; `None` if one has succeeded
    /// since.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        let requests = self.lock();
        let failure = requests.failure.as_ref();
        let failure = failure.filter(|failure| failure.last - failure.first >= MIN_DURATION);
        failure.map(|failure| failure.text.clone()).or_else(|| {
            let is_silent = requests.unanswered_since?.elapsed() >= MAX_SILENCE;
            is_silent.then(|| format!("no request was answered for {} s or more", MAX_SILENCE.as_secs()))
        })
    }

    /// Records a request that waits for its answer until the result is dropped.
    pub(crate) fn waits(&self) -> WaitingRequest {
        let mut requests = self.lock();
        requests.waiting += 1;
        requests.unanswered_since.get_or_insert_with(Instant::now);
        WaitingRequest {
            requests: self.clone(),
            has_timed_out: false,
        }
    }

    /// Records that the destination takes more of a request.
    pub(crate) fn progressed(&self) {
        let mut requests = self.lock();
        if requests.waiting > 0 {
            requests.unanswered_since = Some(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, text: &str) {
        let mut requests = self.lock();
        let last = Instant::now();
        let first = requests.failure.as_ref().map_or(last, |failure| failure.first);
        let text = shortened(text);
        requests.failure = Some(Failure { first, last, text });
    }

    pub(crate) fn ended(&self) {
        self.lock().failure = None;
    }
}

/// A request that waits for its answer.
pub(crate) struct WaitingRequest {
    requests: LastFailure,
    has_timed_out: bool,
}

impl WaitingRequest {
    /// Records that an answer has begun, of whatever status.
    pub(crate) fn answered(self) {
        self.requests.lock().unanswered_since = Some(Instant::now());
    }

    /// Records that there was no answer in time.
    pub(crate) fn timed_out(mut self) {
        self.has_timed_out = true;
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        let mut requests = self.requests.lock();
        requests.waiting -= 1;
        if requests.waiting == 0 && !self.has_timed_out {
            requests.unanswered_since = None;
        }
    }
}

/// Returns the beginning of a text, in one line.
#[must_use]
pub fn shortened(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_end = |at: &usize| line.is_char_boundary(*at);
    let end = (0..=MAX_TEXT_BYTES.min(line.len())).rev().find(is_end);
    line.truncate(end.unwrap_or_default());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failure_counts_once_requests_have_failed_for_a_while() {
        let last = LastFailure::default();
        last.failed("refused");
        assert_eq!(last.get(), None);
        tokio::time::advance(MIN_DURATION).await;
        assert_eq!(last.get(), None, "only one request failed");
        last.failed("reset\n  by peer");
        assert_eq!(last.get().as_deref(), Some("reset by peer"));
        last.ended();
        assert_eq!(last.get(), None);
        let long = "\u{e9}".repeat(MAX_TEXT_BYTES);
        last.failed(&long);
        tokio::time::advance(MIN_DURATION).await;
        last.failed(&long);
        assert_eq!(last.get().map(|text| text.len()), Some(MAX_TEXT_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_an_answer_are_a_failure_after_half_a_minute() {
        let last = LastFailure::default();
        let silent = last.waits();
        tokio::time::advance(MAX_SILENCE - Duration::from_secs(1)).await;
        last.waits().answered();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(last.get(), None, "another request was answered");
        tokio::time::advance(MAX_SILENCE).await;
        assert_eq!(last.get().as_deref(), Some("no request was answered for 30 s or more"));
        silent.timed_out();
        let next = last.waits();
        assert!(last.get().is_some(), "the next one waits, too");
        next.answered();
        assert_eq!(last.get(), None);
        let slow = last.waits();
        tokio::time::advance(MAX_SILENCE).await;
        assert!(last.get().is_some());
        last.progressed();
        assert_eq!(last.get(), None, "the destination takes more of it");
        slow.answered();
        drop(last.waits());
        tokio::time::advance(MAX_SILENCE).await;
        assert_eq!(last.get(), None, "it was given up");
    }
}
