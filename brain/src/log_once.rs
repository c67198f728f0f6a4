//! Logs what happens again and again once a minute, with how often it happened.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// When one kind of line was logged last, and how often there was reason to since. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LogOnce(Arc<Mutex<(Option<Instant>, u64)>>);

impl LogOnce {
    /// Counts one more. Where a line is due, answers how often it happened since the last one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn line_is_due_once_a_minute_with_its_count() {
        let log = LogOnce::default();
        assert_eq!((log.due(), log.due(), log.clone().due()), (Some(1), None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((log.due(), log.due()), (Some(3), None));
    }
}
