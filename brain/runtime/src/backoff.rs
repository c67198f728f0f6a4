//! Delays between attempts, each twice as long as the one before.
//!
//! Pure: the caller sleeps, and adds jitter where several callers would otherwise try at the same time.

use std::time::Duration;

/// The delays between attempts: the first one, then each twice the one before, up to the longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates one whose delays begin with `first` and grow up to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the delay before the next attempt, and doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next.min(self.longest);
        self.next = delay.saturating_mul(2);
        delay
    }

    /// Begins with the first delay again: an attempt succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Changes the longest delay from the next one on.
    pub fn set_longest(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// Returns the delay that follows `earlier` ones since the last reset, for a caller that counts failures.
    #[must_use]
    pub fn after(&self, earlier: u32) -> Duration {
        let factor = 1u32.checked_shl(earlier).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seconds(backoff: &mut Backoff, count: usize) -> Vec<u64> {
        (0..count).map(|_| backoff.next_delay().as_secs()).collect()
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut backoff = Backoff::new(SECOND, 10 * SECOND);
        assert_eq!(seconds(&mut backoff, 6), [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn delays_begin_again_after_a_reset() {
        let mut backoff = Backoff::new(SECOND, 10 * SECOND);
        assert_eq!(seconds(&mut backoff, 3), [1, 2, 4]);
        backoff.reset();
        assert_eq!(seconds(&mut backoff, 2), [1, 2]);
    }

    #[test]
    fn lower_longest_delay_counts_at_once_and_a_higher_one_lets_delays_grow_further() {
        let mut backoff = Backoff::new(SECOND, 100 * SECOND);
        assert_eq!(seconds(&mut backoff, 4), [1, 2, 4, 8]);
        backoff.set_longest(3 * SECOND);
        assert_eq!(seconds(&mut backoff, 2), [3, 3]);
        backoff.set_longest(100 * SECOND);
        assert_eq!(seconds(&mut backoff, 2), [6, 12]);
    }

    #[test]
    fn counted_delays_are_those_in_turn_however_many_there_were() {
        let mut backoff = Backoff::new(SECOND, 1000 * SECOND);
        for earlier in 0..20 {
            assert_eq!(backoff.after(earlier), backoff.next_delay(), "{earlier}");
        }
        for earlier in [31, 32, u32::MAX] {
            assert_eq!(backoff.after(earlier), 1000 * SECOND, "{earlier}");
        }
    }

    #[test]
    fn endless_growth_is_safe() {
        let mut backoff = Backoff::new(SECOND, Duration::MAX);
        for _ in 0..100 {
            backoff.next_delay();
        }
        assert_eq!(backoff.next_delay(), Duration::MAX);
    }
}
