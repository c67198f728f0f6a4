//! The mailbox of a watcher: the dispatcher delivers positions to it, and wakes its stream.
//!
//! A mailbox holds a bounded number of runs. One more makes it *lagging*: it accepts nothing until its watcher has caught up and
//! joins again, so a watcher that does not read costs the others nothing. While all mailboxes together hold many runs, each may hold few.
//!
//! Invariant: a mailbox with contents that its watcher has not taken is listed in the inbox of its stream, or [`Inbox::drain`] has
//! returned its name and the mailbox has not been read since.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::ring::Run;
use etcd_types::types::Revision;

/// The watchers of one stream that have something to read. Bounded by their number: each name is listed at most once.
#[derive(Debug, Default)]
pub struct Inbox {
    ready: Mutex<VecDeque<i64>>,
    wake: Notify,
}

impl Inbox {
    /// Calls `each` with the name of every watcher that has something to read.
    pub fn drain(&self, each: impl FnMut(i64)) {
        let ready = std::mem::take(&mut *locked(&self.ready));
        ready.into_iter().for_each(each);
    }

    /// Waits until a watcher was listed since the inbox was emptied; to be followed by [`Inbox::drain`].
    pub async fn filled(&self) {
        self.wake.notified().await;
    }

    fn add(&self, name: i64) {
        let mut ready = locked(&self.ready);
        ready.push_back(name);
        if ready.len() == 1 {
            drop(ready);
            self.wake.notify_one(); // once until the inbox is emptied
        }
    }
}

/// Runs that all mailboxes together may hold before each of them may hold only [`FEW_RUNS`]. A run takes 24 bytes.
const MANY_RUNS: usize = 1 << 20;

/// Runs that a mailbox may hold in any case.
const FEW_RUNS: usize = 4;

/// The number of runs in the mailboxes of all watchers.
#[derive(Debug, Default)]
pub(super) struct RunCount(AtomicUsize);

impl RunCount {
    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.0.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.0.fetch_sub(from - to, Ordering::Relaxed);
        }
    }

    fn is_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MANY_RUNS
    }
}

/// The contents of a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mail {
    /// Positions in the ring, oldest first; an empty list means that there are no new events for the watcher.
    Runs(VecDeque<Run>),
    /// Events from this revision on were skipped: read them from history.
    Lost(Revision),
}

#[derive(Debug)]
pub(super) struct Mailbox {
    name: i64,
    inbox: Arc<Inbox>,
    count: Arc<RunCount>,
    state: Mutex<MailboxState>,
}

#[derive(Debug)]
struct MailboxState {
    mode: MailboxMode,
    runs: VecDeque<Run>,
    named: bool,
}

impl MailboxState {
    /// Changes the runs, and counts them.
    fn change<T>(&mut self, count: &RunCount, change: impl FnOnce(&mut VecDeque<Run>) -> T) -> T {
        let before = self.runs.len();
        let changed = change(&mut self.runs);
        count.change(before, self.runs.len());
        changed
    }
}

#[derive(Debug, Clone, Copy)]
enum MailboxMode {
    /// The mailbox accepts runs.
    Open,
    /// It accepts nothing, and the watcher knows.
    Closed,
    /// It accepts nothing since this revision, and the watcher does not know yet.
    Overrun(Revision),
}

impl Mailbox {
    pub(super) fn open(name: i64, inbox: Arc<Inbox>, count: Arc<RunCount>) -> Self {
        Self::new(name, inbox, count, MailboxMode::Open)
    }

    pub(super) fn closed(name: i64, inbox: Arc<Inbox>, count: Arc<RunCount>) -> Self {
        Self::new(name, inbox, count, MailboxMode::Closed)
    }

    fn new(name: i64, inbox: Arc<Inbox>, count: Arc<RunCount>, mode: MailboxMode) -> Self {
        let state = MailboxState {
            mode,
            runs: VecDeque::new(),
            named: false,
        };
        Self {
            name,
            inbox,
            count,
            state: Mutex::new(state),
        }
    }

    /// Delivers `runs`, which are ascending and not adjacent, and wakes the stream. With more than `max_runs` the mailbox is
    /// lagging.
    pub(super) fn deliver(&self, runs: &[Run], max_runs: usize) {
        let mut state = locked(&self.state);
        if !matches!(state.mode, MailboxMode::Open) {
            return;
        }
        state.change(&self.count, |kept| {
            for run in runs {
                match kept.back_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => kept.push_back(*run),
                }
            }
        });
        let max_runs = if self.count.is_many() {
            FEW_RUNS.min(max_runs)
        } else {
            max_runs
        };
        if state.runs.len() > max_runs {
            let oldest = state.runs.front().map_or(0, |run| run.revision);
            state.change(&self.count, std::mem::take);
            state.mode = MailboxMode::Overrun(oldest);
        }
        self.name_it(state);
    }

    /// Records that events from revision `from` on were skipped.
    pub(super) fn overrun(&self, from: Revision) {
        let mut state = locked(&self.state);
        if !matches!(state.mode, MailboxMode::Open) {
            return;
        }
        let oldest = state.runs.front().map_or(from, |run| run.revision);
        state.change(&self.count, std::mem::take);
        state.mode = MailboxMode::Overrun(oldest);
        self.name_it(state);
    }

    /// Empties the mailbox.
    pub(super) fn take(&self) -> Mail {
        let mut state = locked(&self.state);
        state.named = false;
        if let MailboxMode::Overrun(from) = state.mode {
            state.mode = MailboxMode::Closed;
            return Mail::Lost(from);
        }
        Mail::Runs(state.change(&self.count, std::mem::take))
    }

    /// Opens the mailbox for runs.
    pub(super) fn join(&self) {
        let mut state = locked(&self.state);
        state.change(&self.count, std::mem::take);
        state.mode = MailboxMode::Open;
    }

    /// Closes the mailbox.
    pub(super) fn leave(&self) {
        let mut state = locked(&self.state);
        state.change(&self.count, std::mem::take);
        state.mode = MailboxMode::Closed;
    }

    /// Returns the revision from which on there may be events that the watcher has not taken.
    pub(super) fn oldest(&self) -> Option<Revision> {
        let state = locked(&self.state);
        match state.mode {
            MailboxMode::Overrun(from) => Some(from),
            MailboxMode::Open | MailboxMode::Closed => state.runs.front().map(|run| run.revision),
        }
    }

    fn name_it(&self, mut state: MutexGuard<'_, MailboxState>) {
        if !std::mem::replace(&mut state.named, true) {
            self.inbox.add(self.name);
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        locked(&self.state).change(&self.count, std::mem::take);
    }
}

/// Locks the mutex, even after a holder panicked: critical sections leave no partial state.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
