//! Rows that a test pauses and resumes: before a change, a sync, a snapshot or a scan, or after a read of the fence.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::rows::{Change, Page, Rows, RowsError, Scan, Snapshot, Step};
use tokio::sync::{Semaphore, watch};

/// More than ever pass.
const FREE: usize = 1 << 20;

/// A point that all callers must pass.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    fn open() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(FREE)),
            arrived: watch::Sender::new(0),
        }
    }

    /// Blocks all calls from now on; returns the number of earlier ones.
    pub(crate) fn hold(&self) -> usize {
        self.permits.forget_permits(usize::MAX >> 4);
        *self.arrived.borrow()
    }

    /// Returns the number of calls that arrived.
    pub(crate) fn passed(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Waits until more than `before` calls have arrived.
    pub(crate) async fn reached(&self, before: usize) {
        let mut arrived = self.arrived.subscribe();
        arrived.wait_for(|now| *now > before).await.expect("the gate is there");
    }

    /// Lets one caller pass and waits until the next one arrives.
    pub(crate) async fn step(&self) {
        let before = *self.arrived.borrow();
        self.permits.add_permits(1);
        self.reached(before).await;
    }

    /// Stops no caller any more.
    pub(crate) fn release(&self) {
        self.permits.add_permits(FREE);
    }

    async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.permits.acquire().await.expect("never closed").forget();
    }
}

/// Rows with gates. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PausableRows<R> {
    rows: R,
    pub(crate) change: Gate,
    /// After a read of the fence.
    pub(crate) fence: Gate,
    pub(crate) sync: Gate,
    pub(crate) snapshot: Gate,
    pub(crate) scan: Gate,
}

/// A snapshot with the gate of scans.
#[derive(Clone, Debug)]
pub(crate) struct PausableSnapshot<S> {
    snapshot: S,
    scan: Gate,
}

impl<R> PausableRows<R> {
    pub(crate) fn new(rows: R) -> Self {
        Self {
            rows,
            change: Gate::open(),
            fence: Gate::open(),
            sync: Gate::open(),
            snapshot: Gate::open(),
            scan: Gate::open(),
        }
    }
}

impl<R: Rows> Rows for PausableRows<R> {
    type Snapshot = PausableSnapshot<R::Snapshot>;

    async fn snapshot(&self) -> Result<Self::Snapshot, RowsError> {
        self.snapshot.pass().await;
        Ok(PausableSnapshot {
            snapshot: self.rows.snapshot().await?,
            scan: self.scan.clone(),
        })
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        let fence = self.rows.fence().await;
        self.fence.pass().await;
        fence
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<Change>) -> Result<(), RowsError> {
        self.change.pass().await;
        self.rows.apply(expected, fence, changes).await
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.sync.pass().await;
        self.rows.sync().await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.rows.take_over().await
    }

    fn renew_after(&self) -> Option<Duration> {
        self.rows.renew_after()
    }

    fn step(&self) -> Step {
        self.rows.step()
    }

    fn max_key_len(&self) -> usize {
        self.rows.max_key_len()
    }

    fn max_value_len(&self) -> usize {
        self.rows.max_value_len()
    }

    fn size(&self) -> Option<u64> {
        self.rows.size()
    }
}

impl<S: Snapshot> Snapshot for PausableSnapshot<S> {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.snapshot.fence().await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.snapshot.get(key).await
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.snapshot.multi_get(keys).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        self.scan.pass().await;
        self.snapshot.scan(scan).await
    }

    fn scans_values(&self) -> bool {
        self.snapshot.scans_values()
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.snapshot.split_points(from, to, parts).await
    }
}
