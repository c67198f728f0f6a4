//! Memory and turns for rows that requests read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use etcd_types::errors::Error;
use etcd_types::types::KeyValue;

/// The number of requests that may read at once. Further ones wait.
const MAX_READS: usize = 1_024;

/// Requests that read for longer than that.
const MAX_SLOW_READS: usize = 4_096;

/// Rows that one request may examine when it reads.
const MAX_ROWS_PER_REQUEST: usize = 4_000_000;

/// Rows that one request may examine again because it reads the same span again, as the writer does.
const MAX_REPEATED_ROWS: usize = 200_000;

/// Memory that a row takes in addition to its key and value.
const ROW_OVERHEAD_BYTES: usize = 200;

/// A key of usual length.
const SHORT_KEY_BYTES: usize = 50;

/// Only requests that take at most this many bytes of a pool may use its last quarter: so large requests do not cause small ones to be
/// refused.
const SMALL_REQUEST_BYTES: usize = 256 << 10;

/// A process with less memory than this gets the budget for this much.
const MIN_MEMORY_BYTES: u64 = 256 << 20;

/// Keys of leases that are read at once, unless one lease has more. Further leases wait.
const MAX_LEASE_KEYS: usize = 32_768;

/// Leases with at most this many keys do not wait.
pub const FEW_LEASE_KEYS: usize = 256;

/// Leases with at most this many keys do not wait for leases with more.
const MANY_LEASE_KEYS: usize = 4_096;

/// The kind of work that fetches rows. Each kind has its own memory and takes none from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchKind {
    /// Requests that write.
    Writes,
    /// Txns that change nothing, and history.
    Reads,
    /// Leases that ran out.
    LeaseEnds,
}

/// Memory for fetched rows, in bytes.
#[derive(Debug, Clone)]
struct FetchPool {
    bytes: Arc<Semaphore>,
    /// The bytes that requests larger than [`SMALL_REQUEST_BYTES`] may take.
    of_others: Arc<Semaphore>,
    /// The most bytes that one request takes from the pool.
    most: usize,
    /// One request at a time may exceed `most`; its bytes are not taken from the pool.
    large: Arc<Semaphore>,
    /// The most bytes of such a request.
    largest: usize,
    /// Turns for the keys of leases: with up to [`MANY_LEASE_KEYS`] keys, and with more.
    lease_keys: [Arc<Semaphore>; 2],
    /// The permits of each of them.
    lease_turns: usize,
}

impl FetchPool {
    fn new(bytes: usize, large: Arc<Semaphore>, largest: usize) -> Self {
        let of_others = bytes / 4 * 3;
        // A small pool has room for fewer keys, of two kinds of leases.
        let lease_turns = MAX_LEASE_KEYS.min(of_others / 2 / (ROW_OVERHEAD_BYTES + SHORT_KEY_BYTES));
        Self {
            bytes: Arc::new(Semaphore::new(bytes)),
            of_others: Arc::new(Semaphore::new(of_others)),
            most: bytes / 4,
            large,
            largest,
            lease_keys: std::array::from_fn(|_| Arc::new(Semaphore::new(lease_turns))),
            lease_turns,
        }
    }
}

/// The budget for reads of all requests together. Clones share it.
#[derive(Debug, Clone)]
pub struct FetchBudgets {
    reads: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    writes: FetchPool,
    read_only: FetchPool,
    lease_ends: FetchPool,
    /// Watchers that want previous versions, where all of them are known.
    watchers: Arc<OnceLock<Arc<AtomicU64>>>,
}

impl Default for FetchBudgets {
    fn default() -> Self {
        Self::within(u64::MAX)
    }
}

impl FetchBudgets {
    /// The budget of a process that may use `memory` bytes. Deleted keys take four times their charge until they are in rows, because
    /// their changes, versions in memory, the record and its events are added. So the largest delete takes half of a small memory.
    /// A txn is charged for everything that it reads, too.
    #[must_use]
    pub fn within(memory: u64) -> Self {
        let part = |of: u64, most: usize| {
            let bytes = usize::try_from(memory.max(MIN_MEMORY_BYTES) / of);
            bytes.map_or(most, |bytes| bytes.min(most))
        };
        let large = || Arc::new(Semaphore::new(1));
        Self {
            reads: Arc::new(Semaphore::new(MAX_READS)),
            slow: Arc::new(Semaphore::new(MAX_SLOW_READS)),
            writes: FetchPool::new(part(16, 128 << 20), large(), part(8, 256 << 20)),
            read_only: FetchPool::new(part(32, 64 << 20), large(), part(16, 128 << 20)),
            lease_ends: FetchPool::new(part(64, 32 << 20), large(), part(8, 256 << 20)),
            watchers: Arc::default(),
        }
    }

