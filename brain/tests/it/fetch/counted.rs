//! Rows that count their reads. Some of them can stop answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::rows::mem::{MemRows, MemSnapshot};
use engine::rows::{Change, Page, Rows, RowsError, Scan, Snapshot, Step};

/// Keys with this in them cannot be read while rows are silent.
const SILENT: &[u8] = b"silent";

/// Rows whose reads are counted. Some of them never answer while a test says so.
#[derive(Clone, Default)]
pub(super) struct Counted {
    rows: MemRows,
    pub(super) reads: Arc<Reads>,
}

#[derive(Default)]
pub(super) struct Reads {
    pub(super) is_silent: AtomicBool,
    /// Single rows.
    gets: AtomicUsize,
    /// Many rows at once.
    multi_gets: AtomicUsize,
    /// Rows with values that were asked for by name.
    objects: AtomicUsize,
    /// Pages of rows in their order.
    pub(super) scans: AtomicUsize,
    /// Reads that began and did not end.
    pub(super) under_way: AtomicUsize,
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reads {
    async fn pass(&self, key: &[u8]) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        let is_silent = key.windows(SILENT.len()).any(|part| part == SILENT);
        if is_silent && self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if key.first() == Some(&b'o') {
            self.objects.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Single reads, reads of many rows, and rows with values, since the last time.
    pub(super) fn take(&self) -> (usize, usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::SeqCst);
        (take(&self.gets), take(&self.multi_gets), take(&self.objects))
    }
}

#[derive(Clone)]
pub(super) struct CountedSnapshot(MemSnapshot, Arc<Reads>);

impl Snapshot for CountedSnapshot {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.0.fence().await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.1.gets.fetch_add(1, Ordering::SeqCst);
        self.1.pass(key).await;
        self.0.get(key).await
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.1
            .multi_gets
            .fetch_add(usize::from(!keys.is_empty()), Ordering::SeqCst);
        for key in keys {
            self.1.pass(key).await;
        }
        self.0.multi_get(keys).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        self.1.scans.fetch_add(1, Ordering::SeqCst);
        // A scan is no read by name.
        self.1.pass(&[b"i", &scan.from[..]].concat()).await;
        self.0.scan(scan).await
    }

    fn scans_values(&self) -> bool {
        self.0.scans_values()
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.0.split_points(from, to, parts).await
    }
}

impl Rows for Counted {
    type Snapshot = CountedSnapshot;

    async fn snapshot(&self) -> Result<CountedSnapshot, RowsError> {
        Ok(CountedSnapshot(self.rows.snapshot().await?, self.reads.clone()))
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.rows.fence().await
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<Change>) -> Result<(), RowsError> {
        self.rows.apply(expected, fence, changes).await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.rows.take_over().await
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.rows.sync().await
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
