//! Bounds of the write path.

use std::time::Duration;

/// Records that are under way at once, however small they are.
const EAGER: usize = 3;

/// Requests that make another one.
pub(super) const FILLED: usize = 64;

/// Bounds of the write path.
#[derive(Debug, Clone)]
pub struct Options {
    /// This member's id.
    pub member: u64,
    /// Records under way at once.
    pub in_flight: usize,
    /// Requests in a batch at most.
    pub batch_requests: usize,
    /// Bytes of requests in a batch at most, the first request excepted.
    pub batch_bytes: usize,
    /// Bytes of recent versions after which they are flushed to rows.
    pub flush_bytes: usize,
    /// The longest that something stays unflushed.
    pub flush_interval: Duration,
    /// Bytes of recent versions at which writers wait for the flush.
    pub recent_bytes: usize,
}

impl Options {
    /// Whether so many requests make another record beside those under way. A few are sent however small they are, more only
    /// well filled: what a record costs is shared by all that is in it, and what waits for one to come back fills the next.
    pub(super) fn is_room(&self, under_way: usize, queued: usize) -> bool {
        under_way < self.in_flight && (under_way < EAGER || queued >= FILLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_filled_records_take_the_last_places() {
        let options = Options {
            member: 1,
            in_flight: 7,
            batch_requests: 1,
            batch_bytes: 1,
            flush_bytes: 1,
            flush_interval: Duration::ZERO,
            recent_bytes: 1,
        };
        assert!((0..EAGER).all(|under_way| options.is_room(under_way, 0)));
        assert!((EAGER..7).all(|under_way| !options.is_room(under_way, FILLED - 1)));
        assert!((EAGER..7).all(|under_way| options.is_room(under_way, FILLED)));
        assert!(!options.is_room(7, usize::MAX));
    }
}
