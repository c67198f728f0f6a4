//! Applies committed records to the state in memory: the active memtable, leases, revisions. Alarms, users and tokens are for the
//! caller to apply.
//!
//! The same for a record just committed and for one replayed at start.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::auth::AuthChange;
use super::record::{Alarm, Change, KeyChange, Keys, Record, Token};
use super::row::{LeaseRow, size_of};
use super::sizes::StoredSizes;
use crate::key_index::KeyIndex;
use crate::keys;
use crate::lease::Leases;
use crate::memtable::{Memtable, Version};
use etcd_types::types::{Committed, Event, EventKind, KeyValue, LeaseId, Prev, Revision};

/// A change that is none of keys or leases.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// An alarm was raised or cleared.
    Alarm(Alarm),
    /// Users or roles changed.
    Auth(AuthChange),
    /// A user was given a token.
    Token(Token),
}

/// The state after the last applied record, and the part of it that is not flushed.
#[derive(Debug)]
pub struct Applier {
    /// The newest revision.
    pub revision: Revision,
    /// The compacted revision.
    pub compacted: Revision,
    /// The memtable that versions are added to.
    pub memtable: Arc<Memtable>,
    /// Counts the keys that exist.
    pub key_index: Arc<KeyIndex>,
    /// Rows of leases, users and roles that differ from the stored ones; `None` is a deleted row.
    pub state_rows: BTreeMap<Bytes, Option<Bytes>>,
    /// Stored bytes. Only the member that compacts knows the bytes that compaction deleted.
    pub sizes: StoredSizes,
    /// Something was applied that is not flushed.
    pub dirty: bool,
}

impl Applier {
    /// The state of stored rows.
    #[must_use]
    pub fn new(revision: Revision, compacted: Revision, sizes: StoredSizes, memtable: Arc<Memtable>) -> Self {
        Self {
            sizes,
            revision,
            compacted,
            memtable,
            key_index: Arc::new(KeyIndex::new(revision)),
            state_rows: BTreeMap::new(),
            dirty: false,
        }
    }

    /// Applies one record. `superseded` are the versions that its key changes superseded, in their order; empty if they
    /// are not known. Answers with the events and the changes of everything else, in their order.
    pub fn apply(
        &mut self,
        record: Record,
        superseded: Vec<Prev>,
        leases: &mut Leases,
        now: Duration,
    ) -> (Vec<Committed>, Vec<Effect>) {
        let mut superseded = superseded.into_iter();
        let (mut events, mut effects) = (Vec::new(), Vec::new());
        self.dirty |= !record.entries.is_empty();
        self.sizes.count(&record);
        for entry in record.entries {
            match entry.change {
                Some(Change::Keys(keys)) => events.push(self.apply_keys(keys, &mut superseded, leases)),
                Some(Change::Compact(compact)) => self.compacted = self.compacted.max(compact.revision),
                Some(Change::Grant(grant)) => {
                    leases.grant(LeaseId(grant.id), grant.ttl, 0, now);
                    self.note_lease(LeaseId(grant.id), leases);
                }
                Some(Change::Revoke(revoke)) => {
                    leases.revoke(LeaseId(revoke.id));
                    self.note_lease(LeaseId(revoke.id), leases);
                }
                Some(Change::Checkpoint(checkpoint)) => {
                    leases.checkpoint(LeaseId(checkpoint.id), checkpoint.remaining, now);
                    self.note_lease(LeaseId(checkpoint.id), leases);
                }
                Some(Change::Alarm(alarm)) => effects.push(Effect::Alarm(alarm)),
                Some(Change::Auth(change)) => {
                    for (row, value) in change.rows() {
                        self.set_row(row, value);
                    }
                    effects.push(Effect::Auth(change));
                }
                Some(Change::Token(token)) => effects.push(Effect::Token(token)),
                None => {}
            }
        }
        (events, effects)
    }

    fn apply_keys(
        &mut self,
        keys: Keys,
        superseded: &mut impl Iterator<Item = Prev>,
        leases: &mut Leases,
    ) -> Committed {
        let revision = keys.revision;
        self.revision = revision;
        self.key_index.record(revision, &keys.changes);
        let mut events = Vec::with_capacity(keys.changes.len());
        let mut first_events = FirstEvents::default();
        for change in keys.changes {
            self.memtable.insert(change.key.clone(), revision, version_of(&change));
            self.attach(&change, leases);
            let superseded = superseded.next().unwrap_or_default();
            let prev = match change.prev_mod {
                own if own == revision => first_events.before_txn(&events, &change.key),
                _ => superseded,
            };
            events.push(event_of(change, revision, prev));
        }
        Committed { revision, events }
    }

