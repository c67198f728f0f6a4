//! A register in memory: for a member whose store no other member can reach, such as a data directory, which its lock guards.
//!
//! Its value ends with the process, and so does every claim that an earlier run of the member made in it.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Cas, CasRegister};

/// A value in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemRegister(Arc<Mutex<Option<Bytes>>>);

impl MemRegister {
    /// A register without a value.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl CasRegister for MemRegister {
    async fn get(&self) -> anyhow::Result<Option<Bytes>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Cas {
        let mut value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *value != expected {
            return Cas::Mismatch;
        }
        *value = new;
        Cas::Swapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_laws_of_cells_hold_in_memory() {
        crate::cas_register::laws::hold(async || MemRegister::new()).await;
    }
}
