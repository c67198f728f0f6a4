//! Bounds of the write path.

use std::time::Duration;

use crate::flush::CompactionPace;

/// Records that may be in flight at once, however small they are.
const EAGER_RECORDS: usize = 3;

/// Requests that a further record must hold.
pub(super) const MIN_BATCH_REQUESTS: usize = 64;

/// Bounds of the write path.
#[derive(Debug, Clone)]
pub struct SequencerOptions {
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
    /// True if the NOSPACE alarm is disarmed once there is space again.
    pub disarms_nospace: bool,
    /// The pace of compactions.
    pub compaction: CompactionPace,
}

impl SequencerOptions {
    /// Returns true if `queued` requests may form another record while `under_way` records are in flight. The first few records
    /// are sent however small they are, further ones only if they are well filled: all requests in a record share its cost, and
    /// requests that wait for a record to return fill the next one.
    pub(super) fn is_room(&self, under_way: usize, queued: usize) -> bool {
        under_way < self.in_flight && (under_way < EAGER_RECORDS || queued >= MIN_BATCH_REQUESTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_filled_records_take_the_last_places() {
        let options = SequencerOptions {
            member: 1,
            in_flight: 7,
            batch_requests: 1,
            batch_bytes: 1,
            flush_bytes: 1,
            flush_interval: Duration::ZERO,
            memtable_bytes: 1,
            lease_bytes: 1,
            disarms_nospace: false,
            compaction: CompactionPace::default(),
        };
        assert!((0..EAGER_RECORDS).all(|under_way| options.is_room(under_way, 0)));
        assert!((EAGER_RECORDS..7).all(|under_way| !options.is_room(under_way, MIN_BATCH_REQUESTS - 1)));
        assert!((EAGER_RECORDS..7).all(|under_way| options.is_room(under_way, MIN_BATCH_REQUESTS)));
        assert!(!options.is_room(7, usize::MAX));
    }
}
