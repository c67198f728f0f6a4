//! Rows that count their reads. Some of them can stop answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use engine::hooked::{HookedRows, RowsHooks};
use engine::rows::Scan;
use engine::rows::mem::MemRows;

/// Keys with this in them cannot be read while rows are silent.
const SILENT_KEY_PART: &[u8] = b"silent";

/// Reads of rows. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Reads {
    pub(super) is_silent: Arc<AtomicBool>,
    /// Single rows.
    gets: Arc<AtomicUsize>,
    /// Many rows at once.
    multi_gets: Arc<AtomicUsize>,
    /// Rows with values that were asked for by name.
    objects: Arc<AtomicUsize>,
    /// Pages of rows in their order.
    pub(super) scans: Arc<AtomicUsize>,
    /// Reads that began and did not end.
    pub(super) under_way: Arc<AtomicUsize>,
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
        let is_silent = key.windows(SILENT_KEY_PART.len()).any(|part| part == SILENT_KEY_PART);
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

impl RowsHooks for Reads {
    async fn before_get(&self, key: &[u8]) {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.pass(key).await;
    }

    async fn before_multi_get(&self, keys: &[Bytes]) {
        self.multi_gets
            .fetch_add(usize::from(!keys.is_empty()), Ordering::SeqCst);
        for key in keys {
            self.pass(key).await;
        }
    }

    async fn before_scan(&self, scan: &Scan) {
        self.scans.fetch_add(1, Ordering::SeqCst);
        // A scan is no read by name.
        self.pass(&[b"i", &scan.from[..]].concat()).await;
    }
}

/// Rows whose reads are counted. Some of them never answer while a test says so.
pub(super) type Counted = HookedRows<MemRows, Reads>;

/// Returns empty rows.
pub(super) fn counted() -> Counted {
    HookedRows::new(MemRows::new(), Reads::default())
}
