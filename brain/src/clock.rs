//! The clock of leases.

use std::time::Duration;

use election::{BootClock, Clock as _, Moment};

/// Time since boot, on the same clock as the election's. It goes on while the machine sleeps, and no clock step moves it.
#[must_use]
pub fn since_boot() -> Duration {
    BootClock.now().since(Moment::new(Duration::ZERO))
}
