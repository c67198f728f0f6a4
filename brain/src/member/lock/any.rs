//! Whichever lock a member competes for.

use bytes::Bytes;
use election::{LeaseLock, Lock, LockError, Record};
use sha2::{Digest as _, Sha256};

use super::StorageLock;
use crate::cell::Cell;
use crate::log::LogError;
use crate::member::circle::Circle;

/// A record in the store itself, or a Lease of a Kubernetes cluster.
#[derive(Debug, Clone)]
pub enum AnyLock<C> {
    /// In the store.
    Storage(StorageLock<C>),
    /// In an API server. In the store there may be a record yet, and somebody who holds it.
    Lease(Box<LeaseLock>, StorageLock<C>),
}

/// Names one write to either.
#[derive(Debug, Clone)]
pub enum Version {
    /// The bytes that were written.
    Storage(Bytes),
    /// The object that was written.
    Lease(<LeaseLock as Lock>::Version),
}

impl<C> AnyLock<C> {
    /// A number that no other lock has: see [`Claim`](crate::leader::Claim). That of a Lease is known once it was won.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            AnyLock::Storage(_) => 0,
            AnyLock::Lease(lease, _) => lease_id(&lease.uid().unwrap_or_default()),
        }
    }

    /// What must not be stored here.
    #[must_use]
    pub fn circle(&self) -> Option<Circle> {
        match self {
            AnyLock::Storage(_) => None,
            AnyLock::Lease(lease, _) => Some(Circle::new(LeaseLock::clone(lease))),
        }
    }
}

impl<C: Cell> AnyLock<C> {
    /// Tells whoever holds another lock that `epoch` has begun by this one.
    ///
    /// # Errors
    /// As [`StorageLock::overrule`].
    pub async fn announce(&self, epoch: u64) -> Result<(), LogError> {
        match self {
            // Nobody can hold this one any more without knowing, and whoever holds a Lease reads the log.
            AnyLock::Storage(_) => Ok(()),
            AnyLock::Lease(_, record) => record.overrule(epoch).await,
        }
    }

    /// The latest epoch that began by another lock, as this one's renewals tell. `None`: they tell nothing, ask the log.
    pub fn overruled(&self) -> Option<u64> {
        match self {
            AnyLock::Storage(lock) => Some(lock.overruled()),
            AnyLock::Lease(..) => None,
        }
    }
}

impl<C: Cell> Lock for AnyLock<C> {
    type Version = Version;

    async fn get(&self) -> Result<Option<(Record, Version)>, LockError> {
        Ok(match self {
            AnyLock::Storage(lock) => {
                let seen = lock.get().await?;
                seen.map(|(record, version)| (record, Version::Storage(version)))
            }
            AnyLock::Lease(lock, _) => {
                let seen = lock.get().await?;
                seen.map(|(record, version)| (record, Version::Lease(version)))
            }
        })
    }

    async fn create(&self, record: &Record) -> Result<Version, LockError> {
        match self {
            AnyLock::Storage(lock) => lock.create(record).await.map(Version::Storage),
            AnyLock::Lease(lock, _) => lock.create(record).await.map(Version::Lease),
        }
    }

    async fn update(&self, record: &Record, expected: &Version) -> Result<Version, LockError> {
        match (self, expected) {
            (AnyLock::Storage(lock), Version::Storage(expected)) => {
                lock.update(record, expected).await.map(Version::Storage)
            }
            (AnyLock::Lease(lock, _), Version::Lease(expected)) => {
                lock.update(record, expected).await.map(Version::Lease)
            }
            // A version of another kind names no write to this lock.
            _ => Err(LockError::Conflict),
        }
    }

    fn describe(&self) -> String {
        match self {
            AnyLock::Storage(lock) => lock.describe(),
            AnyLock::Lease(lock, _) => lock.describe(),
        }
    }
}

fn lease_id(uid: &str) -> u64 {
    let digest = Sha256::digest(uid);
    let first: [u8; 8] = std::array::from_fn(|at| digest[at]);
    u64::from_be_bytes(first).clamp(1, u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::mem::MemCell;

    #[tokio::test]
    async fn the_laws_of_locks_hold_for_either() {
        let lock = AnyLock::Storage(StorageLock::new(MemCell::new(), "test"));
        election::laws::check(&lock, &lock.clone()).await.unwrap();
        assert_eq!(lock.id(), 0);
    }

    #[test]
    fn leases_are_told_apart_and_from_the_storage_lock() {
        let ids = ["a", "b", ""].map(lease_id);
        assert!(ids[0] != ids[1] && !ids.contains(&0), "{ids:?}");
        assert_eq!(lease_id("a"), ids[0]);
    }
}
