//! Wipes a store: deletes all keys with its prefix, and no others.
//!
//! Keys are deleted in transactions, so that no lagging replica brings them back. Then their versions are destroyed in place,
//! which frees the space at once.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use tikv_client::TransactionClient;
use tokio::time::Instant;

use super::error::CallKind;
use super::read::{ScanRange, options};
use super::{CallLimits, Error, Tikv};
use runtime::log_once::LogBackoff;

/// Keys of one transaction.
const KEYS_PER_TRANSACTION: u32 = 512;

/// Interval between log lines about the progress.
const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before a transaction that met a lock is tried again.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Time limit of the destruction of a range. The client retries each server for half of it, and nothing that it has begun may continue
/// after the wipe.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limits of one transaction, and of all of its repetitions.
const WIPE_LIMITS: CallLimits = CallLimits {
    attempt: Duration::from_secs(10),
    total: Duration::from_secs(60),
};

/// How the space of deleted keys is reclaimed: their versions are destroyed in place. A server may do so later, outside all transactions,
/// so nothing may be written there until all servers have confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// The prefix is no longer used: what a server does not confirm is left to garbage collection.
    Tried,
    /// The keys are used again at once: a server that does not confirm it makes the wipe fail.
    Required,
}

/// A part of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WipePart {
    /// All but the registers.
    Data,
    /// The registers, but those of these names.
    RegistersBut(&'static [&'static str]),
}

impl Tikv {
    /// Returns true if the store has no keys.
    pub async fn is_empty(&self) -> anyhow::Result<bool> {
        let (from, to) = self.keys().whole();
        Ok(self.first_keys(&from, &to, 1).await?.is_empty())
    }

    /// Returns true if the store has no keys but the registers of these names.
    pub async fn is_empty_but(&self, names: &[&'static str]) -> anyhow::Result<bool> {
        let (from, to) = self.keys().whole();
        let kept: Vec<Bytes> = names.iter().map(|name| self.keys().register(name)).collect();
        let limit = u32::try_from(kept.len()).unwrap_or(u32::MAX).saturating_add(1);
        let found = self.first_keys(&from, &to, limit).await?;
        Ok(found.iter().all(|key| kept.contains(key)))
    }

    /// Deletes a part of the store; `check` is called before each transaction and before each destruction. Returns the number of deleted keys. It continues where an
    /// interrupted call ended. Fails if TiKV cannot be reached, another process writes to the store, or `check` fails.
    pub async fn wipe(
        &self,
        part: WipePart,
        reclaim: Reclaim,
        check: impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        let keys = self.keys();
        let (whole, registers_end) = (keys.whole(), keys.registers_end());
        let ranges = match part {
            WipePart::Data => vec![(registers_end, whole.1)],
            WipePart::RegistersBut(names) => {
                let mut kept: Vec<Bytes> = names.iter().map(|name| keys.register(name)).collect();
                kept.sort();
                let behind = kept.iter().map(|key| Bytes::from([key.as_ref(), &[0]].concat()));
                let from: Vec<Bytes> = std::iter::once(whole.0).chain(behind).collect();
                from.into_iter().zip(kept.into_iter().chain([registers_end])).collect()
            }
        };
        let mut deleted = WipeProgress::new();
        for (from, to) in ranges {
            let now = self.timestamp().await.context("ask PD for the time")?;
            let ended = self.end_transactions(now, &from, &to).await;
            ended.context("end unfinished transactions")?;
            self.delete_range(&from, &to, &mut deleted, &check).await?;
            check().await?;
            match self.destroy(&from, &to, DESTROY_TIMEOUT).await {
                Ok(()) => {}
                Err(error) if reclaim == Reclaim::Required => {
                    return Err(anyhow::Error::new(error).context(
                        "TiKV did not confirm the destruction of deleted keys and may still be working on it: start the same command again in a few minutes",
                    ));
                }
                // Every key is deleted: garbage collection does the rest.
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "TiKV did not confirm that the space was freed and may still be working on it: wait a few minutes before you use the key prefix again"
                ),
            }
        }
        Ok(deleted.keys)
    }

    async fn delete_range(
        &self,
        from: &Bytes,
        to: &Bytes,
        deleted: &mut WipeProgress,
        check: &impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut from = from.clone();
        while from < *to {
            check().await?;
            let until = self.within_region(&from, to).await;
            let page = self.first_keys(&from, &until, KEYS_PER_TRANSACTION).await?;
            let Some(last) = page.last() else {
                from = until;
                continue;
            };
            from = Bytes::from([last.as_ref(), &[0]].concat());
            self.delete(&page).await.context("delete keys of the store")?;
            deleted.add(page.len());
        }
        Ok(())
    }

    async fn first_keys(&self, from: &Bytes, to: &Bytes, limit: u32) -> anyhow::Result<Vec<Bytes>> {
        let at = self.timestamp().await.context("ask PD for the time")?;
        let range = ScanRange {
            from: from.clone(),
            to: to.clone(),
            limit,
            keys_only: true,
            backward: false,
        };
        let found = self.scan(at, &range).await.context("read the keys of the store")?;
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    /// Deletes these keys. It may be done twice.
    async fn delete(&self, keys: &[Bytes]) -> Result<(), Error> {
        let delete = |client: TransactionClient| {
            let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
            async move {
                let mut txn = client.begin_with_options(options()).await?;
                for key in keys {
                    txn.delete(key).await?;
                }
                txn.commit().await.map(|_| ())
            }
        };
        let deadline = Instant::now() + WIPE_LIMITS.total;
        loop {
            let deleted = self
                .shared
                .pool
                .call(CallKind::short("wipe"), WIPE_LIMITS, delete)
                .await;
            match deleted {
                // An attempt before left it.
                Err(Error::Locked(_)) if Instant::now() + LOCK_RETRY_DELAY < deadline => {
                    tokio::time::sleep(LOCK_RETRY_DELAY).await
                }
                outcome => return outcome,
            }
        }
    }
}

/// Keys that were deleted, logged now and then.
struct WipeProgress {
    keys: u64,
    log: LogBackoff,
}

impl WipeProgress {
    fn new() -> WipeProgress {
        WipeProgress {
            keys: 0,
            log: LogBackoff::every(PROGRESS_LOG_INTERVAL),
        }
    }

    fn add(&mut self, keys: usize) {
        self.keys += keys as u64;
        if self.log.is_due() {
            tracing::info!(deleted = self.keys, "wiping");
        }
    }
}
