// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

// https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

use std::time::Duration;

pub(crate) const DEFAULT_REGION_BACKOFF: Backoff = Backoff::no_jitter_backoff(2, 500, 10);
pub(crate) const DEFAULT_STORE_BACKOFF: Backoff = Backoff::no_jitter_backoff(2, 1000, 10);
pub(crate) const DEFAULT_LOCK_BACKOFF: Backoff = Backoff::no_jitter_backoff(2, 500, 10);

/// When a request is retried, we can backoff for some time to avoid saturating the network.
///
/// `Backoff` is an object which determines how long to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    current_attempts: u32,
    max_attempts: u32,
    current_delay_ms: u64,
    max_delay_ms: u64,
}

impl Backoff {
    /// Returns the delay period for next retry. If the maximum retry count is hit returns None.
    pub(crate) fn next_delay_duration(&mut self) -> Option<Duration> {
        if self.current_attempts >= self.max_attempts {
            return None;
        }
        self.current_attempts += 1;
        let delay_ms = self.max_delay_ms.min(self.current_delay_ms);
        self.current_delay_ms = delay_ms.saturating_mul(2);
        Some(Duration::from_millis(delay_ms))
    }

    /// True if we should not backoff at all (usually indicates that we should not retry a request).
    pub(crate) fn is_none(&self) -> bool {
        self.max_attempts == 0
    }

    /// Don't wait. Usually indicates that we should not retry a request.
    pub const fn no_backoff() -> Backoff {
        Backoff::no_jitter_backoff(0, 0, 0)
    }

    /// Exponential backoff means that the retry delay should multiply a constant
    /// after each attempt, up to a maximum value. After each attempt, the new retry
    /// delay should be:
    ///
    /// new_delay = min(max_delay, base_delay * 2 ** attempts)
    pub const fn no_jitter_backoff(base_delay_ms: u64, max_delay_ms: u64, max_attempts: u32) -> Backoff {
        Backoff {
            current_attempts: 0,
            max_attempts,
            current_delay_ms: base_delay_ms,
            max_delay_ms,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn delays(mut backoff: Backoff) -> Vec<u128> {
        std::iter::from_fn(|| backoff.next_delay_duration())
            .map(|delay| delay.as_millis())
            .collect()
    }

    #[test]
    fn test_no_jitter_backoff() {
        assert!(delays(Backoff::no_backoff()).is_empty());
        assert_eq!(delays(Backoff::no_jitter_backoff(2, 7, 3)), [2, 4, 7]);
        // However often it doubles.
        let long = delays(Backoff::no_jitter_backoff(2, 7, 100));
        assert!(long[2..].iter().all(|&delay| delay == 7), "{long:?}");
    }
}
