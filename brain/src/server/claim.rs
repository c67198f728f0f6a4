//! One restore, import or wipe at a time changes a key prefix: it says so in a register, again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use tokio::time::Instant;
use tracing::info;

use engine::cas_register::{Cas, CasRegister};

/// The name of the register. It is part of the format.
pub(super) const IMPORTER_REGISTER: &str = "importer";

/// The interval in which the register changes while a restore or an import is under way.
const CLAIM_RENEW_INTERVAL: Duration = Duration::from_secs(2);

/// A claim whose register does not change for this long has no holder. If reads are slow, the wait is [`CLAIM_EXPIRY_READS`] times the longest
/// read, because a change takes several requests. The register is read every [`CLAIM_READ_INTERVAL`].
const MIN_CLAIM_EXPIRY: Duration = Duration::from_secs(10);
const CLAIM_EXPIRY_READS: u32 = 6;
const CLAIM_READ_INTERVAL: Duration = Duration::from_millis(500);

/// The right of one restore or import to fill a key prefix, or of a wipe to empty it.
#[derive(Debug)]
pub(super) struct PrefixClaim<C> {
    register: C,
    /// The value that this one wrote last; `None` while it does not hold the claim.
    own: Mutex<Option<Bytes>>,
}

/// Waits until it is certain that no restore, import or wipe uses the key prefix. Returns the register's value. Fails if one does.
async fn unused(register: &dyn CasRegister) -> anyhow::Result<Option<Bytes>> {
    let read = async || {
        let began = Instant::now();
        let found = register.get().await.context("read the claim of a restore or import")?;
        anyhow::Ok((found, began.elapsed()))
    };
    let (seen, mut longest) = read().await?;
    if seen.is_some() {
        info!("checking whether another restore, import or wipe uses the key prefix");
        let began = Instant::now();
        while began.elapsed() < MIN_CLAIM_EXPIRY.max(longest * CLAIM_EXPIRY_READS) {
            tokio::time::sleep(CLAIM_READ_INTERVAL).await;
            let (found, took) = read().await?;
            longest = longest.max(took);
            ensure!(
                found == seen,
                "another restore, import or wipe is using the key prefix: stop it first"
            );
        }
    }
    Ok(seen)
}

impl<C: CasRegister> PrefixClaim<C> {
    /// No right yet.
    pub(super) fn new(register: C) -> Self {
        Self {
            register,
            own: Mutex::new(None),
        }
    }

    /// Gets the right. Fails if another one has it, and is under way.
    pub(super) async fn take(&self) -> anyhow::Result<()> {
        let seen = unused(&self.register).await?;
        let own = value();
        let swapped = match self.register.compare_and_set(seen, Some(own.clone())).await {
            Cas::Swapped => true,
            Cas::Mismatch => false,
            Cas::Unknown(_) => {
                self.register
                    .get()
                    .await
                    .context("read the claim of a restore or import")?
                    .as_ref()
                    == Some(&own)
            }
        };
        ensure!(swapped, "another restore, import or wipe is starting on the key prefix");
        *self.own() = Some(own);
        Ok(())
    }

    /// Keeps the right as long as this is polled. Returns when another one has taken it.
    pub(super) async fn keep(&self) -> anyhow::Error {
        loop {
            tokio::time::sleep(CLAIM_RENEW_INTERVAL).await;
            let Some(own) = self.own().clone() else { continue };
            let mut next = after(&own);
            let is_kept = match self
                .register
                .compare_and_set(Some(own.clone()), Some(next.clone()))
                .await
            {
                Cas::Swapped => true,
                // The register may hold the value of an earlier attempt of unknown outcome.
                Cas::Mismatch | Cas::Unknown(_) => match self.register.get().await {
                    Ok(Some(found)) if is_of_one(&found, &own) => {
                        next = found;
                        true
                    }
                    Ok(_) => false,
                    Err(_) => continue,
                },
            };
            let mut current = self.own();
            if current.as_ref() != Some(&own) {
                continue; // the claim was released during the request
            }
            if !is_kept {
                return anyhow::anyhow!("another restore, import or wipe has taken over the key prefix");
            }
            *current = Some(next);
        }
    }

