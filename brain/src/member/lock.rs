//! The storage lock: the election's record in a cell of the store's own storage.

use std::sync::Arc;

use bytes::Bytes;
use election::{Lock, LockError, Record};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Swap};

pub use any::{AnyLock, Version};

mod any;

/// A lock in a cell.
#[derive(Debug, Clone)]
pub struct StorageLock<C> {
    cell: C,
    name: Arc<str>,
}

/// What the cell holds.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    record: Record,
    /// Makes no two writes equal, so that the bytes name one write for ever.
    nonce: u64,
}

impl<C: Cell> StorageLock<C> {
    /// The lock in `cell`; `name` is for log lines.
    pub fn new(cell: C, name: &str) -> Self {
        Self {
            cell,
            name: name.into(),
        }
    }

    async fn write(&self, record: &Record, expected: Option<Bytes>) -> Result<Bytes, LockError> {
        let stored = Stored {
            record: record.clone(),
            nonce: rand::random(),
        };
        let bytes = Bytes::from(serde_json::to_vec(&stored).map_err(|error| LockError::Failed(error.into()))?);
        match self.cell.compare_and_set(expected, Some(bytes.clone())).await {
            Swap::Won => Ok(bytes),
            Swap::Lost => Err(LockError::Conflict),
            Swap::Unknown(error) => Err(LockError::Failed(error)),
        }
    }
}

impl<C: Cell> Lock for StorageLock<C> {
    /// The bytes of the write.
    type Version = Bytes;

    async fn get(&self) -> Result<Option<(Record, Bytes)>, LockError> {
        let Some(bytes) = self.cell.get().await.map_err(LockError::Failed)? else {
            return Ok(None);
        };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| {
            let error = anyhow::Error::new(error);
            LockError::Failed(error.context(format!("the election record of {} does not decode", self.name)))
        })?;
        Ok(Some((stored.record, bytes)))
    }

    async fn create(&self, record: &Record) -> Result<Bytes, LockError> {
        self.write(record, None).await
    }

    async fn update(&self, record: &Record, expected: &Bytes) -> Result<Bytes, LockError> {
        self.write(record, Some(expected.clone())).await
    }

    fn describe(&self) -> String {
        self.name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::mem::MemCell;

    #[tokio::test]
    async fn the_laws_of_locks_hold_in_a_cell() {
        let lock = StorageLock::new(MemCell::new(), "test");
        election::laws::check(&lock, &lock.clone()).await.unwrap();
    }

    #[tokio::test]
    async fn bytes_that_are_no_record_are_an_error_and_stay() {
        let cell = MemCell::new();
        let lock = StorageLock::new(cell.clone(), "test");
        for bad in ["", "[]", "{}", "{\"nonce\":1,\"leaderTransitions\":-1}"] {
            let held = cell.get().await.unwrap();
            let set = cell
                .compare_and_set(held, Some(Bytes::from_static(bad.as_bytes())))
                .await;
            assert!(matches!(set, Swap::Won));
            let error = lock.get().await.unwrap_err();
            assert!(matches!(error, LockError::Failed(_)), "{bad:?}: {error:?}");
            assert!(matches!(
                lock.create(&Record::default()).await,
                Err(LockError::Conflict)
            ));
        }
    }
}
