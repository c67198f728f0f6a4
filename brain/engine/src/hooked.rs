//! A log and rows that ask a test before each request, and say afterwards what came of it. Hooks do nothing unless a test says more.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::log::{AppendError, Log, LogError, LogId, Slot};
use crate::rows::{DynSnapshot, Page, RowChange, Rows, RowsError, Scan, Snapshot, StepSize};

/// Hooks around requests to rows.
pub trait RowsHooks: Clone + Send + Sync + 'static {
    /// Before a snapshot is taken.
    fn before_snapshot(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// After the fence was read.
    fn after_fence(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Before changes are written; an error takes their place.
    fn before_apply(&self, _changes: &[RowChange]) -> impl Future<Output = Result<(), RowsError>> + Send {
        ready(Ok(()))
    }

    /// Before what is written is synced.
    fn before_sync(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Before one row of a snapshot is read.
    fn before_get(&self, _key: &[u8]) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Before many rows of a snapshot are read.
    fn before_multi_get(&self, _keys: &[Bytes]) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Before a range of a snapshot is read.
    fn before_scan(&self, _scan: &Scan) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// After a range of a snapshot was read.
    fn after_scan(&self, _page: &Page) {}

    /// Returns the step to say, given that of the rows.
    fn step(&self, own: StepSize) -> StepSize {
        own
    }

    /// Returns the age of snapshots to say, given that of the rows.
    fn renew_after(&self, own: Option<Duration>) -> Option<Duration> {
        own
    }

    /// Returns whether no other process can write the rows, given what they say.
    fn is_exclusive(&self, own: bool) -> bool {
        own
    }
}

/// Rows with hooks. Clones share both.
#[derive(Debug, Clone)]
pub struct HookedRows<R, H> {
    rows: R,
    /// The hooks.
    pub hooks: H,
}

/// A snapshot of [`HookedRows`].
pub struct HookedSnapshot<H> {
    snapshot: DynSnapshot,
    hooks: H,
}

impl<R, H> HookedRows<R, H> {
    /// Creates rows above others.
    pub fn new(rows: R, hooks: H) -> Self {
        Self { rows, hooks }
    }
}

#[async_trait]
impl<R: Rows, H: RowsHooks> Rows for HookedRows<R, H> {
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError> {
        self.hooks.before_snapshot().await;
        Ok(Arc::new(HookedSnapshot {
            snapshot: self.rows.snapshot().await?,
            hooks: self.hooks.clone(),
        }))
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        let fence = self.rows.fence().await;
        self.hooks.after_fence().await;
        fence
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError> {
        self.hooks.before_apply(&changes).await?;
        self.rows.apply(expected, fence, changes).await
    }

    /// Steps are written one at a time, so that a test may stop between two of them.
    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
        for step in steps {
            self.hooks.before_apply(&step).await?;
            self.rows.apply_parallel(fence.clone(), vec![step]).await?;
        }
        Ok(())
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.rows.take_over().await
    }

    fn is_exclusive(&self) -> bool {
        self.hooks.is_exclusive(self.rows.is_exclusive())
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.hooks.before_sync().await;
        self.rows.sync().await
    }

    async fn compact(&self) -> Result<(), RowsError> {
        self.rows.compact().await
    }

    fn renew_after(&self) -> Option<Duration> {
        self.hooks.renew_after(self.rows.renew_after())
    }

    async fn renewal_asked(&self) {
        self.rows.renewal_asked().await;
    }

    fn step(&self) -> StepSize {
        self.hooks.step(self.rows.step())
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

    fn in_use(&self) -> Option<u64> {
        self.rows.in_use()
    }

    fn is_reclaiming(&self) -> bool {
        self.rows.is_reclaiming()
    }

    fn set_in_use(&self, bytes: u64) {
        self.rows.set_in_use(bytes);
    }

    fn to_come(&self) -> u64 {
        self.rows.to_come()
    }

    fn open_snapshots(&self) -> Option<u64> {
        self.rows.open_snapshots()
    }

    fn left_over(&self) -> u64 {
        self.rows.left_over()
    }
}

#[async_trait]
impl<H: RowsHooks> Snapshot for HookedSnapshot<H> {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.snapshot.fence().await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.hooks.before_get(key).await;
        self.snapshot.get(key).await
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.hooks.before_multi_get(keys).await;
        self.snapshot.multi_get(keys).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        self.hooks.before_scan(&scan).await;
        let page = self.snapshot.scan(scan).await?;
        self.hooks.after_scan(&page);
        Ok(page)
    }

    fn scans_values(&self) -> bool {
        self.snapshot.scans_values()
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.snapshot.split_points(from, to, parts).await
    }
}

/// Hooks around requests to a log.
pub trait LogHooks: Clone + Send + Sync + 'static {
    /// Before a record is appended.
    fn before_append(&self, _slot: Slot) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Before slots are read from `from` on; an error takes their place.
    fn before_read(&self, _from: Slot) -> impl Future<Output = Result<(), LogError>> + Send {
        ready(Ok(()))
    }

    /// After slots were read.
    fn after_read(&self, _slots: &[(Slot, Bytes)]) {}

    /// Before the watermark is read.
    fn before_watermark(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// A log with hooks. Clones share both.
#[derive(Debug, Clone)]
pub struct HookedLog<L, H> {
    log: L,
    /// The hooks.
    pub hooks: H,
}

impl<L, H> HookedLog<L, H> {
    /// Creates a log above another.
    pub fn new(log: L, hooks: H) -> Self {
        Self { log, hooks }
    }
}

#[async_trait]
impl<L: Log, H: LogHooks> Log for HookedLog<L, H> {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        self.hooks.before_append(slot).await;
        self.log.append(slot, record).await
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        self.hooks.before_read(from).await?;
        let slots = self.log.read(from, max_bytes).await?;
        self.hooks.after_read(&slots);
        Ok(slots)
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        self.hooks.before_watermark().await;
        self.log.watermark().await
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        self.log.raise_watermark(to).await
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        self.log.destroy_below_watermark().await
    }

    async fn shrink(&self) -> Result<(), LogError> {
        self.log.shrink().await
    }

    fn id(&self) -> Option<LogId> {
        self.log.id()
    }

    fn max_record_len(&self) -> usize {
        self.log.max_record_len()
    }

    fn size(&self) -> u64 {
        self.log.size()
    }
}
