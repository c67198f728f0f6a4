//! The log as a plain map: the model that every other implementation is compared with.
//!
//! Clones share their slots, so a clone that is kept while everything else is dropped is a restart.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{AppendError, Log, LogError, LogId, Slot, check_len};

/// A log in memory, for tests of everything above the seam.
#[derive(Debug, Clone)]
pub struct MemLog {
    state: Arc<Mutex<MemLogState>>,
    kept: fn(&[u8]) -> bool,
}

#[derive(Debug, Default)]
struct MemLogState {
    slots: BTreeMap<Slot, Bytes>,
    watermark: Slot,
}

impl Default for MemLog {
    fn default() -> Self {
        Self::new()
    }
}

impl MemLog {
    /// Longest record, in bytes.
    pub const MAX_RECORD_LEN: usize = 16 << 20;

    /// An empty log that destroys everything below its watermark.
    #[must_use]
    pub fn new() -> Self {
        Self::keeping(|_| false)
    }

    /// An empty log whose destruction spares the records that `kept` names. A log with several writers must spare the barriers,
    /// which only the layer above can tell from other records.
    #[must_use]
    pub fn keeping(kept: fn(&[u8]) -> bool) -> Self {
        let state = MemLogState {
            slots: BTreeMap::new(),
            watermark: Slot::FIRST,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            kept,
        }
    }

    fn state(&self) -> MutexGuard<'_, MemLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Log for MemLog {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        check_len(&record, self.max_record_len())?;
        let mut state = self.state();
        match state.slots.get(&slot) {
            None => {
                state.slots.insert(slot, record);
                Ok(())
            }
            Some(there) if *there == record => Ok(()),
            Some(there) => Err(AppendError::Taken(slot, there.clone())),
        }
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let mut found = Vec::new();
        let mut bytes = 0usize;
        for (slot, record) in self.state().slots.range(from..) {
            bytes = bytes.saturating_add(record.len());
            if !found.is_empty() && bytes > max_bytes {
                break;
            }
            found.push((*slot, record.clone()));
        }
        Ok(found)
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        Ok(self.state().watermark)
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        let mut state = self.state();
        state.watermark = state.watermark.max(to);
        Ok(())
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        let mut state = self.state();
        let watermark = state.watermark;
        state
            .slots
            .retain(|slot, record| *slot >= watermark || (self.kept)(record));
        Ok(false)
    }

    fn max_record_len(&self) -> usize {
        Self::MAX_RECORD_LEN
    }

    fn size(&self) -> u64 {
        self.state().slots.values().map(|record| record.len() as u64).sum()
    }

    async fn shrink(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn id(&self) -> Option<LogId> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn destruction_spares_what_is_to_be_kept() {
        let log = MemLog::keeping(|record| record.starts_with(b"barrier"));
        for (slot, record) in [(1, "barrier 1"), (9, "a"), (10, "barrier 2"), (18, "b")] {
            log.append(Slot(slot), Bytes::from(record)).await.unwrap();
        }
        log.raise_watermark(Slot(18)).await.unwrap();
        log.destroy_below_watermark().await.unwrap();
        let left: Vec<u64> = log
            .read(Slot(0), usize::MAX)
            .await
            .unwrap()
            .iter()
            .map(|(slot, _)| slot.0)
            .collect();
        assert_eq!(left, [1, 10, 18]);
    }
}
