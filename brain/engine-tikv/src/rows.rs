//! Rows in TiKV: transactions guarded by a fence, snapshots at timestamps.
//!
//! - **Fence**: one key, the primary one of every change. Its stored value is compared within the transaction, so every
//!   pending change of an older writer fails as a whole. Its new value proves the result of a change of unknown outcome.
//! - **Fence shards**: keys that represent the fence while several transactions are in progress at once. They begin, then the fence
//!   is read once, and each writes its own fence shard. A writer's first change writes all fence shards, so a transaction that began
//!   before it fails.
//! - **Take-over** ends transactions that an older writer left unfinished. Otherwise their locks would remain for seconds.
//! - **Snapshots** read at a timestamp. TiKV answers reads below the cluster's safe point with silent holes, so the age of a
//!   snapshot is compared with half of the window that garbage collection leaves, after every reply.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::snapshot::TikvSnapshot;
use crate::{CallLimits, Error, FencedOutcome, FencedWrite, Mutation, Tikv};
use engine::rows::{DynSnapshot, RowChange, Rows, RowsError, StepSize, check_lengths};

/// Reads at a timestamp. A lock that stays belongs to a dead or deposed writer, or to a change that takes very long. The transaction of such
/// a lock is ended. If it was alive after all, its writer repeats it.
macro_rules! settled {
    ($tikv:expr, $at:expr, $read:expr) => {
        match $read.await {
            Err($crate::Error::Locked(_)) => {
                let (from, to) = $tikv.keys().whole();
                match $tikv.end_transactions($at, &from, &to).await {
                    Ok(()) => $read.await,
                    Err(error) => Err(error),
                }
            }
            outcome => outcome,
        }
    };
}

mod snapshot;
#[cfg(test)]
mod tests;

/// Timeout of one attempt at a small change. It is short, because a new leader waits for its first change and a connection may
/// hang.
const WRITE_TIMEOUT: Duration = Duration::from_secs(4);

/// A large change is sent in many pieces: its timeout grows by a second for this many bytes.
const WRITE_BYTES_PER_SECOND: usize = 256 << 10;

/// Attempts at a change that hangs.
const WRITE_ATTEMPTS: u32 = 3;

/// Bytes of keys and values that the client sends in one piece, and bytes of a change beside its rows: the fence, or a fence shard.
const COMMIT_BATCH_BYTES: usize = 16 << 10;
const FENCE_BYTES: usize = 512;

/// Transactions of a `apply_parallel` in flight at once: a commit takes a few round trips, so they run in parallel.
const FENCE_SHARDS: u8 = 16;

/// The longest value of a row, in bytes: TiKV takes raft entries of 8 MiB.
pub const MAX_VALUE_LEN: usize = (8 << 20) - (64 << 10);

/// Rows in TiKV. Clones share them.
#[derive(Debug, Clone)]
pub struct TikvRows {
    shared: Arc<RowsInner>,
}

#[derive(Debug)]
struct RowsInner {
    tikv: Tikv,
    /// Bytes of key and value of a row, about.
    average: AtomicUsize,
    /// The fence as this process wrote it last. A write that finds another fence takes the fence shards along with it.
    fence: Mutex<Option<Bytes>>,
}

impl TikvRows {
    /// The rows below a connection's prefix.
    #[must_use]
    pub fn new(tikv: Tikv) -> TikvRows {
        let shared = RowsInner {
            tikv,
            average: AtomicUsize::new(512),
            fence: Mutex::new(None),
        };
        TikvRows {
            shared: Arc::new(shared),
        }
    }
}

#[async_trait]
impl Rows for TikvRows {
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError> {
        Ok(Arc::new(TikvSnapshot::now(self.shared.clone()).await?))
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        let tikv = &self.shared.tikv;
        let now = tikv.timestamp().await.map_err(failed)?;
        let fence = tikv.keys().fence();
        settled!(tikv, now, tikv.get(now, &fence)).map_err(failed)
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError> {
        check_lengths(&changes, self.max_key_len(), self.max_value_len())?;
        let shared = &self.shared;
        let keys = shared.tikv.keys();
        let mut mutations = shared.mutations(&changes);
        if !shared.is_own(expected.as_ref()) {
            mutations.extend((0..FENCE_SHARDS).map(|shard| Mutation::Put(keys.fence_shard(shard), fence.clone())));
        }
        let key = keys.fence();
        let behind = FencedWrite {
            fence: &key,
            expected: expected.as_ref(),
            primary: &key,
            new: &fence,
        };
        shared.write(behind, &mutations).await?;
        shared.set_own(Some(fence));
        shared.observe_changes(&changes);
        Ok(())
    }

    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
        for step in &steps {
            check_lengths(step, self.max_key_len(), self.max_value_len())?;
        }
        // One fence shard has one transaction at a time.
        for at_once in steps.chunks(FENCE_SHARDS.into()) {
            self.shared.write_in_lanes(&fence, at_once).await?;
        }
        Ok(())
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.shared.set_own(None);
        let tikv = &self.shared.tikv;
        let now = tikv.timestamp().await.map_err(failed)?;
        let (from, to) = tikv.keys().whole();
        tikv.end_transactions(now, &from, &to).await.map_err(failed)
    }

