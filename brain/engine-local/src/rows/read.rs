//! Reads rows of a view that never changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{AbstractTree as _, Guard as _, InternalValue, IterGuardImpl, Memtable, SeqNo, Slice};

use super::guard::{self, caught, within};
use super::layout::{self, loaded, stored};
use super::tree::RowsTree;
use super::{MAX_KEY_LEN, RowsError};
use engine::rows::{Order, Page, Scan, Snapshot};

/// Gets of up to this many rows run on the caller's thread. No scan does: it may pass any number of deleted rows.
const MAX_INLINE_ROWS: usize = 32;

/// Smaller values are copied, larger ones share memory with the blocks of tables.
const MAX_COPIED_BYTES: usize = 4096;

/// The rows as they were.
#[derive(Clone)]
pub struct LsmSnapshot {
    view: Arc<SnapshotView>,
}

struct SnapshotView {
    tree: RowsTree,
    /// Finds a row among the tables and memtables that there were when the view was taken.
    find: FindRow,
    /// Its number is that of the view.
    place: LiveView,
}

type FindRow = Box<dyn Fn(&[u8], SeqNo) -> lsm_tree::Result<Option<InternalValue>> + Send + Sync>;

/// Returns a lookup in what the tree holds now, apart from `sealed` memtables that the writer keeps. Unlike a lookup in the tree it never
/// waits for the list of tables, which is locked while a new one is synced.
fn finder(tree: &RowsTree, sealed: &[Arc<Memtable>]) -> FindRow {
    let mut memtables = vec![tree.active_memtable()];
    memtables.extend(sealed.iter().rev().cloned());
    let version = tree.current_version();
    Box::new(move |key, number| {
        if let Some(row) = memtables.iter().find_map(|memtable| memtable.get(key, number)) {
            return Ok(Some(row));
        }
        let hash = Builder::get_hash(key);
        let runs = version.iter_levels().flat_map(|level| level.iter());
        for table in runs.filter_map(|run| run.get_for_key(key)) {
            if let Some(row) = table.get(key, number, hash)? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    })
}

/// The sequence numbers of all views.
#[derive(Clone, Default)]
pub(super) struct LiveViews(Arc<Mutex<BTreeMap<SeqNo, usize>>>);

impl LiveViews {
    /// A version below this is needed by no view if a newer one of its row is below it, too.
    pub(super) fn watermark(&self) -> SeqNo {
        let first = self.counts().first_key_value().map(|(number, _)| *number);
        // The newest version that a view sees is below the view's number.
        first.map_or(0, |number| number.saturating_sub(1))
    }

    /// Returns the number of views.
    pub(super) fn len(&self) -> u64 {
        self.counts().values().map(|&count| count as u64).sum()
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<SeqNo, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a view that sees everything below `number`, or below the number of the oldest view if that is higher: versions that no view
    /// sees may be deleted.
    pub(super) fn enter_readable(&self, number: SeqNo) -> LiveView {
        let mut counts = self.counts();
        let oldest = counts.first_key_value().map_or(0, |(oldest, _)| *oldest);
        let number = number.max(oldest);
        *counts.entry(number).or_default() += 1;
        LiveView {
            live: self.clone(),
            number,
        }
    }

    fn enter(&self, number: SeqNo) -> LiveView {
        *self.counts().entry(number).or_default() += 1;
        LiveView {
            live: self.clone(),
            number,
        }
    }
}

/// A view among those that live.
pub(super) struct LiveView {
    live: LiveViews,
    pub(super) number: SeqNo,
}

impl Drop for LiveView {
    fn drop(&mut self) {
        let mut counts = self.live.counts();
        if let Some(count) = counts.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.number);
            }
        }
    }
}

