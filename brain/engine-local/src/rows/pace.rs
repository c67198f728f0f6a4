//! The pace at which rows are accepted while tables are merged.
//!
//! All batches at full speed and then none for the time of a long merge would let writers wait longer than clients do. So each batch waits
//! a little, and longer the more there is to merge. Under load the two balance long before level 0 has as many runs as it may.

use std::time::Duration;

/// Runs in level 0 that cost nothing. At sixteen of them they are merged.
const FREE_LEVEL0_RUNS: usize = 26;

/// The wait for a MiB at one run more than is free; it grows with the square.
const WAIT_UNIT: Duration = Duration::from_millis(4);

/// The longest wait for a MiB.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// Returns the delay of a batch of this many bytes.
pub(super) fn wait(level0_runs: usize, bytes: usize) -> Duration {
    let pressure = level0_runs.saturating_sub(FREE_LEVEL0_RUNS);
    let pressure = u32::try_from(pressure).unwrap_or(u32::MAX);
    let per_mib = WAIT_UNIT
        .saturating_mul(pressure.saturating_mul(pressure))
        .min(MAX_WAIT);
    per_mib.mul_f64(bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn batches_wait_longer_the_more_there_is_to_merge() {
        assert_eq!(wait(FREE_LEVEL0_RUNS, MIB), Duration::ZERO);
        assert_eq!(wait(FREE_LEVEL0_RUNS + 1, MIB), WAIT_UNIT);
        assert_eq!(wait(FREE_LEVEL0_RUNS + 3, 2 * MIB), 18 * WAIT_UNIT);
        assert_eq!(wait(100, MIB), MAX_WAIT);
        assert_eq!(wait(100, 0), Duration::ZERO, "an empty batch does not wait");
    }
}