    async fn sync(&self) -> Result<(), RowsError> {
        Ok(()) // what is committed is durable
    }

    fn renew_after(&self) -> Option<Duration> {
        Some((self.shared.tikv.snapshot_age() / 5).min(Duration::from_secs(60)))
    }

    fn step(&self) -> StepSize {
        // A batch that fits into one piece of the client, and whose keys are in one region, is committed in one phase. For a larger
        // one, the client copies the whole batch for each piece and sends all keys along.
        let prefix = self.shared.tikv.keys().row(&[]).len();
        let rows = (COMMIT_BATCH_BYTES / 4 / prefix).min(128);
        StepSize {
            rows,
            bytes: COMMIT_BATCH_BYTES - rows * prefix - FENCE_BYTES,
            at_once: FENCE_SHARDS.into(),
        }
    }

    fn max_key_len(&self) -> usize {
        self.shared.tikv.keys().max_row_len()
    }

    fn max_value_len(&self) -> usize {
        MAX_VALUE_LEN
    }

    fn size(&self) -> Option<u64> {
        None // other members write them, too
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    async fn compact(&self) -> Result<(), RowsError> {
        Ok(())
    }

    async fn renewal_asked(&self) {
        std::future::pending().await
    }

    fn in_use(&self) -> Option<u64> {
        None
    }

    fn is_reclaiming(&self) -> bool {
        false
    }

    fn to_come(&self) -> u64 {
        0
    }

    fn open_snapshots(&self) -> Option<u64> {
        None
    }

    fn left_over(&self) -> u64 {
        0
    }
}

impl RowsInner {
    fn mutations(&self, changes: &[RowChange]) -> Vec<Mutation> {
        let keys = self.tikv.keys();
        let mutation = |change: &RowChange| match change {
            RowChange::Put(key, value) => Mutation::Put(keys.row(key), value.clone()),
            RowChange::Delete(key) => Mutation::Delete(keys.row(key)),
        };
        changes.iter().map(mutation).collect()
    }

    async fn write(&self, behind: FencedWrite<'_>, mutations: &[Mutation]) -> Result<(), RowsError> {
        outcome(self.tikv.write(behind, mutations, limits(mutations)).await)
    }

    /// Writes steps at once, each in a fence shard of its own.
    async fn write_in_lanes(&self, fence: &Bytes, steps: &[Vec<RowChange>]) -> Result<(), RowsError> {
        let keys = self.tikv.keys();
        let shards: Vec<Bytes> = (0..FENCE_SHARDS).map(|shard| keys.fence_shard(shard)).collect();
        let key = keys.fence();
        let writes: Vec<_> = steps
            .iter()
            .zip(&shards)
            .map(|(step, shard)| {
                let behind = FencedWrite {
                    fence: &key,
                    expected: Some(fence),
                    primary: shard,
                    new: fence,
                };
                (behind, self.mutations(step))
            })
            .collect();
        outcome(self.tikv.write_all(&writes, limits).await)?;
        steps.iter().for_each(|step| self.observe_changes(step));
        Ok(())
    }

    fn is_own(&self, fence: Option<&Bytes>) -> bool {
        let own = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        own.is_some() && own.as_ref() == fence
    }

    fn set_own(&self, fence: Option<Bytes>) {
        *self.fence.lock().unwrap_or_else(PoisonError::into_inner) = fence;
    }

    /// Learns from changes how long rows are.
    fn observe_changes(&self, changes: &[RowChange]) {
        let puts = changes.iter().filter(|change| matches!(change, RowChange::Put(..)));
        let (puts, bytes) = puts.fold((0, 0), |(puts, bytes), put| (puts + 1, bytes + put.len()));
        if let Some(mean) = bytes.checked_div(puts) {
            self.observe(mean);
        }
    }

    /// Learns from the mean length of some rows.
    fn observe(&self, mean: usize) {
        let old = self.average.load(Ordering::Relaxed);
        self.average.store((old / 2 + mean / 2).max(1), Ordering::Relaxed);
    }
}

/// Time limits of a change.
fn limits(mutations: &[Mutation]) -> CallLimits {
    let bytes: usize = mutations.iter().map(Mutation::len).sum();
    let attempt = WRITE_TIMEOUT + Duration::from_secs((bytes / WRITE_BYTES_PER_SECOND) as u64);
    CallLimits {
        attempt,
        total: WRITE_ATTEMPTS * attempt,
    }
}

fn outcome(written: Result<FencedOutcome, Error>) -> Result<(), RowsError> {
    match written {
        Ok(FencedOutcome::Done) => Ok(()),
        Ok(FencedOutcome::Other(found)) => Err(RowsError::Fenced(found)),
        Err(Error::Full(error)) => Err(RowsError::Full(error)),
        Err(error @ Error::TooLarge(_)) => Err(RowsError::Refused(error.to_string())),
        Err(error) => Err(RowsError::Unknown(error.into())),
    }
}

fn failed(error: Error) -> RowsError {
    match error {
        Error::Full(error) => RowsError::Full(error),
        error => RowsError::Unavailable(error.into()),
    }
}
