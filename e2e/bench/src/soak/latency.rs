//! Latencies of the requests of a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Milliseconds of writes and of lists. Cheap to clone; every clone adds to the same.
#[derive(Debug, Clone, Default)]
pub(super) struct SoakLatencies(Arc<Mutex<(Vec<f64>, Vec<f64>)>>);

impl SoakLatencies {
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
