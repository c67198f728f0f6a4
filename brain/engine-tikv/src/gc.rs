//! Garbage collection: lets a whole TiKV cluster collect versions older than the window.
//!
//! TiKV collects nothing by itself, and a cluster has at most one owner of GC: TiDB where there is one, else the store that is
//! configured to be it (`--tikv-gc-interval`), and of its members the leader.
//!
//! Invariant: the safe point never passes an existing lock. The fate of a lock is decided by a commit record, which may have
//! been collected. So locks below the safe point are resolved first, in the whole cluster, if their transactions are over;
//! the locks of other transactions hold the safe point back.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tikv_client::{BoundRange, Error as ClientError, ProtoLockInfo, Timestamp, TimestampExt, TransactionClient};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::options::GcOwner;
use super::pd::{SafePointMove, SafePointPermit};
use super::read::Ts;
use super::{Error, LONGEST_CALL_ROUND_TRIPS, Tikv};

/// Regions that are looked through at once.
const REGIONS_PER_SCAN: i32 = 32;

/// Locks that are asked for at once.
const LOCKS_PER_SCAN: u32 = 1024;

/// Timeout of one scan of some regions, and of all of its attempts: a region may be without a leader for a while.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
const RESOLVE_LOCKS_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay before it is tried again.
const SCAN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The outcome of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GcRound {
    /// The safe point is as late as the window permits.
    Done,
    /// The safe point is held back by another service, which needs later versions.
    Held(String),
    /// The safe point of another owner is further already.
    Foreign,
}

impl Tikv {
    /// Moves the safe point of the cluster periodically, if the options ask for that, while `leads` is true for the newest role.
    /// Runs until `stop`. Never fails: a failed round is repeated.
    pub async fn collect_garbage<R>(
        self,
        mut role: watch::Receiver<R>,
        leads: impl Fn(&R) -> bool,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut until_another_leads = role.clone();
        let rounds = async {
            let GcOwner::Every(interval) = self.shared.options.gc else {
                return std::future::pending().await;
            };
            while role.wait_for(&leads).await.is_ok() {
                tokio::select! {
                    _ = until_another_leads.wait_for(|role| !leads(role)) => {}
                    () = self.collect_every(interval) => {}
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = rounds => Ok(()),
        }
    }

    async fn collect_every(&self, interval: Duration) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            tick.tick().await;
            match self.collect_once().await {
                Ok(round) => {
                    // A holder's description names what it holds, which changes: only the kind of the outcome is compared.
                    let kind = Some(std::mem::discriminant(&round));
                    if last != kind {
                        round.tell();
                    }
                    last = kind;
                }
                Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot collect garbage"),
            }
        }
    }

    /// Moves the safe point once.
    pub(super) async fn collect_once(&self) -> anyhow::Result<GcRound> {
        let now = self.timestamp().await?;
        let window = u64::try_from(self.shared.options.gc_window.as_millis())?;
        let target = Ts(now.millis().saturating_sub(window) << 18);
        let (safe_point, mut held_by, calls) = match self.shared.pd.permit(target.0).await? {
            SafePointPermit::Further => return Ok(GcRound::Foreign),
            SafePointPermit::Until {
                safe_point,
                held_by,
                calls,
            } => (Ts(safe_point), held_by, calls),
        };
        let until = self.end_older(safe_point).await?;
        if until < safe_point {
            held_by = Some(format!("a transaction begun at {}", until.0));
        }
        let collected = self.shared.pd.collect(until.0, calls).await?;
        Ok(match (held_by, collected) {
            (Some(by), _) => GcRound::Held(by),
            (None, SafePointMove::Moved) => GcRound::Done,
            (None, SafePointMove::Further) => GcRound::Foreign,
        })
    }

    /// Ends all transactions of the cluster that were begun before `until`, are over and have left locks. Answers with how
    /// far that is true: no lock is older.
    pub(super) async fn end_older(&self, mut until: Ts) -> anyhow::Result<Ts> {
        let mut next = Bytes::new();
        loop {
            let regions = self.shared.pd.regions(&next, &[], REGIONS_PER_SCAN).await?;
            let end = regions.last().map(|region| region.to.clone());
            let end = end.ok_or_else(|| anyhow::anyhow!("PD lists no regions"))?;
            until = self.end_older_between(next.clone(), &end, until).await?;
            if end.is_empty() {
                return Ok(until);
            }
            anyhow::ensure!(end > next, "PD lists regions in no order");
            next = end;
        }
    }