    fn attach(&mut self, change: &KeyChange, leases: &mut Leases) {
        let (old, new) = (change.prev_lease(), change.lease());
        if old != LeaseId::NONE && old != new {
            leases.detach(old, &change.key);
            self.set_row(keys::attachment_key(old, &change.key), None);
        }
        if new != LeaseId::NONE && old != new {
            // A copy, for the key may be a part of a message or a page of the log, which would stay as long as the lease.
            leases.attach(new, Bytes::copy_from_slice(&change.key));
            self.set_row(keys::attachment_key(new, &change.key), Some(Bytes::new()));
        }
    }

    fn note_lease(&mut self, id: LeaseId, leases: &Leases) {
        let row = leases
            .stored(id)
            .map(|(ttl, remaining)| LeaseRow { ttl, remaining }.encode_to_vec().into());
        self.set_row(keys::lease_key(id), row);
    }

    /// Sets a row of leases, users or roles, and counts it with the versions: they take memory until they are flushed, too.
    fn set_row(&mut self, row: Bytes, value: Option<Bytes>) {
        if !self.state_rows.contains_key(&row) {
            self.memtable.count_beside(&row, value.as_ref());
        }
        self.state_rows.insert(row, value);
    }
}

/// The version that a change made.
fn version_of(change: &KeyChange) -> Version {
    Version {
        create_revision: change.create_revision,
        version: change.version,
        lease: change.lease(),
        prev_mod: change.prev_mod,
        value: (!change.is_delete()).then(|| change.value.clone()),
    }
}

/// Events that are searched one by one.
const MAX_LINEAR_SEARCH_EVENTS: usize = 32;

/// The first event of each key of a txn. A txn may have a million of them.
#[derive(Debug, Default)]
pub struct FirstEvents {
    by_key: HashMap<Bytes, usize>,
    /// The number of events that `by_key` covers.
    known: usize,
}

impl FirstEvents {
    /// Returns the previous version that a watch shows for a key that the same txn has already changed: the one before the txn. `events`
    /// are the events of the txn so far.
    #[must_use]
    pub fn before_txn(&mut self, events: &[Event], key: &Bytes) -> Prev {
        match self.first(events, key) {
            Some(Event {
                is_prev_unread: true, ..
            }) => Prev::Unread,
            Some(Event { prev_kv: Some(kv), .. }) => Prev::Version(kv.clone()),
            _ => Prev::Nothing,
        }
    }

    fn first<'e>(&mut self, events: &'e [Event], key: &Bytes) -> Option<&'e Event> {
        if events.len() <= MAX_LINEAR_SEARCH_EVENTS {
            return events.iter().find(|event| event.kv.key == *key);
        }
        for (at, event) in events.iter().enumerate().skip(self.known) {
            self.by_key.entry(event.kv.key.clone()).or_insert(at);
        }
        self.known = events.len();
        events.get(*self.by_key.get(key)?)
    }
}

/// The event that a change is.
#[must_use]
pub fn event_of(change: KeyChange, revision: Revision, prev: Prev) -> Event {
    let kind = if change.is_delete() {
        EventKind::Delete
    } else {
        EventKind::Put
    };
    let lease = change.lease();
    let kv = KeyValue {
        key: change.key,
        size: size_of(&change.value),
        value: change.value,
        create_revision: change.create_revision,
        mod_revision: revision,
        version: change.version,
        lease,
    };
    let is_prev_unread = prev == Prev::Unread;
    let prev_kv = match prev {
        Prev::Version(kv) => Some(kv),
        Prev::Nothing | Prev::Unread => None,
    };
    Event {
        kind,
        kv,
        prev_kv,
        is_prev_unread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_version_of_a_key_is_the_one_before_its_first_event() {
        let key = |n: usize| Bytes::from(format!("{n:04}"));
        let event = |key: Bytes, prev: Option<i64>| {
            let change = KeyChange {
                key: key.clone(),
                ..KeyChange::default()
            };
            let prev = prev.map(|mod_revision| KeyValue {
                key,
                mod_revision,
                ..KeyValue::default()
            });
            event_of(change, 9, prev.map_or(Prev::Nothing, Prev::Version))
        };
        let (mut events, mut first_events) = (Vec::new(), FirstEvents::default());
        for n in 0..4 * MAX_LINEAR_SEARCH_EVENTS {
            // Each key twice; the second event has another version before it.
            let at = n / 2;
            events.push(event(key(at), (at % 3 > 0).then_some(1 + n as i64)));
            for asked in [0, at / 2, at] {
                let expected = (asked % 3 > 0).then_some(1 + 2 * asked as i64);
                let found = match first_events.before_txn(&events, &key(asked)) {
                    Prev::Version(kv) => Some(kv.mod_revision),
                    Prev::Nothing | Prev::Unread => None,
                };
                assert_eq!(found, expected, "key {asked} of {n} events");
            }
            assert_eq!(first_events.before_txn(&events, &key(at + 1)), Prev::Nothing);
        }
    }
}
