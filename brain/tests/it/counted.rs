//! Rows that count what is read from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::rows::{Change, Page, Rows, RowsError, Scan, Snapshot, Step};

/// Reads of rows. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    calls: Arc<AtomicUsize>,
    rows: Arc<AtomicUsize>,
}

impl Reads {
    fn add(&self, rows: usize) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.rows.fetch_add(rows, Ordering::SeqCst);
    }

    /// Calls and rows since this was asked last.
    pub(crate) fn take(&self) -> (usize, usize) {
        (
            self.calls.swap(0, Ordering::SeqCst),
            self.rows.swap(0, Ordering::SeqCst),
        )
    }
}

/// Rows whose snapshots count.
#[derive(Clone, Debug)]
pub(crate) struct Counted<R> {
    rows: R,
    pub(crate) reads: Reads,
}

impl<R> Counted<R> {
    pub(crate) fn new(rows: R) -> Self {
        Self {
            rows,
            reads: Reads::default(),
        }
    }
}

/// A snapshot that counts.
#[derive(Clone, Debug)]
pub(crate) struct CountedSnapshot<S> {
    snapshot: S,
    reads: Reads,
}

impl<R: Rows> Rows for Counted<R> {
    type Snapshot = CountedSnapshot<R::Snapshot>;

    async fn snapshot(&self) -> Result<Self::Snapshot, RowsError> {
        Ok(CountedSnapshot {
            snapshot: self.rows.snapshot().await?,
            reads: self.reads.clone(),
        })
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.rows.fence().await
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<Change>) -> Result<(), RowsError> {
        self.rows.apply(expected, fence, changes).await
    }

    async fn sync(&self) -> Result<(), RowsError> {
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

impl<S: Snapshot> Snapshot for CountedSnapshot<S> {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.snapshot.fence().await
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.reads.add(1);
        self.snapshot.get(key).await
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.reads.add(keys.len());
        self.snapshot.multi_get(keys).await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        let page = self.snapshot.scan(scan).await?;
        self.reads.add(page.rows.len());
        Ok(page)
    }

    fn scans_values(&self) -> bool {
        self.snapshot.scans_values()
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.snapshot.split_points(from, to, parts).await
    }
}
