//! The storage lock: the election's record in a register of the store's own storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use bytes::Bytes;
use election::{Lock, LockError, Record};
use serde::{Deserialize, Serialize};

use engine::cas_register::{Cas, DynRegister};
use engine::log::LogError;

pub use election_lock::{ElectionLock, LockVersion};

mod election_lock;

/// A lock in a register.
///
/// A leader under another lock writes its epoch beside the record: see [`StorageLock::announce_epoch`]. A renewal compares the
/// bytes of both, so when it succeeds, no epochs but those that [`StorageLock::announced_epoch`] returns had been written before it
/// was sent.
#[derive(Clone)]
pub struct StorageLock {
    register: DynRegister,
    name: Arc<str>,
    /// The latest epoch seen beside the record. It never decreases, and every write of the record repeats it.
    announced_epoch: Arc<AtomicU64>,
}

/// The value stored in the register.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLock {
    #[serde(flatten)]
    record: Record,
    /// A random number that makes every write unique, so that the bytes identify one write for ever.
    nonce: u64,
    /// The latest epoch of a leader under another lock.
    #[serde(rename = "overruled", default, skip_serializing_if = "Option::is_none")]
    announced_epoch: Option<u64>,
}

impl StorageLock {
    /// Creates a lock in `register`; `name` is for log lines.
    pub fn new(register: DynRegister, name: &str) -> Self {
        Self {
            register,
            name: name.into(),
            announced_epoch: Arc::default(),
        }
    }

    /// Returns the latest epoch that began under another lock, by the newest record that was read or written here; 0 if there is
    /// none.
    #[must_use]
    pub fn announced_epoch(&self) -> u64 {
        self.announced_epoch.load(Ordering::Acquire)
    }

    /// Writes beside the record that `epoch` began under another lock. From then on no renewal succeeds whose writer has not read
    /// this. Fails with [`LogError::Unavailable`] if the record cannot be read, written or decoded.
    pub async fn announce_epoch(&self, epoch: u64) -> Result<(), LogError> {
        loop {
            let Some((stored, bytes)) = self.read().await.map_err(LogError::Unavailable)? else {
                return Ok(()); // no member holds it; the next holder learns of this epoch from the log
            };
            if stored.announced_epoch.is_some_and(|known| known >= epoch) {
                return Ok(());
            }
            self.announced_epoch.fetch_max(epoch, Ordering::AcqRel);
            match self.write(&stored.record, Some(bytes)).await {
                Ok(_) => return Ok(()),
                Err(LockError::Conflict) => {} // renewed since the read
                Err(LockError::Failed(error)) => return Err(LogError::Unavailable(error)),
            }
        }
    }

    /// Reads the stored value and its bytes; `None` if the register is empty.
    async fn read(&self) -> anyhow::Result<Option<(StoredLock, Bytes)>> {
        let Some(bytes) = self.register.get().await? else {
            return Ok(None);
        };
        let stored: StoredLock = serde_json::from_slice(&bytes)
            .with_context(|| format!("the election record of {} does not decode", self.name))?;
        self.announced_epoch
            .fetch_max(stored.announced_epoch.unwrap_or(0), Ordering::AcqRel);
        Ok(Some((stored, bytes)))
    }

    async fn write(&self, record: &Record, expected: Option<Bytes>) -> Result<Bytes, LockError> {
        let stored = StoredLock {
            record: record.clone(),
            nonce: rand::random(),
            announced_epoch: Some(self.announced_epoch()).filter(|epoch| *epoch > 0),
        };
        let bytes = Bytes::from(serde_json::to_vec(&stored).map_err(|error| LockError::Failed(error.into()))?);
        match self.register.compare_and_set(expected, Some(bytes.clone())).await {
            Cas::Swapped => Ok(bytes),
            Cas::Mismatch => Err(LockError::Conflict),
            Cas::Unknown(error) => Err(LockError::Failed(error)),
        }
    }
}

impl Lock for StorageLock {
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

    async fn prepare(&self, expected: &Bytes) {
        self.register.prepare(Some(expected)).await;
    }

    fn describe(&self) -> String {
        self.name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cas_register::mem::MemRegister;

    #[tokio::test]
    async fn no_renewal_succeeds_unaware_of_a_leader_by_another_lock() {
        let register: DynRegister = Arc::new(MemRegister::new());
        let (lock, other) = (
            StorageLock::new(register.clone(), "test"),
            StorageLock::new(register, "other"),
        );
        other.announce_epoch(7).await.unwrap();
        assert_eq!(lock.get().await.unwrap(), None, "nobody is told where nobody holds it");
        let record = Record {
            holder_identity: "a".to_owned(),
            ..Record::default()
        };
        let version = lock.create(&record).await.unwrap();
        assert_eq!(lock.announced_epoch(), 0);
        other.announce_epoch(8).await.unwrap();
        let renewed = lock.update(&record, &version).await;
        assert!(matches!(renewed, Err(LockError::Conflict)), "{renewed:?}");
        let (seen, version) = lock.get().await.unwrap().unwrap();
        assert_eq!((seen == record, lock.announced_epoch()), (true, 8));
        // The writer repeats the epoch, and an older epoch changes nothing.
        let version = lock.update(&record, &version).await.unwrap();
        other.announce_epoch(6).await.unwrap();
        lock.update(&record, &version).await.unwrap();
        let next = StorageLock::new(lock.register.clone(), "next");
        next.get().await.unwrap().unwrap();
        assert_eq!(next.announced_epoch(), 8);
    }

    #[tokio::test]
    async fn the_laws_of_locks_hold_in_a_cell() {
        let lock = StorageLock::new(Arc::new(MemRegister::new()), "test");
        election::laws::check(&lock, &lock.clone()).await.unwrap();
    }

    #[tokio::test]
    async fn bytes_that_are_no_record_are_an_error_and_stay() {
        let register: DynRegister = Arc::new(MemRegister::new());
        let lock = StorageLock::new(register.clone(), "test");
        for bad in ["", "[]", "{}", "{\"nonce\":1,\"leaderTransitions\":-1}"] {
            let held = register.get().await.unwrap();
            let set = register
                .compare_and_set(held, Some(Bytes::from_static(bad.as_bytes())))
                .await;
            assert!(matches!(set, Cas::Swapped));
            let error = lock.get().await.unwrap_err();
            assert!(matches!(error, LockError::Failed(_)), "{bad:?}: {error:?}");
            assert!(matches!(
                lock.create(&Record::default()).await,
                Err(LockError::Conflict)
            ));
        }
    }
}
