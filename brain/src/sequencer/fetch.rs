//! Reads the rows that requests need before they are queued.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::command::{Command, Request};
use super::{Sequencer, Space};
use crate::log::Log;
use crate::mvcc::fetch::{Fetched, Needs, Share};
use crate::mvcc::view::{View, ViewError};
use crate::rows::{Rows, RowsError};
use crate::storage::commit_feed::CommitEvent;
use crate::storage::state::State;
use crate::types::{Error, LeaseId};

/// Leases that ran out whose keys are read at once.
const LEASES: usize = 64;

/// Maximum number of them that failed before: the others always get their turn.
const RETRIES: usize = LEASES / 2;

/// Timeout of reading the keys of such a lease: of the first attempt, and of later ones.
const FIRST_LIMIT: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(5);

/// Initial and maximum delay before a lease is tried again.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Interval between log lines about keys of leases that cannot be read.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Maximum number of keys of an expired lease that are deleted at once: one with very many ends in parts, each a revision of its own.
pub(super) const LEASE_PART: usize = 25_000;

/// Bytes that the end of a lease counts for in a batch.
const REVOKE_BYTES: usize = 64;

/// Returns the reads that a request needs in addition to memory, and the view to read; `None` if it reads no rows at all.
pub(super) fn needs<R: Rows>(state: &State<R>, request: &Request) -> Option<(Arc<View<R::Snapshot>>, Needs)> {
    match request {
        Request::Write(op, _) => {
            let view = state.view();
            let needs = Needs::of(op, &view);
            Some((view, needs))
        }
        Request::Revoke { id, expired } => {
            // The view first: keys that are attached later are in memory.
            let view = state.view();
            // More than one part: some of its keys may be deleted until then, and others take their places.
            let most = if *expired { 2 * LEASE_PART } else { usize::MAX };
            let needs = Needs::of_keys(state.leases().attached(*id).take(most), &view);
            Some((view, needs))
        }
        Request::Compact(_)
        | Request::Grant(..)
        | Request::Checkpoint(_)
        | Request::Alarm(..)
        | Request::Auth(..)
        | Request::Token { .. } => None,
    }
}

/// Reads the rows that a request needs.
pub(super) async fn fetch<R: Rows>(
    state: &State<R>,
    view: &View<R::Snapshot>,
    needs: Needs,
    share: Share,
) -> Result<Fetched, Error> {
    let fetched = needs.fetch(view, || state.view(), state.fetches().budget(share)).await;
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
                // The supervisor of the connection logs this once, rather than for each read.
                RowsError::Unavailable(_) | RowsError::Unknown(_) => {
                    tracing::debug!(error = source, "rows that a write needs cannot be read");
                }
                _ => tracing::error!(error = source, "rows that a write needs cannot be read"),
            }
            Error::Timeout
        }
    })
}

/// An expired lease, the number of earlier failures to read its keys, and the result of the read.
pub(super) type Expired = (LeaseId, u32, Result<Fetched, Error>);

/// Leases that ran out and whose keys could not be read.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// When each is due, and how often it failed.
    due: BTreeMap<(Instant, LeaseId), u32>,
    warned: Option<Instant>,
}

impl Retries {
    /// Has a lease tried again later: each time after twice as long.
    fn push(&mut self, id: LeaseId, failures: u32) {
        let after = FIRST_RETRY.saturating_mul(1 << failures.min(10)).min(LAST_RETRY);
        self.due.insert((Instant::now() + after, id), failures + 1);
    }

    fn pop_due(&mut self) -> Option<(LeaseId, u32)> {
        let first = self.due.first_entry().filter(|first| first.key().0 <= Instant::now())?;
        let ((_, id), failures) = first.remove_entry();
        Some((id, failures))
    }

    /// It is time to log it.
    fn must_warn(&mut self) -> bool {
        let must = self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY);
        if must {
            self.warned = Some(Instant::now());
        }
        must
    }
}

impl<L, R, E, Q> Sequencer<L, R, E, Q>
where
    L: Log,
    R: Rows,
    E: FnMut(CommitEvent) + Send + 'static,
    Q: Space,
{
    /// Returns the number of further leases that may be ended.
    pub(super) fn room_for_expired(&self, most: usize) -> usize {
        most.saturating_sub(self.expired.len() + self.fetching.len())
    }

    /// Ends leases that ran out, as soon as their keys are read.
    pub(super) fn end_leases(&mut self, ids: impl IntoIterator<Item = LeaseId>) {
        self.expired.extend(ids);
        while self.fetching.len() < LEASES
            && let Some(id) = self.expired.pop_front()
        {
            self.read_lease(id, 0);
        }
    }

    /// Tries leases again whose keys could not be read.
    pub(super) fn retry_leases(&mut self) {
        while self.fetching.len() < RETRIES
            && let Some((id, failures)) = self.retries.pop_due()
        {
            self.read_lease(id, failures);
        }
    }

    fn read_lease(&mut self, id: LeaseId, failures: u32) {
        let request = Request::Revoke { id, expired: true };
        match needs(&self.state, &request) {
            Some((view, needs)) if !needs.is_empty() => {
                let state = self.state.clone();
                let limit = if failures == 0 { FIRST_LIMIT } else { LIMIT };
                self.fetching.push(Box::pin(async move {
                    let fetch = fetch(&state, &view, needs, Share::LeaseEnds);
                    let fetched = tokio::time::timeout(limit, fetch).await;
                    (id, failures, fetched.unwrap_or(Err(Error::Timeout)))
                }));
            }
            view => {
                let fetched = view.map(|(view, _)| Fetched::of(&*view));
                self.pending
                    .push_back(Command::internal(request, REVOKE_BYTES).with(fetched));
            }
        }
    }

    /// The keys of a lease that ran out were read, or cannot be.
    pub(super) fn end_lease(&mut self, (id, failures, fetched): Expired) {
        match fetched {
            Ok(fetched) => {
                let request = Request::Revoke { id, expired: true };
                let command = Command::internal(request, REVOKE_BYTES);
                self.pending.push_back(command.with(Some(fetched)));
            }
            Err(error) => {
                self.retries.push(id, failures);
                if self.retries.must_warn() {
                    let waiting = self.retries.due.len();
                    tracing::warn!(lease = id.0, waiting, %error, "the keys of expired leases cannot be read; trying again");
                }
            }
        }
        self.end_leases([]);
    }
}
