//! Who may still be answering reads: leaders of before, by the locks that they held.
//!
//! A lock tells whoever takes it that the one before has ended, but nothing of holders of another lock: members may be
//! configured for different ones, be it only while that is changed. The log tells of all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::mvcc::row::Fence;

/// A lock that is none: some other one.
const OTHER: u64 = u64::MAX;

/// Leaders since the last one that wrote, itself included: it had waited for those before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Reigns {
    /// The longest lease by lock.
    leases: BTreeMap<u64, Duration>,
    last: (u64, Duration),
}

impl Reigns {
    /// What the rows say.
    pub(super) fn of(fence: &Fence) -> Self {
        let mut reigns = Self::default();
        reigns.begin(OTHER, millis(fence.haunted));
        reigns.begin(fence.lock, millis(fence.lease));
        reigns
    }

    /// The next one, by its barrier.
    pub(super) fn begin(&mut self, lock: u64, lease: Duration) {
        let longest = self.leases.entry(lock).or_default();
        *longest = lease.max(*longest);
        self.last = (lock, lease);
    }

    /// The last one wrote.
    pub(super) fn served(&mut self) {
        let (lock, lease) = self.last;
        if self.leases.len() != 1 || self.leases.get(&lock) != Some(&lease) {
            self.leases = BTreeMap::from([self.last]);
        }
    }

    /// How long whoever holds `lock` has to wait before it serves; `seen` says that it knows the holder before to have ended.
    pub(super) fn wait(&self, lock: u64, seen: bool) -> Duration {
        let reading = self.leases.iter().filter(|(held, _)| !seen || **held != lock);
        reading.map(|(_, lease)| *lease).max().unwrap_or_default()
    }
}

/// As a fence has it.
pub(super) fn to_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn millis(millis: u32) -> Duration {
    Duration::from_millis(u64::from(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(15);

    fn after(reigns: &[(u64, Duration)]) -> Reigns {
        let mut all = Reigns::default();
        for (lock, lease) in reigns {
            all.begin(*lock, *lease);
        }
        all
    }

    #[test]
    fn who_saw_the_only_lock_end_waits_for_nobody() {
        assert_eq!(Reigns::default().wait(0, false), Duration::ZERO);
        assert_eq!(after(&[(0, SHORT)]).wait(0, true), Duration::ZERO);
        assert_eq!(after(&[(0, SHORT)]).wait(0, false), SHORT);
    }

    #[test]
    fn holders_of_another_lock_are_waited_for_until_somebody_did() {
        let mut reigns = after(&[(7, LONG), (0, SHORT)]);
        assert_eq!(reigns.wait(0, true), LONG, "the last one may not have waited");
        assert_eq!(reigns.wait(7, true), SHORT);
        reigns.served();
        assert_eq!(reigns.wait(0, true), Duration::ZERO);
        assert_eq!(reigns.wait(7, true), SHORT);
    }

    #[test]
    fn the_rows_know_of_those_whose_barriers_are_not_read() {
        let mut fence = Fence {
            lock: 7,
            lease: 15_000,
            ..Fence::fresh()
        };
        assert_eq!(Reigns::of(&fence).wait(0, true), LONG);
        assert_eq!(Reigns::of(&fence).wait(7, true), Duration::ZERO);
        fence.haunted = 2_000;
        assert_eq!(Reigns::of(&fence).wait(7, true), SHORT);
    }
}
