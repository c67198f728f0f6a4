//! The storage lock: the election's record in a cell of the store's own storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use bytes::Bytes;
use election::{Lock, LockError, Record};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Swap};
use crate::log::LogError;

pub use any::{AnyLock, Version};

mod any;

/// A lock in a cell.
///
/// Whoever leads by another lock writes its epoch beside the record: see [`StorageLock::overrule`]. A renewal compares the
/// bytes of both, so when it succeeds nobody but those whom [`StorageLock::overruled`] tells of had done so before it was sent.
#[derive(Debug, Clone)]
pub struct StorageLock<C> {
    cell: C,
    name: Arc<str>,
    /// The latest epoch that was seen beside the record. It never falls, and every write of the record repeats it.
    overruled: Arc<AtomicU64>,
}

/// What the cell holds.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    record: Record,
    /// Makes no two writes equal, so that the bytes name one write for ever.
    nonce: u64,
    /// The latest epoch of a leader by another lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overruled: Option<u64>,
}

impl<C: Cell> StorageLock<C> {
    /// The lock in `cell`; `name` is for log lines.
    pub fn new(cell: C, name: &str) -> Self {
        Self {
            cell,
            name: name.into(),
            overruled: Arc::default(),
        }
    }

    /// The latest epoch of a leader by another lock, as the newest record tells that was read or written here; 0 of none.
    #[must_use]
    pub fn overruled(&self) -> u64 {
        self.overruled.load(Ordering::Acquire)
    }

    /// Tells whoever holds this lock that `epoch` was begun by another one: from now on no renewal of it succeeds that does
    /// not know.
    ///
    /// # Errors
    /// [`LogError::Unavailable`]: the record cannot be reached, or is none.
    pub async fn overrule(&self, epoch: u64) -> Result<(), LogError> {
        loop {
            let Some((stored, bytes)) = self.read().await.map_err(LogError::Unavailable)? else {
                return Ok(()); // nobody holds it, and whoever takes it reads of this epoch in the log
            };
            if stored.overruled.is_some_and(|known| known >= epoch) {
                return Ok(());
            }
            self.overruled.fetch_max(epoch, Ordering::AcqRel);
            match self.write(&stored.record, Some(bytes)).await {
                Ok(_) => return Ok(()),
                Err(LockError::Conflict) => {} // renewed meanwhile
                Err(LockError::Failed(error)) => return Err(LogError::Unavailable(error)),
            }
        }
    }

    /// What the cell holds, and its bytes.
    async fn read(&self) -> anyhow::Result<Option<(Stored, Bytes)>> {
        let Some(bytes) = self.cell.get().await? else {
            return Ok(None);
        };
        let stored: Stored = serde_json::from_slice(&bytes)
            .with_context(|| format!("the election record of {} does not decode", self.name))?;
        self.overruled
            .fetch_max(stored.overruled.unwrap_or(0), Ordering::AcqRel);
        Ok(Some((stored, bytes)))
    }

    async fn write(&self, record: &Record, expected: Option<Bytes>) -> Result<Bytes, LockError> {
        let stored = Stored {
            record: record.clone(),
            nonce: rand::random(),
            overruled: Some(self.overruled()).filter(|epoch| *epoch > 0),
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
        let seen = self.read().await.map_err(LockError::Failed)?;
        Ok(seen.map(|(stored, bytes)| (stored.record, bytes)))
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
    async fn no_renewal_succeeds_unaware_of_a_leader_by_another_lock() {
        let cell = MemCell::new();
        let (lock, other) = (StorageLock::new(cell.clone(), "test"), StorageLock::new(cell, "other"));
        other.overrule(7).await.unwrap();
        assert_eq!(lock.get().await.unwrap(), None, "nobody is told where nobody holds it");
        let record = Record {
            holder_identity: "a".to_owned(),
            ..Record::default()
        };
        let version = lock.create(&record).await.unwrap();
        assert_eq!(lock.overruled(), 0);
        other.overrule(8).await.unwrap();
        let renewed = lock.update(&record, &version).await;
        assert!(matches!(renewed, Err(LockError::Conflict)), "{renewed:?}");
        let (seen, version) = lock.get().await.unwrap().unwrap();
        assert_eq!((seen == record, lock.overruled()), (true, 8));
        // Whoever writes repeats it, and an older epoch changes nothing.
        let version = lock.update(&record, &version).await.unwrap();
        other.overrule(6).await.unwrap();
        lock.update(&record, &version).await.unwrap();
        let next = StorageLock::new(lock.cell.clone(), "next");
        next.get().await.unwrap().unwrap();
        assert_eq!(next.overruled(), 8);
    }

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