    /// Sets the number of watchers that want previous versions. While it is 0, values that no request needs are not read.
    pub fn read_unasked_for(&self, watchers: Arc<AtomicU64>) {
        self.watchers.get_or_init(|| watchers);
    }

    /// Returns the most bytes that one request of this kind may take.
    #[must_use]
    pub fn largest(&self, share: FetchKind) -> usize {
        self.pool(share).largest
    }

    fn pool(&self, share: FetchKind) -> &FetchPool {
        match share {
            FetchKind::Writes => &self.writes,
            FetchKind::Reads => &self.read_only,
            FetchKind::LeaseEnds => &self.lease_ends,
        }
    }

    /// Returns an unused budget for one request.
    #[must_use]
    pub fn budget(&self, share: FetchKind) -> FetchBudget {
        FetchBudget {
            reads: self.reads.clone(),
            slow: self.slow.clone(),
            pool: self.pool(share).clone(),
            _turn: None,
            held: None,
            held_of_others: None,
            is_large: false,
            bytes: 0,
            rows: 0,
            again: 0,
            is_unasked_read: self
                .watchers
                .get()
                .is_none_or(|count| count.load(Ordering::Relaxed) > 0),
        }
    }

    /// Returns the budget for the end of a lease with `keys` keys, once it is its turn: many keys take memory before the first of them is
    /// read. Returns [`Error::RequestTooLarge`] if they are too many for one request.
    pub async fn budget_for_lease(&self, share: FetchKind, keys: usize) -> Result<FetchBudget, Error> {
        let mut budget = self.budget(share);
        if keys > budget.pool.largest / ROW_OVERHEAD_BYTES {
            return Err(Error::RequestTooLarge);
        }
        if keys > FEW_LEASE_KEYS {
            let turns = &budget.pool.lease_keys[usize::from(keys > MANY_LEASE_KEYS)];
            let keys = u32::try_from(keys.min(budget.pool.lease_turns)).unwrap_or(u32::MAX);
            let turn = turns.clone().acquire_many_owned(keys).await;
            // Never closed.
            budget._turn = Some(turn.map_err(|_| Error::Stopped)?);
        }
        Ok(budget)
    }
}

/// The charge for the reads of one request; it is given back when this is dropped.
#[derive(Debug)]
pub struct FetchBudget {
    pub(super) reads: Arc<Semaphore>,
    pub(super) slow: Arc<Semaphore>,
    pool: FetchPool,
    /// The turn of a lease with many keys.
    _turn: Option<OwnedSemaphorePermit>,
    /// Bytes of the pool, or the place of the one large request.
    held: Option<OwnedSemaphorePermit>,
    /// As much, where it is not small.
    held_of_others: Option<OwnedSemaphorePermit>,
    is_large: bool,
    bytes: usize,
    pub(super) rows: usize,
    again: usize,
    /// True if a watcher may want the values that no request needs.
    pub(super) is_unasked_read: bool,
}

impl FetchBudget {
    /// Charges for rows that were read, and for the bytes of those that are kept. Returns [`Error::RequestTooLarge`] if this request can never be
    /// evaluated, and [`Error::TooManyRequests`] if others must end first.
    pub fn take(&mut self, rows: usize, bytes: usize) -> Result<(), Error> {
        self.rows += rows;
        self.bytes += bytes;
        if self.rows > MAX_ROWS_PER_REQUEST || self.bytes > self.pool.largest {
            return Err(Error::RequestTooLarge);
        }
        if self.is_large {
            return Ok(());
        }
        if self.bytes > self.pool.most {
            let large = self.pool.large.clone().try_acquire_owned();
            self.held = Some(large.map_err(|_| Error::TooManyRequests)?);
            self.held_of_others = None;
            self.is_large = true;
            return Ok(());
        }
        if self.bytes > SMALL_REQUEST_BYTES {
            let held = self
                .held_of_others
                .as_ref()
                .map_or(0, OwnedSemaphorePermit::num_permits);
            acquire(&self.pool.of_others, &mut self.held_of_others, self.bytes - held)?;
        }
        acquire(&self.pool.bytes, &mut self.held, bytes)
    }

