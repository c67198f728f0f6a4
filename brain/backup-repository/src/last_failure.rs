//! The failure of a destination, for programs that wait for it to end.

use std::sync::{Arc, Mutex, PoisonError};

/// The failure of the last request to a destination. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    /// Returns why the last request failed; `None` if it succeeded.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, failure: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}