impl LsmSnapshot {
    /// Returns the rows as they are now. No batch may be under way, and the previous view must still exist: this one may need what that
    /// one needs.
    pub(super) fn take(tree: &RowsTree, sealed: &[Arc<Memtable>], live: &LiveViews) -> Self {
        Self {
            view: Arc::new(SnapshotView {
                place: live.enter(tree.visible()),
                find: finder(tree, sealed),
                tree: tree.clone(),
            }),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&SnapshotView) -> Result<T, RowsError> + Send + 'static,
    ) -> Result<T, RowsError> {
        let view = self.view.clone();
        guard::blocking(move || read(&view)).await
    }
}

#[async_trait]
impl Snapshot for LsmSnapshot {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        self.view.fence()
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.view.get(key)
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        if keys.len() <= MAX_INLINE_ROWS {
            return keys.iter().map(|key| self.view.get(key)).collect();
        }
        let keys = keys.to_vec();
        self.read(move |view| keys.iter().map(|key| view.get(key)).collect())
            .await
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        self.read(move |view| view.scan(&scan)).await
    }

    fn scans_values(&self) -> bool {
        true
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        self.view.caught(|| Ok(self.view.split_points(from, to, parts)))
    }
}

impl SnapshotView {
    fn caught<T>(&self, read: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, RowsError> {
        caught(read).map_err(|error| within(self.tree.path(), error))
    }

    fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        let fence = self.tree.fence(self.place.number)?;
        Ok(fence.map(|stored| stored.fence))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        if key.is_empty() || key.len() > MAX_KEY_LEN {
            return Ok(None);
        }
        let found = self.caught(|| (self.find)(&stored(key), self.place.number))?;
        Ok(found.filter(|row| !row.is_tombstone()).map(|row| value(row.value)))
    }

    fn scan(&self, scan: &Scan) -> Result<Page, RowsError> {
        let mut page = Page {
            rows: Vec::new(),
            done: true,
        };
        let Some(range) = layout::range(&scan.from, scan.to.as_deref()) else {
            return Ok(page);
        };
        self.caught(|| {
            let mut iter = self.tree.range::<Slice, _>(range, self.place.number, None);
            let mut bytes = 0;
            while let Some(row) = match scan.order {
                Order::Ascending => iter.next(),
                Order::Descending => iter.next_back(),
            } {
                let (key, value) = take(row, scan.keys_only)?;
                bytes += key.len() + value.len();
                if !page.rows.is_empty() && (page.rows.len() >= scan.max_rows || bytes > scan.max_bytes) {
                    page.done = false;
                    break;
                }
                page.rows.push((key, value));
            }
            Ok(())
        })?;
        Ok(page)
    }

    /// Borders of tables: free of charge, and none inside one table.
    fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Vec<Bytes> {
        let mut borders: Vec<(Bytes, u64)> = self
            .tree
            .current_version()
            .iter_tables()
            .map(|table| (loaded(table.metadata.key_range.min()), table.metadata.file_size))
            .filter(|(key, _)| key.as_ref() > from && to.is_none_or(|to| key.as_ref() < to))
            .collect();
        borders.sort();
        let total: u64 = borders.iter().map(|(_, size)| size).sum();
        let mut points = Vec::new();
        let mut before = 0;
        for (key, size) in borders {
            let due = before * parts as u64 >= total * (points.len() as u64 + 1);
            if due && points.len() + 1 < parts && points.last() != Some(&key) {
                points.push(key);
            }
            before += size;
        }
        points
    }
}

fn take(row: IterGuardImpl, keys_only: bool) -> lsm_tree::Result<(Bytes, Bytes)> {
    if keys_only {
        return Ok((loaded(&row.key()?), Bytes::new()));
    }
    let (key, slice) = row.into_inner()?;
    Ok((loaded(&key), value(slice)))
}

fn value(slice: Slice) -> Bytes {
    if slice.len() <= MAX_COPIED_BYTES {
        Bytes::copy_from_slice(&slice)
    } else {
        Bytes::from_owner(slice)
    }
}
