//! Latencies of the requests of a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Milliseconds of writes and of lists. Cheap to clone; every clone adds to the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Latencies(Arc<Mutex<(Vec<f64>, Vec<f64>)>>);

impl Latencies {
    pub(super) fn write(&self, took: Duration) {
        self.lock().0.push(took.as_secs_f64() * 1_000.0);
    }

    pub(super) fn list(&self, took: Duration) {
        self.lock().1.push(took.as_secs_f64() * 1_000.0);
    }

    /// All since the last time.
    pub(super) fn take(&self) -> (Vec<f64>, Vec<f64>) {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<f64>, Vec<f64>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The value that this part of all does not exceed; 0 of none.
pub(super) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (100.0, 198.0));
        assert_eq!((percentile(&[7.0], 0.99), percentile(&[], 0.99)), (7.0, 0.0));
    }
}
