//! Rows that a test pauses and resumes: before a change, a sync or a snapshot, or after a read of the fence.

use std::sync::Arc;
use std::time::Duration;

use brain::rows::{Change, Rows, RowsError, Step};
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

/// More than ever pass.
const FREE: usize = 1 << 20;

/// A place that all who come by have to pass.
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

    /// Lets one pass and waits until the next one stands there.
    pub(crate) async fn step(&self) {
        let before = *self.arrived.borrow();
        self.permits.add_permits(1);
        self.reached(before).await;
    }

    /// Nobody is stopped any more.
    pub(crate) fn release(&self) {
        self.permits.add_permits(FREE);
    }

    async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.permits.acquire().await.expect("never closed").forget();
    }
}

/// Rows behind gates. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PausableRows<R> {
    rows: R,
    pub(crate) change: Gate,
    /// Behind a read of the fence.
    pub(crate) fence: Gate,
    pub(crate) sync: Gate,
    pub(crate) snapshot: Gate,
}

impl<R> PausableRows<R> {
    pub(crate) fn new(rows: R) -> Self {
        Self {
            rows,
            change: Gate::open(),
            fence: Gate::open(),
            sync: Gate::open(),
            snapshot: Gate::open(),
        }
    }
}

impl<R: Rows> Rows for PausableRows<R> {
    type Snapshot = R::Snapshot;

    async fn snapshot(&self) -> Result<R::Snapshot, RowsError> {
        self.snapshot.pass().await;
        self.rows.snapshot().await
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
