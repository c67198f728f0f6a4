//! Rows that a test pauses and resumes: before a change, a sync, a snapshot or a scan, or after a read of the fence.

use std::sync::Arc;

use engine::hooked::{HookedRows, RowsHooks};
use engine::rows::{RowChange, RowsError, Scan};
use tokio::sync::{Semaphore, watch};

/// More than ever pass.
const UNPAUSED_PERMITS: usize = 1 << 20;

/// A point that all callers must pass.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    fn open() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(UNPAUSED_PERMITS)),
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
        self.permits.add_permits(UNPAUSED_PERMITS);
    }

    async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.permits.acquire().await.expect("never closed").forget();
    }
}

/// The gates of rows. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    pub(crate) change: Gate,
    /// After a read of the fence.
    pub(crate) fence: Gate,
    pub(crate) sync: Gate,
    pub(crate) snapshot: Gate,
    pub(crate) scan: Gate,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            change: Gate::open(),
            fence: Gate::open(),
            sync: Gate::open(),
            snapshot: Gate::open(),
            scan: Gate::open(),
        }
    }
}

impl RowsHooks for Gates {
    async fn before_snapshot(&self) {
        self.snapshot.pass().await;
    }

    async fn after_fence(&self) {
        self.fence.pass().await;
    }

    async fn before_apply(&self, _: &[RowChange]) -> Result<(), RowsError> {
        self.change.pass().await;
        Ok(())
    }

    async fn before_sync(&self) {
        self.sync.pass().await;
    }

    async fn before_scan(&self, _: &Scan) {
        self.scan.pass().await;
    }
}

/// Rows with gates.
pub(crate) type PausableRows<R> = HookedRows<R, Gates>;
