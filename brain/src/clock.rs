//! The clock of leases.

use std::time::Duration;

use election::{BootClock, Clock as _, Moment};

/// Returns the time since boot, on the same clock as the election's. It advances while the machine is suspended, and no clock step
/// changes it.
#[must_use]
pub fn since_boot() -> Duration {
    BootClock.now().since(Moment::new(Duration::ZERO))
}
