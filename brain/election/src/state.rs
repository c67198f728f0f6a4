//! The algorithm, without clock and I/O: the observations with their times, and the decisions that follow.
//!
//! Invariants:
//! - `held` implies that the last known record names this candidate.
//! - A lease begins when the request that won it was *sent*, and ends a renew deadline later, whatever answers arrive.
//! - A candidate counts from when it *received* the answer that first showed a record; both errors are on the safe side.

use std::time::Duration;

use crate::config::Config;
use crate::record::{Record, Timestamp, later_than};
use crate::{ElectionState, Moment, Term};

/// The lease of a lock that its holder released.
const RELEASED_LEASE_DURATION: Duration = Duration::from_secs(1);

/// A candidate's knowledge of the previous leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// It released the lock.
    Released,
    /// This candidate saw its record unchanged for a full lease duration.
    Expired,
    /// The record already named this candidate: the lock was handed over to it, or the record remains from its own last term.
    Named,
    /// No record existed, or it named no earlier holder. It may have been deleted, and an older leader may still serve reads:
    /// the new leader must wait a lease duration before it serves.
    Unseen,
}

impl Predecessor {
    /// Returns true if this candidate knows by itself that no older leader can be valid.
    #[must_use]
    pub const fn ended(self) -> bool {
        !matches!(self, Self::Unseen)
    }
}

/// The next action of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<V> {
    /// Read the lock: nothing is known, or the known state is in doubt.
    Read,
    /// The lock has no holder: replace what was seen (`None`: no record) with this record.
    Acquire(Record, Option<V>, Predecessor),
    /// This candidate holds the lock: replace its last record with this one.
    Renew(Record, V),
    /// Another candidate holds the lock, for at least this long.
    Wait(Duration),
}

#[derive(Debug)]
struct Observed<V> {
    record: Record,
    version: V,
    at: Moment,
}

/// A candidate's knowledge of one lock.
#[derive(Debug)]
pub struct State<V> {
    config: Config,
    /// The last known record; `None`: there was none.
    seen: Option<Observed<V>>,
    /// True if `seen` may be acted on without another read.
    fresh: bool,
    held: Option<Held>,
    terms: u64,
    /// The last claim sent, if its answer is not known.
    claim: Option<Predecessor>,
    /// True if an older claim, made without having seen the predecessor end, was never answered.
    unseen_claim: bool,
    /// Until then a leader whose end this candidate did not see may be valid.
    unseen_until: Option<Moment>,
    /// Until then the holder is known to renew the lock, by the renewals that arrive: there is no need to read it.
    quiet_until: Option<Moment>,
    /// True if nothing is claimed.
    resting: bool,
}

/// A term, and the time at which the last request that extended it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) term: Term,
    pub(crate) renewed: Moment,
    /// The record that this request wrote.
    pub(crate) record: Record,
}