    /// Charges for rows that will be examined again.
    pub(super) fn take_again(&mut self, rows: usize) -> Result<(), Error> {
        self.again = self.again.saturating_add(rows);
        if self.again > MAX_REPEATED_ROWS {
            Err(Error::RequestTooLarge)
        } else {
            Ok(())
        }
    }

    /// Takes pairs that are kept; fails as [`FetchBudget::take`] does.
    pub fn keep<'a>(&mut self, kvs: impl Iterator<Item = &'a KeyValue> + Clone) -> Result<(), Error> {
        let rows = kvs.clone().count();
        let bytes = kvs.map(|kv| kv.key.len() + kv.value.len() + ROW_OVERHEAD_BYTES).sum();
        self.take(rows, bytes)
    }
}

/// Takes `bytes` bytes at once, or none.
fn acquire(of: &Arc<Semaphore>, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), Error> {
    let permits = u32::try_from(bytes).map_err(|_| Error::RequestTooLarge)?;
    let permit = of.clone().try_acquire_many_owned(permits);
    let permit = permit.map_err(|_| Error::TooManyRequests)?;
    match held {
        Some(held) => held.merge(permit),
        None => *held = Some(permit),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_leave_memory_to_small_ones() {
        let fetches = FetchBudgets::default();
        let mut taken = Vec::new();
        let refused = loop {
            let mut budget = fetches.budget(FetchKind::Writes);
            // In parts; the first part is small.
            match budget
                .take(1, SMALL_REQUEST_BYTES)
                .and_then(|()| budget.take(20, (24 << 20) - SMALL_REQUEST_BYTES))
            {
                Ok(()) => taken.push(budget),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(refused, Error::TooManyRequests) && taken.len() == 4,
            "{refused:?}, {}",
            taken.len()
        );
        let mut small = fetches.budget(FetchKind::Writes);
        small.take(1, SMALL_REQUEST_BYTES).unwrap();
        assert!(matches!(small.take(1, 1 << 20), Err(Error::TooManyRequests)));
        drop(taken);
        small.take(1, 1 << 20).unwrap();
    }

    #[test]
    fn the_largest_request_takes_an_eighth_of_a_small_memory() {
        let refused = |memory, bytes| {
            FetchBudgets::within(memory)
                .budget(FetchKind::Writes)
                .take(1, bytes)
                .err()
        };
        for (memory, most) in [(1 << 20, 32 << 20), (512 << 20, 64 << 20), (1 << 40, 256 << 20)] {
            assert!(refused(memory, most).is_none(), "{memory}");
            assert!(
                matches!(refused(memory, most + 1), Some(Error::RequestTooLarge)),
                "{memory}"
            );
        }
    }

    #[tokio::test]
    async fn keys_of_leases_that_are_read_at_once_fit_a_small_pool() {
        let fetches = FetchBudgets::within(256 << 20);
        let mut held = Vec::new();
        for keys in [FEW_LEASE_KEYS + 1, MANY_LEASE_KEYS + 1] {
            loop {
                let mut waiting = Box::pin(fetches.budget_for_lease(FetchKind::LeaseEnds, keys));
                let std::task::Poll::Ready(budget) = futures::poll!(&mut waiting) else {
                    break;
                };
                let mut budget = budget.unwrap();
                budget
                    .take(keys, keys * (ROW_OVERHEAD_BYTES + SHORT_KEY_BYTES))
                    .unwrap();
                held.push(budget);
            }
        }
        assert!(held.len() > 10, "{}", held.len());
    }

    #[tokio::test]
    async fn leases_with_many_keys_wait_for_each_other() {
        let fetches = FetchBudgets::default();
        let budget = |keys| fetches.budget_for_lease(FetchKind::Writes, keys);
        let first = budget(1_000_000).await.unwrap();
        let mut second = Box::pin(budget(1_000_000));
        assert!(futures::poll!(&mut second).is_pending());
        drop(budget(FEW_LEASE_KEYS).await.unwrap());
        drop(budget(MANY_LEASE_KEYS).await.unwrap());
        drop(fetches.budget_for_lease(FetchKind::LeaseEnds, 30_000).await.unwrap());
        assert!(matches!(budget(2_000_000).await, Err(Error::RequestTooLarge)));
        drop(first);
        second.await.unwrap();
    }
}
