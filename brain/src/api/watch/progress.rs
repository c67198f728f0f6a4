//! When a stream may say how far it is.
//!
//! The answer to a request for progress names one revision. Everything at or before it must have been sent to all
//! watchers of the stream, and nothing after it: a client may take the newest answer for where its copy stands, and
//! that must not go back. So from the request on the stream is *frozen* at the newest published revision: it sends what
//! it owes up to there, answers, and goes on. That takes a moment, however many events keep coming. While a watcher
//! is behind it might take long, so then nothing is frozen and the request waits.

use std::collections::HashSet;

use crate::types::Revision;

/// The request for progress of a stream; several that wait become one.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: State,
    /// Another request came that the answer on its way may not satisfy.
    again: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody asks.
    #[default]
    Idle,
    /// Waits for all watchers to be live.
    Asked,
    /// Sends nothing after this revision.
    Frozen(Revision, Owing),
}

#[derive(Debug)]
enum Owing {
    /// The revision has yet to reach all mailboxes.
    Unknown,
    /// These watchers have yet to be sent something.
    Watchers(HashSet<i64>),
}

impl Progress {
    /// A client asks, at a time when the newest published revision is `published`.
    pub(super) fn ask(&mut self, published: Revision) {
        match &self.state {
            State::Idle => self.state = State::Asked,
            State::Frozen(through, _) if *through < published => self.again = true,
            State::Asked | State::Frozen(..) => {}
        }
    }

    /// Returns true if nobody asks.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Forgets what was asked.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Freezes at `published` if somebody asks and no watcher is `behind`; thaws when one fell behind.
    pub(super) fn regulate(&mut self, behind: bool, published: Revision) {
        match self.state {
            State::Asked if !behind => self.state = State::Frozen(published, Owing::Unknown),
            State::Frozen(..) if behind => self.state = State::Asked,
            State::Idle | State::Asked | State::Frozen(..) => {}
        }
    }

    /// The revision after which nothing may be sent now.
    pub(super) fn frozen(&self) -> Option<Revision> {
        match self.state {
            State::Frozen(through, _) => Some(through),
            State::Idle | State::Asked => None,
        }
    }

    /// The revision that has to be dispatched before it is known who owes.
    pub(super) fn awaited(&self) -> Option<Revision> {
        match self.state {
            State::Frozen(through, Owing::Unknown) => Some(through),
            State::Idle | State::Asked | State::Frozen(..) => None,
        }
    }

    /// What was [awaited](Progress::awaited) is dispatched, and `owing` have something to be sent up to there. Answers
    /// the revision to tell the client, if that is none.
    pub(super) fn begin(&mut self, owing: HashSet<i64>) -> Option<Revision> {
        if let State::Frozen(_, known) = &mut self.state {
            *known = Owing::Watchers(owing);
        }
        self.finish()
    }

    /// The revision through which `watcher` still owes, as far as is known here.
    pub(super) fn owed_by(&self, watcher: i64) -> Option<Revision> {
        match &self.state {
            State::Frozen(through, Owing::Watchers(owing)) if owing.contains(&watcher) => Some(*through),
            State::Idle | State::Asked | State::Frozen(..) => None,
        }
    }

    /// `watcher` owes nothing any more. Answers the revision to tell the client, if it was the last.
    pub(super) fn settle(&mut self, watcher: i64) -> Option<Revision> {
        if let State::Frozen(_, Owing::Watchers(owing)) = &mut self.state {
            owing.remove(&watcher);
        }
        self.finish()
    }

    fn finish(&mut self) -> Option<Revision> {
        match &self.state {
            State::Frozen(through, Owing::Watchers(owing)) if owing.is_empty() => {
                let through = *through;
                let again = std::mem::take(&mut self.again);
                self.state = if again { State::Asked } else { State::Idle };
                Some(through)
            }
            State::Idle | State::Asked | State::Frozen(..) => None,
        }
    }
}

#[cfg(test)]
mod tests;
