//! The failure of a destination, for programs that wait for it to end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time for which requests must have failed, without one that succeeds: the next attempt may succeed.
const MIN_DURATION: Duration = Duration::from_secs(15);
/// Maximum length of a text, in bytes. An answer of a store may be a whole page, and has details of the request at its end.
const MAX_TEXT_BYTES: usize = 512;

/// The failure of the requests to a destination. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastFailure(Arc<Mutex<Option<Failure>>>);

#[derive(Debug)]
struct Failure {
    first: Instant,
    last: Instant,
    text: String,
}

impl LastFailure {
    /// Returns why requests failed again and again for 15 seconds or more; `None` if one has succeeded since.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = failure
            .as_ref()
            .filter(|failure| failure.last - failure.first >= MIN_DURATION);
        failure.map(|failure| failure.text.clone())
    }

    pub(crate) fn failed(&self, text: &str) {
        let mut failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Instant::now();
        let first = failure.as_ref().map_or(last, |failure| failure.first);
        let text = shortened(text);
        *failure = Some(Failure { first, last, text });
    }

    pub(crate) fn ended(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
}
