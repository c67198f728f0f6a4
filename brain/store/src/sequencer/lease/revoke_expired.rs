//! Expired leases: reads their keys, a few leases at a time, and queues each end until its batch.
//!
//! Leases with many keys wait for each other, but other leases do not wait for them, and every second batch has no lease ends: however many
//! keys must be deleted, locks of clients that have gone are released in time, and requests of clients continue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

use crate::sequencer::command::{Command, QueuedCommand};
use crate::sequencer::fetch::keys_of_lease;
use crate::state::StoreState;
use etcd_types::errors::Error;
use etcd_types::types::LeaseId;
use mvcc::evaluate::LeasePart;
use mvcc::fetch::{FEW_LEASE_KEYS, FetchKind, Fetched};
use runtime::backoff::Backoff;
use runtime::log_once::LogOnce;

/// Leases whose keys are read at once: with few keys, with many, and of both those that could not be read before. None takes the places
/// of others.
const READ_PLACES: [usize; 3] = [64, 4, 16];

/// Which places a lease takes.
#[derive(Debug, Clone, Copy)]
enum PlaceKind {
    Small,
    Large,
    Again,
}

/// Timeout of reading the keys of a lease: of the first attempt, and of later ones.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay before a lease is tried again.
const EXPIRE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

/// The most keys of an expired lease that one revision deletes. A lease with more or longer keys ends in several parts.
pub(in crate::sequencer) const MAX_LEASE_PART: LeasePart = LeasePart {
    keys: 25_000,
    bytes: 4 << 20,
};

/// The most keys that are read for a part. Some of them may be deleted before the part is evaluated, and the next keys take their places.
const MAX_READ_LEASE_PART: LeasePart = LeasePart {
    keys: MAX_LEASE_PART.keys + MAX_LEASE_PART.keys / 4,
    bytes: MAX_LEASE_PART.bytes + MAX_LEASE_PART.bytes / 4,
};

/// Bytes that the end of a lease counts for in a batch.
const REVOKE_BYTES: usize = 64;

/// A lease that ran out, and the result of reading its keys.
#[derive(Debug)]
pub(in crate::sequencer) struct ExpiredLease {
    id: LeaseId,
    kind: PlaceKind,
    /// Earlier failures.
    failures: u32,
    fetched: Result<Fetched, Error>,
}

/// The leases that will be ended; see the module.
#[derive(Default)]
pub(in crate::sequencer) struct LeaseEnds {
    /// Those whose keys will be read.
    small: VecDeque<LeaseId>,
    large: VecDeque<LeaseId>,
    reading: FuturesUnordered<BoxFuture<'static, ExpiredLease>>,
    /// The places that are taken, by kind.
    taken: [usize; 3],
    retries: ExpireRetries,
    /// Ends that wait for a batch.
    ready: VecDeque<QueuedCommand>,
    /// True if the last batch had ends.
    had_turn: bool,
}

impl LeaseEnds {
    /// Returns the number of leases that others wait for. Those with many keys wait by themselves.
    pub(in crate::sequencer) fn waiting(&self) -> usize {
        self.small.len() + self.ready.len()
    }

    /// Returns true if some could not be read and are tried again.
    pub(in crate::sequencer) fn are_retried(&self) -> bool {
        !self.retries.due.is_empty()
    }

    /// Returns the number of ends that wait for a batch.
    pub(in crate::sequencer) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Ends leases as soon as their keys are read; also leases that are tried again.
    pub(in crate::sequencer) fn extend(&mut self, state: &Arc<StoreState>, ids: impl IntoIterator<Item = LeaseId>) {
        for id in ids {
            match state.leases().attached_count(id) > FEW_LEASE_KEYS {
                true => self.large.push_back(id),
                false => self.small.push_back(id),
            }
        }
        self.read_next(state);
    }

    /// Waits until the keys of a lease are read, or cannot be; `None` if none are being read.
    pub(in crate::sequencer) async fn next(&mut self) -> Option<ExpiredLease> {
        self.reading.next().await
    }

