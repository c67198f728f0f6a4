//! Rows in memory: the model that every other implementation must agree with. Nothing survives the last clone.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    DynSnapshot, Order, Page, RowChange, Rows, RowsError, Scan, Snapshot, StepSize, apply_in_turn, check_lengths,
};

/// As of rows in a directory.
const MAX_KEY_LEN: usize = 65_534;
const MAX_VALUE_LEN: usize = 256 << 20;

/// Rows in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemRows {
    state: Arc<Mutex<MemRowsState>>,
    gets: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct MemRowsState {
    fence: Option<Bytes>,
    rows: Arc<BTreeMap<Bytes, Bytes>>,
}

/// The rows of a [`MemRows`] as they were.
#[derive(Debug, Clone)]
pub struct MemSnapshot {
    fence: Option<Bytes>,
    rows: Arc<BTreeMap<Bytes, Bytes>>,
    gets: Arc<AtomicU64>,
}

impl MemRows {
    /// No rows and no fence.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests for rows by key so far, each for one or for many.
    #[must_use]
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    fn with<T>(&self, read: impl FnOnce(&mut MemRowsState) -> T) -> T {
        read(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Rows for MemRows {
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError> {
        Ok(self.with(|state| {
            Arc::new(MemSnapshot {
                fence: state.fence.clone(),
                rows: state.rows.clone(),
                gets: self.gets.clone(),
            })
        }))
    }

    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        Ok(self.with(|state| state.fence.clone()))
    }

    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError> {
        check_lengths(&changes, self.max_key_len(), self.max_value_len())?;
        self.with(|state| {
            if state.fence != expected {
                if state.fence.as_ref() == Some(&fence) {
                    return Ok(()); // done before
                }
                return Err(RowsError::Fenced(state.fence.clone()));
            }
            let rows = Arc::make_mut(&mut state.rows);
            for change in changes {
                match change {
                    RowChange::Put(key, value) => rows.insert(key, value),
                    RowChange::Delete(key) => rows.remove(&key),
                };
            }
            state.fence = Some(fence);
            Ok(())
        })
    }

    async fn take_over(&self) -> Result<(), RowsError> {
        Ok(())
    }

    async fn sync(&self) -> Result<(), RowsError> {
        Ok(())
    }

    fn renew_after(&self) -> Option<Duration> {
        None
    }

    fn step(&self) -> StepSize {
        StepSize::IN_MEMORY
    }

    fn max_key_len(&self) -> usize {
        MAX_KEY_LEN
    }

    fn max_value_len(&self) -> usize {
        MAX_VALUE_LEN
    }

    fn size(&self) -> Option<u64> {
        self.with(|state| Some(state.rows.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum()))
    }

    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
        apply_in_turn(self, fence, steps).await
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    async fn compact(&self) -> Result<(), RowsError> {
        Ok(())
    }

    async fn renewal_asked(&self) {
        std::future::pending().await
    }

    fn in_use(&self) -> Option<u64> {
        None
    }

    fn is_reclaiming(&self) -> bool {
        false
    }

    fn to_come(&self) -> u64 {
        0
    }

    fn open_snapshots(&self) -> Option<u64> {
        None
    }

    fn left_over(&self) -> u64 {
        0
    }
}

impl MemSnapshot {
    fn range(&self, from: &[u8], to: Option<&[u8]>) -> impl DoubleEndedIterator<Item = (&Bytes, &Bytes)> {
        let empty = to.is_some_and(|to| from >= to);
        let bounds = match to {
            _ if empty => (Bound::Included(from), Bound::Excluded(from)),
            Some(to) => (Bound::Included(from), Bound::Excluded(to)),
            None => (Bound::Included(from), Bound::Unbounded),
        };
        // An inverted range is empty; the map would panic at equal excluded bounds only.
        (!empty)
            .then(|| self.rows.range::<[u8], _>(bounds))
            .into_iter()
            .flatten()
    }
}

#[async_trait]
impl Snapshot for MemSnapshot {
    async fn fence(&self) -> Result<Option<Bytes>, RowsError> {
        Ok(self.fence.clone())
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        Ok(self.rows.get(key).cloned())
    }

    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        Ok(keys.iter().map(|key| self.rows.get(key).cloned()).collect())
    }

    async fn scan(&self, scan: Scan) -> Result<Page, RowsError> {
        let range = self.range(&scan.from, scan.to.as_deref());
        let rows: &mut dyn Iterator<Item = (&Bytes, &Bytes)> = match scan.order {
            Order::Ascending => &mut { range },
            Order::Descending => &mut range.rev(),
        };
        let mut page = Page {
            rows: Vec::new(),
            done: true,
        };
        let mut bytes = 0;
        for (key, value) in rows {
            let value = if scan.keys_only { Bytes::new() } else { value.clone() };
            bytes += key.len() + value.len();
            if !page.rows.is_empty() && (page.rows.len() >= scan.max_rows || bytes > scan.max_bytes) {
                page.done = false;
                break;
            }
            page.rows.push((key.clone(), value));
        }
        Ok(page)
    }

    fn scans_values(&self) -> bool {
        true
    }

    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError> {
        let keys: Vec<&Bytes> = self.range(from, to).map(|(key, _)| key).collect();
        let mut points: Vec<Bytes> = (1..parts)
            .filter_map(|part| keys.get(part * keys.len() / parts))
            .filter(|key| key.as_ref() > from)
            .map(|key| (*key).clone())
            .collect();
        points.dedup();
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_laws_of_rows_hold_in_memory() {
        crate::rows::laws::hold(async || MemRows::new(), 32_000).await;
    }
}
