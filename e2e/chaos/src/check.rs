//! Checks that a history is one that etcd could have.
//!
//! Every answer carries a revision, so the order of all writes is known without a search: the watches report it, each revision has one
//! owner, and running all requests in that order must reproduce every answer and every event. Only real time is left to check: a later
//! request must not see less. Together this checks linearizability in full, in O(n log n).

mod leases;
mod model;
mod operations;
mod order;
#[cfg(test)]
mod tests;
mod timeline;
mod watches;

use crate::history::History;
use timeline::Timeline;

/// Counts of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HistoryCounts {
    pub(crate) operations: usize,
    /// Without a known outcome.
    pub(crate) unknown: usize,
    /// Those of them that were done.
    pub(crate) unknown_done: usize,
    pub(crate) revisions: usize,
    /// Messages of watches.
    pub(crate) messages: usize,
}

/// Every way in which a history cannot be; none when it can.
pub(crate) fn check(history: &History) -> Result<HistoryCounts, Vec<String>> {
    let timeline = Timeline::of(history)?;
    let mut wrong = Vec::new();
    let owned = operations::check(history, &timeline, &mut wrong);
    order::check(history, &owned, &mut wrong);
    watches::check(history, &timeline, &mut wrong);
    leases::check(history, &timeline, &owned, &mut wrong);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let unknown = |outcome: &crate::history::Outcome| matches!(outcome, crate::history::Outcome::Unknown(_));
    Ok(HistoryCounts {
        operations: history.operations.len(),
        unknown: history.operations.iter().filter(|op| unknown(&op.outcome)).count(),
        unknown_done: owned.late(history),
        revisions: timeline.len(),
        messages: history
            .watchers
            .iter()
            .flat_map(|watcher| &watcher.attempts)
            .map(|attempt| attempt.messages.len())
            .sum(),
    })
}
