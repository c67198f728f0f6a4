//! Reads that look back in a log while it is cut, or hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::watch::{History as _, HistoryError, PrevKv};
use engine::log::{Log as _, LogError, MemLog, Slot};
use store::history::LogHistory;

use super::hooked_log::{HookedLog, hooked_log};
use super::{COMPACTED_REVISION, Leading, Other, PUTS_BEFORE_COMPACTION};

/// The fault of a read that looks back in a log, that is, one from a slot before that of an earlier read.
#[derive(Clone, Copy)]
enum Back {
    /// It blocks for ever.
    Hangs,
    /// The log is cut: the slots before its new beginning are destroyed, and hold nothing but late records.
    Cuts,
    /// The beginning of the log moves with each read.
    Creeps,
}

/// The slot at which a log is cut, after the indexed slots of the revisions that are read then.
const CUT_SLOT: Slot = Slot(36);

/// Returns a log with this fault.
fn looks_back(log: &MemLog, back: Back) -> HookedLog {
    let (cut, highest) = (log.clone(), Arc::new(AtomicU64::new(0)));
    hooked_log(log, move |from| {
        let highest = highest.fetch_max(from.0, Ordering::SeqCst);
        meddle(cut.clone(), back, from.0 < highest)
    })
}

async fn meddle(log: MemLog, back: Back, looks_back: bool) -> Result<(), LogError> {
    let watermark = log.watermark().await?;
    match back {
        Back::Hangs if looks_back => std::future::pending().await,
        Back::Hangs => {}
        Back::Cuts if watermark < CUT_SLOT => {
            log.raise_watermark(CUT_SLOT).await?;
            log.destroy_below_watermark().await?;
            // These slots are after the barrier, which stays.
            for slot in 2..CUT_SLOT.0 {
                log.append(Slot(slot), "late".into()).await.unwrap();
            }
        }
        Back::Cuts => {}
        Back::Creeps => log.raise_watermark(watermark.next()).await?,
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_member_does_not_wait_for_what_its_watchers_missed() {
    let mut leading = Leading::start().await;
    let mut other = Other::open(looks_back(&leading.log, Back::Hangs), leading.rows.clone()).await;
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    other.tail().await;
    let view = other.store.state.view();
    assert!(view.revision > COMPACTED_REVISION);
    assert_eq!(other.store.hub.revision(), view.revision);
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn slots_that_are_destroyed_under_a_read_of_history_are_no_damage() {
    let mut leading = Leading::start().await;
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    let state = leading.engine.store.state.clone();
    let history = LogHistory::new(Arc::new(looks_back(&leading.log, Back::Cuts)), state.clone());
    let read = history.read(30, usize::MAX, PrevKv::Included).await.unwrap();
    assert_eq!(read[0].revision, 30);
    assert_eq!(read.last().unwrap().revision, leading.revision());
    assert!(!state.is_corrupt());
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_log_that_begins_later_all_the_time_is_not_read_for_ever() {
    let mut leading = Leading::start().await;
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    let state = leading.engine.store.state.clone();
    let history = LogHistory::new(Arc::new(looks_back(&leading.log, Back::Creeps)), state);
    let refused = history.read(2, usize::MAX, PrevKv::Included).await;
    assert!(matches!(refused, Err(HistoryError::Unavailable(_))), "{refused:?}");
    leading.engine.stop().await.unwrap();
}