impl<V: Clone> State<V> {
    /// Creates a state without any knowledge.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            seen: None,
            fresh: false,
            held: None,
            terms: 0,
            claim: None,
            unseen_claim: false,
            unseen_until: None,
            quiet_until: None,
            resting: false,
        }
    }

    /// Stops claiming, even if the record names this candidate, or claims again as usual. A term continues.
    pub fn rest(&mut self, resting: bool) {
        self.resting = resting;
    }

    /// Ends the term, if any. The record may name this candidate until it expires.
    pub fn end(&mut self) {
        self.held = None;
        self.doubt();
    }

    /// Returns the action to take at `now`.
    #[must_use]
    pub fn decide(&self, now: Moment, wall: Timestamp) -> Decision<V> {
        if !self.fresh {
            return Decision::Read;
        }
        if self.resting && self.held.is_none() {
            return Decision::Wait(self.config.lease_duration);
        }
        let Some(seen) = &self.seen else {
            return Decision::Acquire(self.claim_over(None, wall), None, Predecessor::Unseen);
        };
        let record = self.claim_over(Some(&seen.record), wall);
        if self.held.is_some() {
            return Decision::Renew(record, seen.version.clone());
        }
        let predecessor = if self.is_me(&seen.record) {
            let unseen = self.unseen_claim || self.claim == Some(Predecessor::Unseen);
            if unseen {
                Predecessor::Unseen
            } else {
                Predecessor::Named
            }
        } else if seen.record.is_free() {
            // A free record does not prove that no leader is left: it may have been created in advance, or another client may have
            // removed its holder. A holder that releases the lock itself leaves a lease of one second that begins then, as
            // Kubernetes' clients do.
            let record = &seen.record;
            let begins = record.renew_time.is_some() && record.renew_time == record.acquire_time;
            let released = begins && record.lease_duration <= RELEASED_LEASE_DURATION;
            if released {
                Predecessor::Released
            } else {
                Predecessor::Unseen
            }
        } else {
            let left = self.expiry(seen).since(now);
            if !left.is_zero() {
                return Decision::Wait(left);
            }
            Predecessor::Expired
        };
        Decision::Acquire(record, Some(seen.version.clone()), predecessor)
    }

    /// Records what a read returned at `now`. A leader that the record does not name leads no more.
    pub fn read(&mut self, seen: Option<(Record, V)>, now: Moment) {
        let before = self.seen.take();
        self.seen = seen.map(|(record, version)| {
            let at = match before {
                Some(before) if before.record == record => before.at,
                _ => now,
            };
            Observed { record, version, at }
        });
        self.fresh = true;
        if !self.seen.as_ref().is_some_and(|seen| self.is_me(&seen.record)) {
            self.held = None;
        }
    }

    /// Records a renewal that the holder reports to have written, received at `now`: as good as a read that returned it, but not as
    /// fresh, so that it can only make this candidate wait longer. Nothing is claimed before another read, and only a read that
    /// returns this very record lets the time count from `now`. A record that names another holder than the last read did, or an
    /// older one, is ignored.
    pub fn hear(&mut self, record: Record, now: Moment) {
        let Some(seen) = self.seen.as_mut().filter(|_| self.held.is_none()) else {
            return;
        };
        let same = seen.record.holder_identity == record.holder_identity && !record.is_free();
        if !same || record.holder_identity == self.config.identity || record.renew_time <= seen.record.renew_time {
            return;
        }
        seen.record = record;
        seen.at = now;
        self.fresh = false;
        self.quiet_until = Some(now + self.config.lease_duration / 2);
    }

    /// Returns how long the lock need not be read because the holder's renewals arrive. This leaves half a lease to detect that
    /// they stopped.
    #[must_use]
    pub fn quiet(&self, now: Moment) -> Option<Duration> {
        let left = self.quiet_until?.since(now);
        (self.held.is_none() && !left.is_zero()).then_some(left)
    }

    /// Records that the leader's renewals no longer arrive.
    pub fn hear_nothing(&mut self) {
        self.quiet_until = None;
    }

    /// Marks the known state of the lock as possibly outdated: the next decision is to read.
    pub fn doubt(&mut self) {
        self.fresh = false;
    }

    /// Records that a claim is about to be sent. [`Self::wrote`] or [`Self::refused`] records its outcome, if that becomes known.
    pub fn claiming(&mut self, predecessor: Predecessor) {
        self.unseen_claim |= self.claim == Some(Predecessor::Unseen);
        self.claim = Some(predecessor);
    }

    /// Records that the claim was refused: it wrote nothing.
    pub fn refused(&mut self) {
        self.claim = None;
        self.doubt();
    }

    /// Records that `record`, sent at `sent`, was written as `version`, known at `now`. An answer after the renew deadline wins
    /// nothing.
    pub fn wrote(&mut self, record: Record, version: V, sent: Moment, now: Moment) {
        let transitions = record.leader_transitions;
        self.seen = Some(Observed {
            record: record.clone(),
            version,
            at: now,
        });
        self.fresh = true;
        let claim = self.claim.take();
        if claim == Some(Predecessor::Unseen) {
            self.unseen_claim = false;
            self.unseen_until = Some(now + self.config.lease_duration);
        }
        if now >= sent + self.config.renew_deadline {
            self.held = None;
        } else if let Some(held) = &mut self.held {
            held.renewed = sent;
            held.record = record;
        } else if let Some(predecessor) = claim {
            self.terms += 1;
            let predecessor = if self.predecessor_may_lead(now) {
                Predecessor::Unseen
            } else {
                predecessor
            };
            let term = Term {
                number: self.terms,
                transitions,
                since: now,
                predecessor,
            };
            self.held = Some(Held {
                term,
                renewed: sent,
                record,
            });
        }
    }

    /// Ends the term if its time is over at `now`. Returns true if it did.
    pub fn expire(&mut self, now: Moment) -> bool {
        let over = self.valid_until().is_some_and(|until| now >= until);
        if over {
            self.held = None;
            self.doubt();
        }
        over
    }

    /// Ends the term, if any, and returns the record to write so that `to` (or, if empty, the first candidate) can lead at once.
    ///
    /// `None`: the last known record does not name this candidate; or an older leader whose end it did not see may still be valid,
    /// and the successor must wait as well, until the record expires.
    pub fn yield_to(&mut self, to: &str, now: Moment, wall: Timestamp) -> Option<(Record, V)> {
        if self.predecessor_may_lead(now) || self.unseen_claim || self.claim == Some(Predecessor::Unseen) {
            return None;
        }
        let seen = self.seen.as_ref().filter(|seen| self.is_me(&seen.record))?;
        self.held = None;
        let time = later_than(seen.record.renew_time, wall);
        let named = u32::from(!to.is_empty());
        let record = Record {
            holder_identity: to.to_owned(),
            lease_duration: if to.is_empty() {
                RELEASED_LEASE_DURATION
            } else {
                self.config.lease_duration
            },
            acquire_time: Some(time),
            renew_time: Some(time),
            leader_transitions: seen.record.leader_transitions.saturating_add(named),
        };
        Some((record, seen.version.clone()))
    }

    /// Returns when this candidate's lease ends, if it leads.
    #[must_use]
    pub fn valid_until(&self) -> Option<Moment> {
        self.held.as_ref().map(|held| held.renewed + self.config.renew_deadline)
    }

    /// Returns the leader at `now`, as far as this candidate knows.
    #[must_use]
    pub fn election_state(&self, now: Moment) -> ElectionState {
        if let Some(held) = &self.held {
            return ElectionState::Leading(held.term.clone());
        }
        match &self.seen {
            Some(seen) if !seen.record.is_free() && !self.is_me(&seen.record) && now < self.expiry(seen) => {
                ElectionState::Following {
                    leader: seen.record.holder_identity.clone(),
                }
            }
            _ => ElectionState::NoLeader,
        }
    }

    /// Returns true if the record may name this candidate, now or when a claim in flight arrives.
    #[must_use]
    pub fn may_be_named(&self) -> bool {
        self.claim.is_some() || self.seen.as_ref().is_some_and(|seen| self.is_me(&seen.record))
    }

    /// Returns the holder in the last known record; `None` if there is none.
    pub(crate) fn holder(&self) -> Option<&str> {
        let seen = self.seen.as_ref().filter(|seen| !seen.record.is_free())?;
        Some(&seen.record.holder_identity)
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    fn is_me(&self, record: &Record) -> bool {
        record.holder_identity == self.config.identity
    }

    /// Returns true if a leader that this candidate did not see end may still be valid.
    fn predecessor_may_lead(&self, now: Moment) -> bool {
        self.unseen_until.is_some_and(|until| now < until)
    }

    /// Returns when an unchanged record may be taken. The record holds the lease duration; without one, the configured duration
    /// applies.
    fn expiry(&self, seen: &Observed<V>) -> Moment {
        let said = seen.record.lease_duration;
        seen.at
            + if said.is_zero() {
                self.config.lease_duration
            } else {
                said
            }
    }

    /// Returns a record that names this candidate, as the successor of `before`.
    fn claim_over(&self, before: Option<&Record>, wall: Timestamp) -> Record {
        let mine = before.filter(|before| self.is_me(before));
        let renew_time = later_than(before.and_then(|before| before.renew_time), wall);
        let transitions = before.map_or(0, |before| {
            before.leader_transitions.saturating_add(u32::from(mine.is_none()))
        });
        Record {
            holder_identity: self.config.identity.clone(),
            lease_duration: self.config.lease_duration,
            acquire_time: mine.and_then(|mine| mine.acquire_time).or(Some(renew_time)),
            renew_time: Some(renew_time),
            leader_transitions: transitions,
        }
    }
}

#[cfg(test)]
mod tests;
