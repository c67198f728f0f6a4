//! Leases of earlier leaders that may still answer reads, by the locks that they held.
//!
//! A lock proves to its new holder that the previous one has ended, but proves nothing about holders of another lock: members
//! may be configured for different ones, even if only during a change of configuration. The log records all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use mvcc::row::Manifest;

/// A lock that is none: some other one.
const UNKNOWN_LOCK: u64 = u64::MAX;

/// Leaders since the last one that wrote, itself included: it had waited for those before it.
#[derive(Debug, Clone, Default)]
pub(super) struct PriorLeases {
    /// The longest lease by lock.
    leases: BTreeMap<u64, Duration>,
    last: (u64, Duration),
    /// The barrier of the last one was read. Otherwise batches may be of an older leader than the one that the rows name.
    is_read: bool,
}

impl PriorLeases {
    /// The leases that the manifest records.
    pub(super) fn of(manifest: &Manifest) -> Self {
        let mut prior_leases = Self::default();
        prior_leases.begin(UNKNOWN_LOCK, millis(manifest.prior_lease_ms));
        prior_leases.begin(manifest.lock, millis(manifest.lease));
        prior_leases.is_read = false;
        prior_leases
    }

    /// The next one, by its barrier.
    pub(super) fn begin(&mut self, lock: u64, lease: Duration) {
        let longest = self.leases.entry(lock).or_default();
        *longest = lease.max(*longest);
        self.last = (lock, lease);
        self.is_read = true;
    }

    /// A batch was read, or written: it is of the last one, if that one's barrier was read before.
    pub(super) fn served(&mut self) {
        let (lock, lease) = self.last;
        if !self.is_read {
            return;
        }
        if self.leases.len() != 1 || self.leases.get(&lock) != Some(&lease) {
            self.leases = BTreeMap::from([self.last]);
        }
    }

    /// Returns the time that a new holder of `lock` must wait before it serves. `seen` is true if it knows that the previous holder of this
    /// lock has ended.
    pub(super) fn wait(&self, lock: u64, seen: bool) -> Duration {
        let reading = self.leases.iter().filter(|(held, _)| !seen || **held != lock);
        reading.map(|(_, lease)| *lease).max().unwrap_or_default()
    }
}

/// As a manifest has it.
pub(super) fn to_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn millis(millis: u32) -> Duration {
    Duration::from_millis(u64::from(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT_LEASE: Duration = Duration::from_secs(2);
    const LONG_LEASE: Duration = Duration::from_secs(15);

    fn after(prior_leases: &[(u64, Duration)]) -> PriorLeases {
        let mut all = PriorLeases::default();
        for (lock, lease) in prior_leases {
            all.begin(*lock, *lease);
        }
        all
    }

    #[test]
    fn leader_that_saw_the_only_lock_end_does_not_wait() {
        assert_eq!(PriorLeases::default().wait(0, false), Duration::ZERO);
        assert_eq!(after(&[(0, SHORT_LEASE)]).wait(0, true), Duration::ZERO);
        assert_eq!(after(&[(0, SHORT_LEASE)]).wait(0, false), SHORT_LEASE);
    }

    #[test]
    fn holders_of_another_lock_are_waited_for_until_somebody_did() {
        let mut prior_leases = after(&[(7, LONG_LEASE), (0, SHORT_LEASE)]);
        assert_eq!(
            prior_leases.wait(0, true),
            LONG_LEASE,
            "the last one may not have waited"
        );
        assert_eq!(prior_leases.wait(7, true), SHORT_LEASE);
        prior_leases.served();
        assert_eq!(prior_leases.wait(0, true), Duration::ZERO);
        assert_eq!(prior_leases.wait(7, true), SHORT_LEASE);
    }

    #[test]
    fn the_rows_know_of_those_whose_barriers_are_not_read() {
        let mut manifest = Manifest {
            lock: 7,
            lease: 15_000,
            ..Manifest::fresh()
        };
        assert_eq!(PriorLeases::of(&manifest).wait(0, true), LONG_LEASE);
        assert_eq!(PriorLeases::of(&manifest).wait(7, true), Duration::ZERO);
        manifest.prior_lease_ms = 2_000;
        let mut prior_leases = PriorLeases::of(&manifest);
        assert_eq!(prior_leases.wait(7, true), SHORT_LEASE);
        prior_leases.served();
        assert_eq!(
            prior_leases.wait(7, true),
            SHORT_LEASE,
            "the batch may be of an older leader"
        );
        prior_leases.begin(7, LONG_LEASE);
        prior_leases.served();
        assert_eq!(prior_leases.wait(7, true), Duration::ZERO);
    }
}
