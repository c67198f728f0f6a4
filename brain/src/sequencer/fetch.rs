//! Reads what requests need of the rows before they are queued.

use std::sync::Arc;
use std::time::Duration;

use super::command::{Command, Request};
use super::{Sequencer, Space};
use crate::feed::News;
use crate::log::Log;
use crate::mvcc::fetch::{Fetched, Needs};
use crate::mvcc::view::{View, ViewError};
use crate::mvcc::{Error, LeaseId};
use crate::rows::{Rows, RowsError};
use crate::state::State;

/// Leases that ran out whose keys are read at once.
const LEASES: usize = 64;

/// How long the keys of such a lease are waited for, before it is tried again.
const LIMIT: Duration = Duration::from_secs(5);

/// Bytes that the end of a lease counts for in a batch.
const REVOKE_BYTES: usize = 64;

/// What a request needs beside what is in memory, and as of which view; `None` where it looks at no rows at all.
pub(super) fn needs<R: Rows>(state: &State<R>, request: &Request) -> Option<(Arc<View<R::Snapshot>>, Needs)> {
    match request {
        Request::Write(op, _) => {
            let view = state.view();
            let needs = Needs::of(op, &view);
            Some((view, needs))
        }
        Request::Revoke { id, .. } => {
            // The view first: keys that are attached later are in memory.
            let view = state.view();
            let needs = Needs::of_keys(state.leases().attached(*id), &view);
            Some((view, needs))
        }
        Request::Compact(_) | Request::Grant(..) | Request::Checkpoint(_) | Request::Alarm(..) => None,
    }
}

/// Reads what a request needs.
pub(super) async fn fetch<R: Rows>(state: &State<R>, view: &View<R::Snapshot>, needs: Needs) -> Result<Fetched, Error> {
    let fetched = needs.fetch(view, || state.view(), state.fetches().budget()).await;
    fetched.map_err(|error| match error {
        ViewError::Refused(error) => error,
        ViewError::Rows(error) => {
            let source = &error as &dyn std::error::Error;
            match &error {
                RowsError::Corrupt(_) => {
                    tracing::error!(
                        error = source,
                        "rows that a write needs are damaged: nothing is served any more"
                    );
                    state.set_corrupt();
                    return Error::Corrupt;
                }
                // Whoever keeps the connection says so, once and not for each read.
                RowsError::Unavailable(_) | RowsError::Unknown(_) => {
                    tracing::debug!(error = source, "rows that a write needs cannot be read");
                }
                _ => tracing::error!(error = source, "rows that a write needs cannot be read"),
            }
            Error::Timeout
        }
    })
}

/// A lease that ran out, and its keys.
pub(super) type Expired = (LeaseId, Result<Fetched, Error>);

impl<L, R, E, Q> Sequencer<L, R, E, Q>
where
    L: Log,
    R: Rows,
    E: FnMut(News) + Send + 'static,
    Q: Space,
{
    /// How many leases more may be ended.
    pub(super) fn room_for_expired(&self, most: usize) -> usize {
        most.saturating_sub(self.expired.len() + self.fetching.len())
    }

    /// Ends leases that ran out, as soon as their keys are read.
    pub(super) fn end_leases(&mut self, ids: impl IntoIterator<Item = LeaseId>) {
        self.expired.extend(ids);
        while self.fetching.len() < LEASES
            && let Some(id) = self.expired.pop_front()
        {
            let request = Request::Revoke { id, expired: true };
            match needs(&self.state, &request) {
                Some((view, needs)) if !needs.is_empty() => {
                    let state = self.state.clone();
                    self.fetching.push(Box::pin(async move {
                        let fetched = tokio::time::timeout(LIMIT, fetch(&state, &view, needs)).await;
                        (id, fetched.unwrap_or(Err(Error::Timeout)))
                    }));
                }
                view => {
                    let fetched = view.map(|(view, _)| Fetched::of(&*view));
                    self.own
                        .push_back(Command::unasked(request, REVOKE_BYTES).with(fetched));
                }
            }
        }
    }

    /// The keys of a lease that ran out were read, or cannot be.
    pub(super) fn end_lease(&mut self, (id, fetched): Expired) {
        match fetched {
            Ok(fetched) => {
                let request = Request::Revoke { id, expired: true };
                let command = Command::unasked(request, REVOKE_BYTES);
                self.own.push_back(command.with(Some(fetched)));
            }
            Err(error) => {
                tracing::warn!(lease = id.0, %error, "the keys of an expired lease cannot be read; trying again");
                self.state.leases().retry_expired(id);
            }
        }
        self.end_leases([]);
    }
}
