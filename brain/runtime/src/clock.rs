//! The clock of leases.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since boot, on the same clock as the election's. It advances while the machine is suspended, and no clock step
/// changes it.
#[must_use]
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // The kernel counts both from zero: neither can be negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