    async fn end_older_between(&self, mut from: Bytes, to: &Bytes, mut until: Ts) -> Result<Ts, Error> {
        loop {
            let Some(newest) = until.0.checked_sub(1) else {
                return Ok(until);
            };
            let scan = |client: TransactionClient| {
                let range = range(&from, to);
                async move { client.scan_locks(&Ts(newest).timestamp(), range, LOCKS_PER_SCAN).await }
            };
            let mut locks = self.patiently("scan_locks", LONGEST_CALL_ROUND_TRIPS, scan).await?;
            // Each region answers with at most `LOCKS_PER_SCAN` locks, so none is missing up to the key of the `LOCKS_PER_SCAN`-th lock of
            // all answers.
            locks.sort_by(|a, b| a.key.cmp(&b.key));
            let after = locks.get(LOCKS_PER_SCAN as usize - 1).map(|lock| after(&lock.key));
            locks.truncate(LOCKS_PER_SCAN as usize);
            until = self.end(locks, until).await?;
            match after {
                Some(after) => from = after,
                None => return Ok(until),
            }
        }
    }

    /// Resolves the locks of transactions that are over; returns the start of the oldest that is not, or `until`.
    ///
    /// Only all of its locks together decide whether an asynchronous commit has happened, and the client does not read them: it
    /// reports that the transaction is not over. (Its function for GC reads them wrong, and rolls back acknowledged writes.)
    ///
    /// A transaction with a lock that names a wrong primary key counts as one that is not over, because nothing tells its fate.
    async fn end(&self, mut locks: Vec<ProtoLockInfo>, mut until: Ts) -> Result<Ts, Error> {
        while !locks.is_empty() {
            // Each lock may be of a transaction of its own, which is asked for and ended one after the other.
            let requests = u32::try_from(2 * locks.len()).unwrap_or(u32::MAX);
            let resolve = |client: TransactionClient| {
                let locks = locks.clone();
                // The caller's timestamp is older than all others, so no commit is delayed for it.
                async move {
                    let nobody = Timestamp::from_version(0);
                    match client.resolve_locks(locks, nobody).await {
                        Ok(alive) => Ok(Ok(alive)),
                        Err(error) => mismatched(&error).map(Err).ok_or(error),
                    }
                }
            };
            let begun = match self.patiently("resolve_locks", requests, resolve).await? {
                Ok(alive) => {
                    tracing::info!(locks = locks.len(), alive = alive.len(), "ended old transactions");
                    return Ok(oldest(&alive, until));
                }
                Err(begun) => begun,
            };
            let before = locks.len();
            locks.retain(|lock| lock.lock_version != begun.0);
            if locks.len() == before {
                return Err(Error::unreachable("another lock has a wrong primary key"));
            }
            tracing::warn!(
                begun = begun.0,
                "a lock has a wrong primary key: its transaction blocks garbage collection"
            );
            until = until.min(begun);
        }
        Ok(until)
    }

    /// Calls until it succeeds, for a minute. An attempt may take as long as `requests` short calls take in this cluster at present.
    /// Most of the cluster is not ours: a failure there does not count against the client.
    async fn patiently<T, F>(
        &self,
        op: &'static str,
        requests: u32,
        call: impl Fn(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let pool = &self.shared.pool;
        let attempt = pool.stretched(SCAN_TIMEOUT, requests);
        let deadline = Instant::now() + RESOLVE_LOCKS_TIMEOUT.max(2 * attempt);
        loop {
            match pool.call_untracked(op, attempt, &call).await {
                Err(error) if error.is_transient() && Instant::now() + SCAN_RETRY_DELAY < deadline => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "trying again");
                    tokio::time::sleep(SCAN_RETRY_DELAY).await;
                }
                outcome => return outcome,
            }
        }
    }
}

impl GcRound {
    fn tell(&self) {
        match self {
            GcRound::Done => tracing::info!("collected the garbage of the TiKV cluster"),
            GcRound::Held(by) => tracing::info!(
                by,
                "collected a part of the garbage of the TiKV cluster: the rest is still needed"
            ),
            GcRound::Foreign => tracing::info!("another service owns TiKV GC; skipping"),
        }
    }
}

/// Returns the start of the transaction whose lock names a primary key that has another primary key, if that is the error.
fn mismatched(error: &ClientError) -> Option<Ts> {
    match error {
        ClientError::ExtractedErrors(errors) | ClientError::MultipleKeyErrors(errors) => {
            errors.iter().find_map(mismatched)
        }
        ClientError::KeyError(error) => {
            let lock = error.primary_mismatch.as_ref()?.lock_info.as_ref()?;
            Some(Ts(lock.lock_version))
        }
        _ => None,
    }
}

fn oldest(locks: &[ProtoLockInfo], until: Ts) -> Ts {
    locks.iter().map(|lock| Ts(lock.lock_version)).fold(until, Ts::min)
}

/// An empty end is the end of everything.
fn range(from: &Bytes, to: &Bytes) -> BoundRange {
    if to.is_empty() {
        (from.to_vec()..).into()
    } else {
        (from.to_vec()..to.to_vec()).into()
    }
}

/// The first key after `key`.
fn after(key: &[u8]) -> Bytes {
    let mut after = BytesMut::with_capacity(key.len() + 1);
    after.put_slice(key);
    after.put_u8(0);
    after.freeze()
}

#[cfg(test)]
mod tests;
