//! Rows that fail after a number of writes, as if the process had ended there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::rows::{Change, Rows, RowsError, Step};

/// Rows that take some more writes and then none.
#[derive(Clone)]
pub(crate) struct FailingRows<R> {
    left: Arc<AtomicUsize>,
    inner: R,
}

impl<R> FailingRows<R> {
    /// Takes `writes` more.
    pub(crate) fn after(writes: usize, inner: R) -> Self {
        let left = Arc::new(AtomicUsize::new(writes));
        Self { left, inner }
    }
}

impl<R: Rows> Rows for FailingRows<R> {
    type Snapshot = R::Snapshot;

    async fn snapshot(&self) -> Result<R::Snapshot, RowsError> {
        self.inner.snapshot().await
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.inner.fence().await
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<Change>) -> Result<(), RowsError> {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(RowsError::Failed(anyhow::anyhow!("cut")));
        }
        self.inner.apply(expected, fence, changes).await
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        self.inner.take_over().await
    }

    async fn sync(&self) -> Result<(), RowsError> {
        self.inner.sync().await
    }

    fn renew_after(&self) -> Option<Duration> {
        self.inner.renew_after()
    }

    fn step(&self) -> Step {
        self.inner.step()
    }

    fn max_key_len(&self) -> usize {
        self.inner.max_key_len()
    }

    fn max_value_len(&self) -> usize {
        self.inner.max_value_len()
    }

    fn size(&self) -> Option<u64> {
        self.inner.size()
    }
}
