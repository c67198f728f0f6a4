//! The leader lease: the time for which a leader may answer reads grows with the renewals of its lock.

use std::time::Duration;

use bytes::Bytes;
use election::{Handle as Election, Moment, Term};
use tokio::time::MissedTickBehavior;
use tracing::debug;

use crate::forward::LeaderLease;
use engine::log::frame::{Frame, WINDOW_SLOTS};
use engine::log::{DynLog, LogError, Slot, Unanswered};
use store::state::StoreState;

/// The interval at which a leader checks whether its lock was renewed.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The bytes of the log that one read for a later barrier returns.
const BARRIER_READ_BYTES: usize = 64 << 10;

/// Extends the leader lease with each renewal of the lock that was sent before any later leader began to wait for this one. Returns
/// when a later leader is found.
///
/// This suffices because a later leader serves no requests before its barrier is in the log, and then waits out this leader's lease, which
/// is longer than a leader lease. It skips the wait only if it saw this very lock expire or be released, and then no renewal of it
/// succeeds. So when a renewal succeeds, a later leader can exist only under *another* lock, and its wait must not have begun before the
/// renewal was sent. There are two ways to prove that:
/// - By the lock: a leader under another lock announces its epoch in this lock's record between its barrier and its wait
///   ([`Node::announce_epoch`](crate::node::Node::announce_epoch)), and a renewal replaces only the record that is known
///   here, with the epochs announced in it. A successful renewal was sent before any announcement that is not known here;
///   `announced_epoch` is read after it.
/// - By the log, which is read after the renewal: if it has no later barrier, no wait has begun.
pub(super) async fn guard(
    election: &Election,
    term: &Term,
    (leader_lease, renew_deadline): (&LeaderLease, Duration),
    announced_epoch: &(dyn Fn() -> Option<u64> + Send + Sync),
    (log, state, unanswered): (&DynLog, &StoreState, &Unanswered),
) {
    let mut last = None;
    let mut look = tokio::time::interval(RENEWAL_CHECK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let renewed = election.renewed(term.number);
        if renewed.is_none() || renewed == last {
            continue;
        }
        let later = match announced_epoch() {
            Some(epoch) => Ok(epoch > state.epoch()),
            None => has_later_barrier(log, state, unanswered).await,
        };
        match later {
            Ok(true) => return,
            Ok(false) => {
                last = renewed;
                if let Some(renewed) = renewed {
                    leader_lease.extend(renewed.since(Moment::new(Duration::ZERO)) + renew_deadline);
                }
            }
            // Until the log can be read, the leader lease is not extended and expires.
            Err(error) => debug!(
                error = &error as &dyn std::error::Error,
                "cannot read the log for a later barrier"
            ),
        }
    }
}

/// Returns true if the log has a barrier of a later epoch: it is in the first slot that its writer found free, which is not before
/// those that this leader has tried. The published slots may be far behind them, if large batches wait to be published.
pub(super) async fn has_later_barrier(
    log: &DynLog,
    state: &StoreState,
    unanswered: &Unanswered,
) -> Result<bool, LogError> {
    let mut next = state.committed();
    let tried = unanswered.next().unwrap_or(next).max(next);
    let (end, epoch) = (Slot(tried.0 + WINDOW_SLOTS), state.epoch());
    while next <= end {
        let slots = log.read(next, BARRIER_READ_BYTES).await?;
        let Some((last, _)) = slots.last() else { break };
        next = last.next();
        if slots.into_iter().any(|(slot, bytes)| is_later(slot, bytes, epoch)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_later(slot: Slot, bytes: Bytes, epoch: u64) -> bool {
    matches!(Frame::decode(slot, bytes), Ok(Frame::Barrier(barrier)) if barrier.epoch > epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::log::frame::Barrier;
    use engine::log::{Log as _, MemLog, WatchedLog};
    use engine::rows::DynRows;
    use engine::rows::mem::MemRows;
    use std::sync::Arc;
    use store::replica::Replica;

    #[tokio::test]
    async fn a_later_barrier_is_found_behind_all_slots_that_were_tried() {
        let (log, unanswered): (DynLog, _) = (Arc::new(MemLog::new()), Unanswered::default());
        let rows: DynRows = Arc::new(MemRows::new());
        let state = Replica::load(&log, &rows).await.unwrap().state().clone();
        // More than a window of slots is committed and not yet published.
        let own = WatchedLog::new(log.clone(), unanswered.clone());
        let first = state.committed();
        let end = first.0 + 3 * WINDOW_SLOTS;
        for slot in first.0..end {
            own.append(Slot(slot), Bytes::from_static(b"a part of a batch"))
                .await
                .unwrap();
        }
        assert!(!has_later_barrier(&log, &state, &unanswered).await.unwrap());
        let barrier = Barrier {
            epoch: state.epoch() + 1,
            nonce: 1,
            writer: 2,
            lease: Duration::from_secs(2),
            lock: 0,
        };
        log.append(Slot(end), barrier.encode()).await.unwrap();
        assert!(has_later_barrier(&log, &state, &unanswered).await.unwrap());
    }
}