    /// Has a lease whose keys are read wait for its batch, or tries it again later.
    pub(in crate::sequencer) fn end(&mut self, state: &Arc<StoreState>, expired: ExpiredLease) {
        self.taken[expired.kind as usize] -= 1;
        let id = expired.id;
        match expired.fetched {
            Ok(fetched) => {
                let end = QueuedCommand::internal(Command::Revoke { id, expired: true }, REVOKE_BYTES);
                self.ready.push_back(end.with(Some(fetched)));
            }
            Err(error) => {
                // For want of room it is tried again soon.
                let failures = if error == Error::TooManyRequests {
                    0
                } else {
                    expired.failures
                };
                self.retries.push(id, failures);
                if self.retries.log.due().is_some() {
                    let waiting = self.retries.due.len();
                    tracing::warn!(lease = id.0, waiting, %error, "cannot read the keys of expired leases; will retry");
                }
            }
        }
        self.read_next(state);
    }

    /// Takes ends for a batch, at most `most`; none after a batch with ends if others wait.
    pub(in crate::sequencer) fn take(&mut self, most: usize, others_wait: bool) -> VecDeque<QueuedCommand> {
        if std::mem::take(&mut self.had_turn) && others_wait {
            return VecDeque::new();
        }
        let ends: VecDeque<_> = self.ready.drain(..most.min(self.ready.len())).collect();
        self.had_turn = !ends.is_empty();
        ends
    }

    /// Gives an end back that was not evaluated: it is the next.
    pub(in crate::sequencer) fn put_back(&mut self, end: QueuedCommand) {
        self.ready.push_front(end);
    }

    fn read_next(&mut self, state: &Arc<StoreState>) {
        for kind in [PlaceKind::Small, PlaceKind::Large, PlaceKind::Again] {
            while self.taken[kind as usize] < READ_PLACES[kind as usize] {
                let next = match kind {
                    PlaceKind::Small => self.small.pop_front().map(|id| (id, 0)),
                    PlaceKind::Large => self.large.pop_front().map(|id| (id, 0)),
                    PlaceKind::Again => self.retries.pop_due(),
                };
                let Some((id, failures)) = next else { break };
                self.read(state, (id, kind), failures);
            }
        }
    }

    fn read(&mut self, state: &Arc<StoreState>, (id, kind): (LeaseId, PlaceKind), failures: u32) {
        self.taken[kind as usize] += 1;
        let (state, limit) = (
            state.clone(),
            if failures == 0 {
                FIRST_READ_TIMEOUT
            } else {
                READ_TIMEOUT
            },
        );
        self.reading.push(Box::pin(async move {
            let keys = state.leases().attached_count(id).min(MAX_READ_LEASE_PART.keys);
            let fetched = match state.fetches().budget_for_lease(FetchKind::LeaseEnds, keys).await {
                Ok(budget) => timeout(limit, keys_of_lease(&state, id, MAX_READ_LEASE_PART, budget)).await,
                Err(error) => Ok(Err(error)),
            };
            ExpiredLease {
                id,
                kind,
                failures,
                fetched: fetched.unwrap_or(Err(Error::Timeout)),
            }
        }));
    }
}

/// Leases that ran out and whose keys could not be read.
#[derive(Debug, Default)]
struct ExpireRetries {
    /// When each is due, and how often it failed.
    due: BTreeMap<(Instant, LeaseId), u32>,
    log: LogOnce,
}

impl ExpireRetries {
    /// Has a lease tried again later: each time after twice as long.
    fn push(&mut self, id: LeaseId, failures: u32) {
        let due = Instant::now() + EXPIRE_BACKOFF.after(failures);
        self.due.insert((due, id), failures + 1);
    }

    fn pop_due(&mut self) -> Option<(LeaseId, u32)> {
        let first = self.due.first_entry().filter(|first| first.key().0 <= Instant::now())?;
        let ((_, id), failures) = first.remove_entry();
        Some((id, failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_batch_is_free_of_ends_while_others_wait() {
        let mut ends = LeaseEnds::default();
        for id in (1..=5).rev() {
            let end = Command::Revoke {
                id: LeaseId(id),
                expired: true,
            };
            ends.put_back(QueuedCommand::internal(end, REVOKE_BYTES));
        }
        let taken = [true, true, true, false].map(|others_wait| ends.take(2, others_wait).len());
        assert_eq!(taken, [2, 0, 2, 1]);
        assert_eq!((ends.ready(), ends.waiting()), (0, 0));
    }
}
