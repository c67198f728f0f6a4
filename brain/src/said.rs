//! Remembers what was said, so that what happens again and again is said once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What was said longer ago is said again.
const AGE: Duration = Duration::from_secs(3_600);

/// Different things that are remembered. Beyond that all are forgotten, and said once more.
const KEPT: usize = 256;

/// What was said, and when. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Said(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Said {
    /// Whether this was not said before, or long ago. From now on it was.
    #[must_use]
    pub fn is_new(&self, what: &str) -> bool {
        let now = Instant::now();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(what).is_some_and(|said| now - *said < AGE) {
            return false;
        }
        if told.len() >= KEPT {
            told.clear();
        }
        told.insert(what.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_said_is_new_after_an_hour_and_memory_is_bounded() {
        let said = Said::default();
        assert!(said.is_new("a") && !said.is_new("a") && said.is_new("b"));
        tokio::time::advance(AGE).await;
        assert!(said.is_new("a") && !said.is_new("a"));
        for n in 0..10 * KEPT {
            assert!(said.is_new(&n.to_string()));
            assert!(said.0.lock().unwrap().len() <= KEPT);
        }
    }
}
