//! A log that knows since when it owes an answer.
//!
//! A leader that renews its lock and gets nothing into its log is no leader: see `member::leadership::storage`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::{AppendError, DynLog, Log, LogError, LogId, Slot};

/// Bytes of appends that may take a second more: large records are no sign of a silent storage.
const APPEND_BYTES_PER_SECOND: usize = 4 << 20;

/// Requests that a log has not answered yet. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Unanswered(Arc<Mutex<UnansweredCalls>>);

#[derive(Debug, Default)]
struct UnansweredCalls {
    /// Appends by slot: when each was first tried, and its bytes. Repetitions are the same append.
    appends: BTreeMap<Slot, (Instant, usize)>,
    /// Since when no read has succeeded, while one is under way or was given up.
    reads: Option<Instant>,
    /// The slot after the highest one that was tried.
    next: Option<Slot>,
}

impl Unanswered {
    /// Forgets everything: another writer begins.
    pub fn clear(&self) {
        *self.calls() = UnansweredCalls::default();
    }

    /// Returns the slot after the highest one that was tried since [`Unanswered::clear`].
    #[must_use]
    pub fn next(&self) -> Option<Slot> {
        self.calls().next
    }

    /// The oldest request that is unanswered for longer than `limit`, and for how long. Appends may take longer by their bytes.
    #[must_use]
    pub fn overdue(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        let calls = self.calls();
        let bytes: usize = calls.appends.values().map(|(_, bytes)| bytes).sum();
        let oldest = calls.appends.values().map(|(since, _)| since.elapsed()).max();
        let slack = Duration::from_secs((bytes / APPEND_BYTES_PER_SECOND) as u64);
        let append = oldest.filter(|age| *age >= limit + slack).map(|age| ("an append", age));
        let read = calls.reads.map(|since| since.elapsed()).filter(|age| *age >= limit);
        append.or(read.map(|age| ("a read of the log", age)))
    }

    fn calls(&self) -> MutexGuard<'_, UnansweredCalls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A log whose unanswered reads and appends are recorded. Clones share the record.
#[derive(Clone)]
pub struct WatchedLog {
    log: DynLog,
    unanswered: Unanswered,
}

impl WatchedLog {
    /// Wraps a log and records its requests in `unanswered`.
    #[must_use]
    pub fn new(log: DynLog, unanswered: Unanswered) -> Self {
        Self { log, unanswered }
    }
}

#[async_trait]
impl Log for WatchedLog {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        {
            let mut calls = self.unanswered.calls();
            calls.appends.entry(slot).or_insert((Instant::now(), record.len()));
            calls.next = calls.next.max(Some(slot.next()));
        }
        let outcome = self.log.append(slot, record).await;
        match &outcome {
            Err(AppendError::Unknown(..) | AppendError::Unavailable(_)) => {}
            // No space, too: that is an answer, and an alarm says it.
            Ok(()) | Err(AppendError::Taken(..) | AppendError::Full(_) | AppendError::Failed(_)) => {
                self.unanswered.calls().appends.remove(&slot);
            }
        }
        outcome
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        self.unanswered.calls().reads.get_or_insert(Instant::now());
        let outcome = self.log.read(from, max_bytes).await;
        if !matches!(outcome, Err(LogError::Unavailable(_))) {
            self.unanswered.calls().reads = None;
        }
        outcome
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Fault, Faulty, MemLog};

    const OVERDUE_LIMIT: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn an_append_is_overdue_from_its_first_attempt_on_until_it_is_known() {
        let unanswered = Unanswered::default();
        let faulty = Faulty::new(MemLog::new());
        let log = WatchedLog::new(Arc::new(faulty.clone()), unanswered.clone());
        faulty.fail_next(Fault::Lost);
        let record = Bytes::from_static(b"record");
        log.append(Slot(1), record.clone()).await.unwrap_err();
        assert_eq!(
            (unanswered.overdue(OVERDUE_LIMIT), unanswered.next()),
            (None, Some(Slot(2)))
        );
        tokio::time::advance(OVERDUE_LIMIT / 2).await;
        faulty.fail_next(Fault::Lost);
        log.append(Slot(1), record.clone()).await.unwrap_err();
        tokio::time::advance(OVERDUE_LIMIT / 2).await;
        assert_eq!(unanswered.overdue(OVERDUE_LIMIT), Some(("an append", OVERDUE_LIMIT)));
        log.append(Slot(1), record).await.unwrap();
        assert_eq!(unanswered.overdue(OVERDUE_LIMIT), None);
    }

    #[tokio::test(start_paused = true)]
    async fn large_appends_may_take_longer() {
        let unanswered = Unanswered::default();
        let faulty = Faulty::new(MemLog::new());
        let log = WatchedLog::new(Arc::new(faulty.clone()), unanswered.clone());
        faulty.fail_next(Fault::Lost);
        let len = log.max_record_len().min(2 * APPEND_BYTES_PER_SECOND);
        log.append(Slot(1), vec![0; len].into()).await.unwrap_err();
        tokio::time::advance(OVERDUE_LIMIT).await;
        assert_eq!(
            unanswered.overdue(OVERDUE_LIMIT).is_some(),
            len < APPEND_BYTES_PER_SECOND
        );
        tokio::time::advance(OVERDUE_LIMIT).await;
        assert!(unanswered.overdue(OVERDUE_LIMIT).is_some());
    }
}
