//! Rows that count what is read from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use engine::hooked::{HookedRows, RowsHooks};
use engine::rows::Page;

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

impl RowsHooks for Reads {
    async fn before_get(&self, _: &[u8]) {
        self.add(1);
    }

    async fn before_multi_get(&self, keys: &[Bytes]) {
        self.add(keys.len());
    }

    fn after_scan(&self, page: &Page) {
        self.add(page.rows.len());
    }
}

/// Rows whose snapshots count.
pub(crate) type Counted<R> = HookedRows<R, Reads>;