    /// Fails if another one has taken the right, or if this one has it no longer.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        let found = self
            .register
            .get()
            .await
            .context("read the claim of a restore, import or wipe")?;
        let is_kept = matches!((&found, &*self.own()), (Some(found), Some(own)) if is_of_one(found, own));
        ensure!(is_kept, "another restore, import or wipe has taken over the key prefix");
        Ok(())
    }

    /// Gives the right up, so that the next one need not wait.
    pub(super) async fn end(&self) {
        let Some(mut own) = self.own().take() else { return };
        let mut ended = self.register.compare_and_set(Some(own.clone()), None).await;
        // It may have been renewed in between, once.
        if matches!(ended, Cas::Mismatch)
            && let Ok(Some(found)) = self.register.get().await
            && is_of_one(&found, &own)
        {
            own = found;
            ended = self.register.compare_and_set(Some(own), None).await;
        }
        if !matches!(ended, Cas::Swapped) {
            tracing::debug!(
                ?ended,
                "could not release the key prefix; the next restore, import or wipe waits for a moment"
            );
        }
    }

    fn own(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a value that all values of one restore or import begin with.
const NONCE_BYTES: usize = 16;

/// The first value of a restore or an import.
fn value() -> Bytes {
    Bytes::from([&rand::random::<[u8; NONCE_BYTES]>()[..], &rand::random::<[u8; 8]>()].concat())
}

/// Another value of the same one.
fn after(own: &Bytes) -> Bytes {
    Bytes::from([&own[..NONCE_BYTES.min(own.len())], &rand::random::<[u8; 8]>()].concat())
}

/// Returns true if two values are of one restore or import.
fn is_of_one(a: &Bytes, b: &Bytes) -> bool {
    a.get(..NONCE_BYTES)
        .is_some_and(|nonce| b.get(..NONCE_BYTES) == Some(nonce))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cas_register::mem::MemRegister;

    #[tokio::test(start_paused = true)]
    async fn import_that_is_under_way_keeps_others_away() {
        let register = MemRegister::new();
        let (first, second) = (PrefixClaim::new(register.clone()), PrefixClaim::new(register.clone()));
        first.take().await.unwrap();
        tokio::select! {
        biased;
        lost = first.keep() => panic!("{lost}"),
        taken = second.take() => assert!(taken.unwrap_err().to_string().contains("is using the key prefix")),
        }
        // It was killed.
        second.take().await.unwrap();
        let lost = first.keep().await;
        assert!(lost.to_string().contains("taken over"), "{lost}");
    }

    /// A register whose storage is slow: a change takes as long as five reads.
    #[derive(Clone)]
    struct Slow(MemRegister);

    #[async_trait::async_trait]
    impl CasRegister for Slow {
        async fn get(&self) -> anyhow::Result<Option<Bytes>> {
            tokio::time::sleep(Duration::from_secs(4)).await;
            self.0.get().await
        }

        async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Cas {
            tokio::time::sleep(Duration::from_secs(20)).await;
            self.0.compare_and_set(expected, new).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn import_on_slow_storage_keeps_others_away() {
        let register = MemRegister::new();
        let (first, other) = (PrefixClaim::new(Slow(register.clone())), Slow(register));
        first.take().await.unwrap();
        tokio::select! {
        biased;
        lost = first.keep() => panic!("{lost}"),
        seen = unused(&other) => assert!(seen.unwrap_err().to_string().contains("is using the key prefix")),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_arrives_late_is_not_taken_for_another_import() {
        let register = MemRegister::new();
        let claim = PrefixClaim::new(register.clone());
        claim.take().await.unwrap();
        let stored = register.get().await.unwrap();
        let late = stored.as_ref().map(after);
        assert!(matches!(register.compare_and_set(stored, late).await, Cas::Swapped));
        assert!(
            tokio::time::timeout(CLAIM_RENEW_INTERVAL * 3, claim.keep())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn right_that_was_given_up_is_not_lost() {
        let register = MemRegister::new();
        let claim = PrefixClaim::new(register.clone());
        claim.take().await.unwrap();
        claim.check().await.unwrap();
        // Renewed by a request that was not answered yet.
        let stored = register.get().await.unwrap();
        let late = stored.as_ref().map(after);
        assert!(matches!(register.compare_and_set(stored, late).await, Cas::Swapped));
        claim.check().await.unwrap();
        claim.end().await;
        assert_eq!(register.get().await.unwrap(), None);
        assert!(claim.check().await.is_err());
        let kept = tokio::time::timeout(CLAIM_RENEW_INTERVAL * 3, claim.keep()).await;
        assert!(kept.is_err());
        let began = Instant::now();
        claim.take().await.unwrap();
        claim.end().await;
        PrefixClaim::new(register.clone()).take().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody is waited for");
    }
}
