//! Reads that look back in a log while it is cut, or hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brain::log::{AppendError, Log, LogError, MemLog, Slot};
use brain::mvcc::history::LogHistory;
use brain::watch::{History as _, HistoryError};
use bytes::Bytes;

use super::{COMPACTED, Leading, Other, PUTS};

/// What happens to who looks back in a log: reads from a slot that others began behind before.
#[derive(Clone, Copy)]
enum Back {
    /// It waits for ever.
    Hangs,
    /// The log begins later now, and what was before is gone, but for what came late.
    Cuts,
    /// The log begins later again and again.
    Creeps,
}

/// Where a log is cut: behind the slots that are noted for what is read then.
const CUT: Slot = Slot(36);

#[derive(Clone)]
struct LooksBack {
    log: MemLog,
    back: Back,
    highest: Arc<AtomicU64>,
}

impl LooksBack {
    fn at(log: &MemLog, back: Back) -> Self {
        Self {
            log: log.clone(),
            back,
            highest: Arc::default(),
        }
    }
}

impl Log for LooksBack {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        self.log.append(slot, record).await
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let highest = self.highest.fetch_max(from.0, Ordering::SeqCst);
        let watermark = self.log.watermark().await?;
        match self.back {
            Back::Hangs if from.0 < highest => std::future::pending().await,
            Back::Hangs => {}
            Back::Cuts if watermark < CUT => {
                self.log.raise_watermark(CUT).await?;
                self.log.destroy_below_watermark().await?;
                // Behind the barrier that stays.
                for slot in 2..CUT.0 {
                    self.log.append(Slot(slot), "late".into()).await.unwrap();
                }
            }
            Back::Cuts => {}
            Back::Creeps => self.log.raise_watermark(watermark.next()).await?,
        }
        self.log.read(from, max_bytes).await
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        self.log.watermark().await
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        self.log.raise_watermark(to).await
    }

    async fn destroy_below_watermark(&self) -> Result<(), LogError> {
        self.log.destroy_below_watermark().await
    }

    fn max_record_len(&self) -> usize {
        self.log.max_record_len()
    }

    fn size(&self) -> u64 {
        self.log.size()
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_does_not_wait_for_what_its_watchers_missed() {
    let mut leading = Leading::start().await;
    let mut other = Other::open(LooksBack::at(&leading.log, Back::Hangs), leading.rows.clone()).await;
    leading.engine.puts(PUTS.0).await;
    other.tail().await;
    let view = other.store.state.view();
    assert!(view.revision > COMPACTED);
    assert_eq!(other.store.hub.revision(), view.revision);
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn slots_that_are_destroyed_under_a_read_of_history_are_no_damage() {
    let mut leading = Leading::start().await;
    leading.engine.puts(PUTS.0).await;
    let state = leading.engine.store.state.clone();
    let history = LogHistory::new(LooksBack::at(&leading.log, Back::Cuts), state.clone());
    let read = history.read(30, usize::MAX).await.unwrap();
    assert_eq!(read[0].revision, 30);
    assert_eq!(read.last().unwrap().revision, leading.revision());
    assert!(!state.is_corrupt());
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_log_that_begins_later_all_the_time_is_not_read_for_ever() {
    let mut leading = Leading::start().await;
    leading.engine.puts(PUTS.0).await;
    let state = leading.engine.store.state.clone();
    let history = LogHistory::new(LooksBack::at(&leading.log, Back::Creeps), state);
    let refused = history.read(2, usize::MAX).await;
    assert!(matches!(refused, Err(HistoryError::Unavailable(_))), "{refused:?}");
    leading.engine.stop().await.unwrap();
}
