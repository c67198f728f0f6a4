//! Rows that fail after a number of writes, as if the process had ended there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::hooked::{HookedRows, RowsHooks};
use engine::rows::{RowChange, RowsError};

/// The number of writes that are taken before none is.
#[derive(Clone)]
pub(crate) struct WritesLeft(Arc<AtomicUsize>);

impl RowsHooks for WritesLeft {
    async fn before_apply(&self, _: &[RowChange]) -> Result<(), RowsError> {
        let left = &self.0;
        let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| RowsError::Failed(anyhow::anyhow!("cut")))
    }
}

/// Returns rows that take `writes` more.
pub(crate) fn failing_after<R>(writes: usize, rows: R) -> HookedRows<R, WritesLeft> {
    HookedRows::new(rows, WritesLeft(Arc::new(AtomicUsize::new(writes))))
}
