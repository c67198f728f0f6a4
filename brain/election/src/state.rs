//! The algorithm, without clock and I/O: what was seen when, and what follows.
//!
//! Invariants:
//! - `held` implies that the last record known names this candidate.
//! - A right begins when the request that won it was *sent*, and ends a renew deadline later, whatever answers come.
//! - A candidate counts from when it *got* the answer that first showed a record; both errors are on the safe side.

use std::time::Duration;

use crate::config::Config;
use crate::record::{Record, Timestamp, later_than};
use crate::{ElectionState, Moment, Term};

/// What a candidate knows of whoever led before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// It gave the lock back.
    Released,
    /// This candidate saw its record unchanged for a full lease duration.
    Expired,
    /// The record already named this candidate: it was handed over, or is left from this candidate's own last term.
    Named,
    /// There was no record, or one that nobody had ever held. Somebody may have deleted it, and an older leader may still be
    /// reading: who leads so has to wait a lease duration before it serves.
    Unseen,
}

impl Predecessor {
    /// Returns true if this candidate itself knows that no older leader can be valid.
    #[must_use]
    pub const fn ended(self) -> bool {
        !matches!(self, Self::Unseen)
    }
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<V> {
    /// Read the lock: nothing is known, or what is known is in doubt.
    Read,
    /// Nobody holds the lock: write this record over what was seen (`None`: nothing was there).
    Acquire(Record, Option<V>, Predecessor),
    /// Held by this candidate: write this record over its last one.
    Renew(Record, V),
    /// Held by another, for at least so long.
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
    /// The last record known; `None`: there was none.
    seen: Option<Observed<V>>,
    /// True if `seen` may be acted on without another read.
    fresh: bool,
    held: Option<Held>,
    terms: u64,
    /// The claim that was sent last, if its answer is not known.
    claim: Option<Predecessor>,
    /// An older claim, made without having seen the predecessor end, was never answered.
    unseen_claim: bool,
    /// Until then a leader that this candidate did not see end may be valid.
    unseen_until: Option<Moment>,
    /// Until then who holds the lock is heard to renew it: nothing else is to be learnt from it.
    quiet_until: Option<Moment>,
    /// Nothing is claimed.
    resting: bool,
}

/// A term, and when the last request that prolonged it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) term: Term,
    pub(crate) renewed: Moment,
    /// What that request wrote.
    pub(crate) record: Record,
}

impl<V: Clone> State<V> {
    /// Knows nothing yet.
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

    /// From now on nothing is claimed, whoever the record names; or everything as usual. A term goes on.
    pub fn rest(&mut self, resting: bool) {
        self.resting = resting;
    }

    /// Ends the term, if any. The record may name this candidate until it runs out.
    pub fn end(&mut self) {
        self.held = None;
        self.doubt();
    }

    /// What is to be done at `now`.
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
            // A lock that was made beforehand says nothing of who led without it.
            let released = seen.record.renew_time.is_some();
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

    /// Takes note of what a read showed at `now`. A leader that is not named in it leads no more.
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

    /// Takes note of a record that its holder, by its own word, wrote, heard at `now`: as good as a read that showed it, but
    /// not as new, so that it only ever makes this candidate wait for longer. Nothing is claimed before another read, and only
    /// one that shows this very record lets the time count from `now`. What names another holder than the last read did is
    /// not listened to, nor what is older.
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

    /// How long the lock need not be read, because its holder is heard. It leaves half a lease to find that it went silent.
    #[must_use]
    pub fn quiet(&self, now: Moment) -> Option<Duration> {
        let left = self.quiet_until?.since(now);
        (self.held.is_none() && !left.is_zero()).then_some(left)
    }

    /// The leader's renewals are not heard any more.
    pub fn hear_nothing(&mut self) {
        self.quiet_until = None;
    }

    /// What is known of the lock may not be true any more: the next decision is to read.
    pub fn doubt(&mut self) {
        self.fresh = false;
    }

    /// Takes note that a claim is about to be sent. [`Self::wrote`] or [`Self::refused`] tells how it ended, if that is known.
    pub fn claiming(&mut self, predecessor: Predecessor) {
        self.unseen_claim |= self.claim == Some(Predecessor::Unseen);
        self.claim = Some(predecessor);
    }

    /// Takes note that the claim was refused: nothing came of it.
    pub fn refused(&mut self) {
        self.claim = None;
        self.doubt();
    }

    /// Takes note that `record`, sent at `sent`, was written as `version`, known at `now`. An answer that comes after the
    /// renew deadline wins nothing.
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

    /// Ends the term if its time is over at `now`. Answers whether it did.
    pub fn expire(&mut self, now: Moment) -> bool {
        let over = self.valid_until().is_some_and(|until| now >= until);
        if over {
            self.held = None;
            self.doubt();
        }
        over
    }

    /// Ends the term, if any, and answers what to write so that `to` (or, if empty, whoever comes first) can lead at once.
    ///
    /// `None`: the last known record does not name this candidate; or an older leader that it did not see end may still be valid,
    /// and whoever takes over must wait as well: the record has to run out by itself.
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
                Duration::from_secs(1)
            } else {
                self.config.lease_duration
            },
            acquire_time: Some(time),
            renew_time: Some(time),
            leader_transitions: seen.record.leader_transitions.saturating_add(named),
        };
        Some((record, seen.version.clone()))
    }

    /// When this candidate's right to lead ends, if it leads.
    #[must_use]
    pub fn valid_until(&self) -> Option<Moment> {
        self.held.as_ref().map(|held| held.renewed + self.config.renew_deadline)
    }

    /// The leader at `now`, as far as this candidate knows.
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

    /// Whether the record may name this candidate, now or when a claim that is still on its way arrives.
    #[must_use]
    pub fn may_be_named(&self) -> bool {
        self.claim.is_some() || self.seen.as_ref().is_some_and(|seen| self.is_me(&seen.record))
    }

    /// The holder, by the last record known; `None` if it is free.
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

    /// When an unchanged record may be taken. The holder says how long; if it does not, our own duration holds.
    fn expiry(&self, seen: &Observed<V>) -> Moment {
        let said = seen.record.lease_duration;
        seen.at
            + if said.is_zero() {
                self.config.lease_duration
            } else {
                said
            }
    }

    /// A record that names this candidate, over `before`.
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
