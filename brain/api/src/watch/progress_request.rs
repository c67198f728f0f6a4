//! The answer to a client's progress request, and when a stream may send it.
//!
//! The answer to a progress request names one revision. Everything at or before it must have been sent to all watchers of the
//! stream, and nothing after it: a client may take the newest answer as the revision of its copy, and that must not go back. So
//! from the request on the stream is *frozen* at the newest published revision: it sends the pending events up to there, answers,
//! and continues. That takes a moment, even if events keep arriving. While a watcher is behind it might take long, so then nothing
//! is frozen and the request waits.

use std::collections::HashSet;

use etcd_types::types::Revision;

/// The pending progress request of a stream; several are coalesced.
#[derive(Debug, Default)]
pub(super) struct ProgressRequest {
    state: ProgressState,
    /// True if another request arrived that the answer in preparation may not satisfy.
    again: bool,
}

#[derive(Debug, Default)]
enum ProgressState {
    /// No request is pending.
    #[default]
    Idle,
    /// The request waits until all watchers are live.
    Asked,
    /// The stream sends nothing after this revision.
    Frozen(Revision, PendingWatchers),
}

#[derive(Debug)]
enum PendingWatchers {
    /// The revision has not reached all mailboxes yet.
    Unknown,
    /// These watchers still have events to send.
    Watchers(HashSet<i64>),
}

impl ProgressRequest {
    /// Records a progress request; `published` is the newest published revision.
    pub(super) fn ask(&mut self, published: Revision) {
        match &self.state {
            ProgressState::Idle => self.state = ProgressState::Asked,
            ProgressState::Frozen(through, _) if *through < published => self.again = true,
            ProgressState::Asked | ProgressState::Frozen(..) => {}
        }
    }

    /// Returns true if no request is pending.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, ProgressState::Idle)
    }

    /// Drops the pending request.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Freezes at `published` if a request is pending and all watchers have caught up; thaws if one fell behind.
    pub(super) fn regulate(&mut self, behind: bool, published: Revision) {
        match self.state {
            ProgressState::Asked if !behind => self.state = ProgressState::Frozen(published, PendingWatchers::Unknown),
            ProgressState::Frozen(..) if behind => self.state = ProgressState::Asked,
            ProgressState::Idle | ProgressState::Asked | ProgressState::Frozen(..) => {}
        }
    }

    /// Returns the revision after which nothing may be sent now.
    pub(super) fn frozen(&self) -> Option<Revision> {
        match self.state {
            ProgressState::Frozen(through, _) => Some(through),
            ProgressState::Idle | ProgressState::Asked => None,
        }
    }

    /// Returns the revision that must be dispatched before the watchers with pending events are known.
    pub(super) fn awaited(&self) -> Option<Revision> {
        match self.state {
            ProgressState::Frozen(through, PendingWatchers::Unknown) => Some(through),
            ProgressState::Idle | ProgressState::Asked | ProgressState::Frozen(..) => None,
        }
    }

    /// Records that the [awaited](ProgressRequest::awaited) revision is dispatched, and that `owing` still have events to send up to it.
    /// Returns the revision to report to the client if `owing` is empty.
    pub(super) fn begin(&mut self, owing: HashSet<i64>) -> Option<Revision> {
        if let ProgressState::Frozen(_, known) = &mut self.state {
            *known = PendingWatchers::Watchers(owing);
        }
        self.finish()
    }

    /// Returns the revision through which `watcher` still has events to send, as far as is known here.
    pub(super) fn owed_by(&self, watcher: i64) -> Option<Revision> {
        match &self.state {
            ProgressState::Frozen(through, PendingWatchers::Watchers(owing)) if owing.contains(&watcher) => {
                Some(*through)
            }
            ProgressState::Idle | ProgressState::Asked | ProgressState::Frozen(..) => None,
        }
    }

    /// Records that `watcher` has sent its events. Returns the revision to report to the client if it was the last.
    pub(super) fn settle(&mut self, watcher: i64) -> Option<Revision> {
        if let ProgressState::Frozen(_, PendingWatchers::Watchers(owing)) = &mut self.state {
            owing.remove(&watcher);
        }
        self.finish()
    }

    fn finish(&mut self) -> Option<Revision> {
        match &self.state {
            ProgressState::Frozen(through, PendingWatchers::Watchers(owing)) if owing.is_empty() => {
                let through = *through;
                let again = std::mem::take(&mut self.again);
                self.state = if again {
                    ProgressState::Asked
                } else {
                    ProgressState::Idle
                };
                Some(through)
            }
            ProgressState::Idle | ProgressState::Asked | ProgressState::Frozen(..) => None,
        }
    }
}

#[cfg(test)]
mod tests;
