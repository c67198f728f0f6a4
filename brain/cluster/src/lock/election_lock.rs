//! The lock that a member competes for.

use bytes::Bytes;
use election::{LeaseLock, Lock, LockError, Record};
use sha2::{Digest as _, Sha256};

use super::StorageLock;
use crate::self_hosted_lease::SelfHostedLease;
use engine::log::LogError;

/// A record in the store itself, or a Lease of a Kubernetes cluster.
#[derive(Clone)]
pub enum ElectionLock {
    /// A record in the store.
    Storage(StorageLock),
    /// A Lease in an API server. The store may still have a record with a holder.
    Lease(Box<LeaseLock>, StorageLock),
}

/// The identifier of one write to either lock.
#[derive(Debug, Clone)]
pub enum LockVersion {
    /// The bytes that were written.
    Storage(Bytes),
    /// The object that was written.
    Lease(<LeaseLock as Lock>::Version),
}

impl ElectionLock {
    /// Returns a number that no other lock has: see [`LockClaim`](crate::term::LockClaim). That of a Lease is known once
    /// it was won.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            ElectionLock::Storage(_) => 0,
            ElectionLock::Lease(lease, _) => lease_id(&lease.uid().unwrap_or_default()),
        }
    }

    /// Returns the Lease that must not be stored here.
    #[must_use]
    pub fn self_hosted_lease(&self) -> Option<SelfHostedLease> {
        match self {
            ElectionLock::Storage(_) => None,
            ElectionLock::Lease(lease, _) => Some(SelfHostedLease::new(LeaseLock::clone(lease))),
        }
    }
}

impl ElectionLock {
    /// Announces to the holder of another lock that `epoch` has begun under this one. Fails as [`StorageLock::announce_epoch`].
    pub async fn announce_epoch(&self, epoch: u64) -> Result<(), LogError> {
        match self {
            // No member can still hold this lock without knowing, and a member that holds a Lease reads the log.
            ElectionLock::Storage(_) => Ok(()),
            ElectionLock::Lease(_, record) => record.announce_epoch(epoch).await,
        }
    }

    /// Returns the latest epoch that began under another lock, as this lock's renewals reveal it. `None`: they do not reveal it,
    /// read the log.
    pub fn announced_epoch(&self) -> Option<u64> {
        match self {
            ElectionLock::Storage(lock) => Some(lock.announced_epoch()),
            ElectionLock::Lease(..) => None,
        }
    }
}

impl Lock for ElectionLock {
    type Version = LockVersion;

    async fn get(&self) -> Result<Option<(Record, LockVersion)>, LockError> {
        Ok(match self {
            ElectionLock::Storage(lock) => {
                let seen = lock.get().await?;
                seen.map(|(record, version)| (record, LockVersion::Storage(version)))
            }
            ElectionLock::Lease(lock, _) => {
                let seen = lock.get().await?;
                seen.map(|(record, version)| (record, LockVersion::Lease(version)))
            }
        })
    }

    async fn create(&self, record: &Record) -> Result<LockVersion, LockError> {
        match self {
            ElectionLock::Storage(lock) => lock.create(record).await.map(LockVersion::Storage),
            ElectionLock::Lease(lock, _) => lock.create(record).await.map(LockVersion::Lease),
        }
    }

    async fn update(&self, record: &Record, expected: &LockVersion) -> Result<LockVersion, LockError> {
        match (self, expected) {
            (ElectionLock::Storage(lock), LockVersion::Storage(expected)) => {
                lock.update(record, expected).await.map(LockVersion::Storage)
            }
            (ElectionLock::Lease(lock, _), LockVersion::Lease(expected)) => {
                lock.update(record, expected).await.map(LockVersion::Lease)
            }
            // A version of the other kind identifies no write to this lock.
            _ => Err(LockError::Conflict),
        }
    }

    async fn prepare(&self, expected: &LockVersion) {
        match (self, expected) {
            (ElectionLock::Storage(lock), LockVersion::Storage(expected)) => lock.prepare(expected).await,
            (ElectionLock::Lease(lock, _), LockVersion::Lease(expected)) => lock.prepare(expected).await,
            _ => {}
        }
    }

    fn describe(&self) -> String {
        match self {
            ElectionLock::Storage(lock) => lock.describe(),
            ElectionLock::Lease(lock, _) => lock.describe(),
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
    use engine::cas_register::mem::MemRegister;
    use std::sync::Arc;

    #[tokio::test]
    async fn the_laws_of_locks_hold_for_either() {
        let lock = ElectionLock::Storage(StorageLock::new(Arc::new(MemRegister::new()), "test"));
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
