//! Bounds of the write path.

use std::time::Duration;

use crate::flush::CompactionPace;

/// Records that may be in flight at once, however small they are.
const EAGER: usize = 3;

/// Requests that a further record must hold.
pub(super) const MIN_BATCH: usize = 64;

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
    /// Bytes of versions in the active memtable after which it is flushed to rows.
    pub flush_bytes: usize,
    /// The longest that something stays unflushed.
    pub flush_interval: Duration,
    /// Bytes of versions in all memtables at which writers wait for the flush.
    pub memtable_bytes: usize,
    /// Bytes that leases and attached keys take in memory at which no more are accepted.
    pub lease_bytes: usize,
    /// The pace of compactions.
    pub compaction: CompactionPace,
}

impl Options {
    /// Returns true if `queued` requests may form another record while `under_way` records are in flight. The first few records
    /// are sent however small they are, further ones only if they are well filled: all requests in a record share its cost, and
    /// requests that wait for a record to return fill the next one.
    pub(super) fn is_room(&self, under_way: usize, queued: usize) -> bool {
        under_way < self.in_flight && (under_way < EAGER || queued >= MIN_BATCH)
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
            memtable_bytes: 1,
            lease_bytes: 1,
            compaction: CompactionPace::default(),
        };
        assert!((0..EAGER).all(|under_way| options.is_room(under_way, 0)));
        assert!((EAGER..7).all(|under_way| !options.is_room(under_way, MIN_BATCH - 1)));
        assert!((EAGER..7).all(|under_way| options.is_room(under_way, MIN_BATCH)));
        assert!(!options.is_room(7, usize::MAX));
    }
}
