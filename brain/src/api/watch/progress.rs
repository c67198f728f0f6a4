//! When a stream may say how far it is.
//!
//! A request for progress is answered with a revision that was dispatched when or after it came, once no watcher of
//! the stream owes an event at or before it. So the answer comes also while newer events keep coming.

use std::collections::HashSet;

use crate::mvcc::Revision;

/// The request for progress of a stream; several that wait become one.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: State,
    /// A later request that `state` may not satisfy: its revision.
    again: Option<Revision>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Waits until this revision is dispatched.
    Asked(Revision),
    /// Waits for these watchers to have been sent everything through this revision.
    Owing(Revision, HashSet<i64>),
}

impl Progress {
    /// A client asks; the answer must not be below `revision`.
    pub(super) fn ask(&mut self, revision: Revision) {
        match &mut self.state {
            State::Idle => self.state = State::Asked(revision),
            State::Asked(asked) => *asked = revision.max(*asked),
            State::Owing(through, _) if *through >= revision => {}
            State::Owing(..) => self.again = Some(revision.max(self.again.unwrap_or(revision))),
        }
    }

    /// Forgets what was asked.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// A watcher was added: whoever owes has to be found out again.
    pub(super) fn reconsider(&mut self) {
        if let State::Owing(through, _) = self.state {
            let asked = self.again.take().map_or(through, |again| again.max(through));
            self.state = State::Asked(asked);
        }
    }

    /// The revision that has to be dispatched before it is known who owes.
    pub(super) fn asked(&self) -> Option<Revision> {
        match self.state {
            State::Asked(revision) => Some(revision),
            State::Idle | State::Owing(..) => None,
        }
    }

    /// `dispatched` reached what was asked, and `owing` have events at or before it to be sent. Answers the revision
    /// to tell the client, if that is none.
    pub(super) fn begin(&mut self, dispatched: Revision, owing: HashSet<i64>) -> Option<Revision> {
        self.state = State::Owing(dispatched, owing);
        self.finish()
    }

    /// The revision through which `watcher` has to be looked at.
    pub(super) fn owed_by(&self, watcher: i64) -> Option<Revision> {
        match &self.state {
            State::Owing(revision, owing) if owing.contains(&watcher) => Some(*revision),
            _ => None,
        }
    }

    /// `watcher` owes nothing any more. Answers the revision to tell the client, if it was the last.
    pub(super) fn settle(&mut self, watcher: i64) -> Option<Revision> {
        if let State::Owing(_, owing) = &mut self.state {
            owing.remove(&watcher);
        }
        self.finish()
    }

    fn finish(&mut self) -> Option<Revision> {
        let State::Owing(revision, owing) = &self.state else {
            return None;
        };
        if !owing.is_empty() {
            return None;
        }
        let revision = *revision;
        self.state = self.again.take().map_or(State::Idle, State::Asked);
        Some(revision)
    }
}
