//! The clock that decides: one that also runs while the machine is suspended.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::record::Timestamp;

/// A point on the clock of one process. It means nothing to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The point `since_origin` after the clock's origin.
    #[must_use]
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time from `earlier` to this point; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}

/// The time source of an elector.
///
/// Laws: `now` never goes back, and advances while the machine is suspended; its rate differs between candidates by less than the
/// ratio of lease duration to renew deadline. `wall` promises nothing: it is shown to people and never compared.
pub trait Clock: Clone + Send + Sync + 'static {
    /// The time on the candidate's own clock.
    fn now(&self) -> Moment;

    /// The time of day, for records that people read.
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// `CLOCK_BOOTTIME`. The monotonic clock stops while a machine is suspended, and would make a leader that wakes up believe that its
/// lease is still valid.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let time = clock_gettime(ClockId::Boottime);
        // The kernel counts both from zero at boot: neither can be negative.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment(Duration::new(seconds, nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_is_the_kernels_and_goes_on() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let first = BootClock.now();
        assert!(
            (first.0.as_secs_f64() - uptime).abs() < 5.0,
            "{first} is not near {uptime}s"
        );
        assert!(BootClock.now() >= first);
    }
}
