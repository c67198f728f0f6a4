//! The mailbox of a watcher: the dispatcher leaves positions there, and wakes its stream.
//!
//! A mailbox holds a bounded number of runs. One more makes it *lagging*: it takes nothing until its watcher has
//! caught up and joins again, so a watcher that does not read costs the others nothing.
//!
//! Invariant: a mailbox with anything in it that its watcher has not taken is named in the inbox of its stream, or
//! its name was handed out by [`Inbox::drain`] and the mailbox not looked at since.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::ring::Run;
use crate::types::Revision;

/// The watchers of one stream that have something to read. Bounded by their number: a name is in it once.
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

    /// Waits until a watcher was named since the inbox was emptied; to be followed by [`Inbox::drain`].
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

/// The contents of a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mail {
    /// Positions in the ring, oldest first; none means that nothing new concerns the watcher.
    Runs(VecDeque<Run>),
    /// Events were left out from this revision on: look for them in history.
    Lost(Revision),
}

#[derive(Debug)]
pub(super) struct Mailbox {
    name: i64,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    runs: VecDeque<Run>,
    named: bool,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Takes runs.
    Open,
    /// Takes nothing; the watcher knows.
    Closed,
    /// Takes nothing since this revision; the watcher has yet to hear of it.
    Overrun(Revision),
}

impl Mailbox {
    pub(super) fn open(name: i64, inbox: Arc<Inbox>) -> Self {
        Self::new(name, inbox, Mode::Open)
    }

    pub(super) fn closed(name: i64, inbox: Arc<Inbox>) -> Self {
        Self::new(name, inbox, Mode::Closed)
    }

    fn new(name: i64, inbox: Arc<Inbox>, mode: Mode) -> Self {
        let state = State {
            mode,
            runs: VecDeque::new(),
            named: false,
        };
        Self {
            name,
            inbox,
            state: Mutex::new(state),
        }
    }

    /// Leaves `runs`, ascending and apart, and wakes the stream. More than `max_runs` make the mailbox lagging.
    pub(super) fn deliver(&self, runs: &[Run], max_runs: usize) {
        let mut state = locked(&self.state);
        if !matches!(state.mode, Mode::Open) {
            return;
        }
        for run in runs {
            match state.runs.back_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => state.runs.push_back(*run),
            }
        }
        if state.runs.len() > max_runs {
            let oldest = state.runs.front().map_or(0, |run| run.revision);
            state.runs = VecDeque::new();
            state.mode = Mode::Overrun(oldest);
        }
        self.name_it(state);
    }

    /// Tells the watcher that from revision `from` on events were left out.
    pub(super) fn overrun(&self, from: Revision) {
        let mut state = locked(&self.state);
        if !matches!(state.mode, Mode::Open) {
            return;
        }
        let oldest = state.runs.front().map_or(from, |run| run.revision);
        state.runs = VecDeque::new();
        state.mode = Mode::Overrun(oldest);
        self.name_it(state);
    }

    /// Empties the mailbox.
    pub(super) fn take(&self) -> Mail {
        let mut state = locked(&self.state);
        state.named = false;
        if let Mode::Overrun(from) = state.mode {
            state.mode = Mode::Closed;
            return Mail::Lost(from);
        }
        Mail::Runs(std::mem::take(&mut state.runs))
    }

    /// Begins to take runs.
    pub(super) fn join(&self) {
        let mut state = locked(&self.state);
        state.runs = VecDeque::new();
        state.mode = Mode::Open;
    }

    /// Takes nothing any more.
    pub(super) fn leave(&self) {
        let mut state = locked(&self.state);
        state.runs = VecDeque::new();
        state.mode = Mode::Closed;
    }

    /// The revision from which on there may be events that the watcher has not taken.
    pub(super) fn oldest(&self) -> Option<Revision> {
        let state = locked(&self.state);
        match state.mode {
            Mode::Overrun(from) => Some(from),
            Mode::Open | Mode::Closed => state.runs.front().map(|run| run.revision),
        }
    }

    fn name_it(&self, mut state: MutexGuard<'_, State>) {
        if !std::mem::replace(&mut state.named, true) {
            self.inbox.add(self.name);
        }
    }
}

/// The lock, also when a holder panicked: all that is done under these locks leaves whole states behind.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
