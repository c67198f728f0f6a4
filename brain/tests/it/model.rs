//! The simplest etcd that could be right: a whole map for every revision that is not compacted, no clock, no disk.
//!
//! It is tested against real etcd (see `etcd.rs`), so everything that is compared with it must agree with it. Leases do not expire here: a
//! script that waits for that must revoke them itself.

mod lease;
mod range;
mod txn;
mod verify;

use std::collections::BTreeMap;

use bytes::Bytes;
use tonic::Code;

use crate::wire::{Answer, KeyValue, Refusal, Request, Response, pb};
use lease::Leases;
pub(crate) use range::by_target;

/// All keys of one revision.
pub(crate) type Keys = BTreeMap<Bytes, KeyValue>;

/// The change of one operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// As a watch sends it: a deletion has key and mod revision only.
    pub(crate) kv: KeyValue,
    pub(crate) deleted: bool,
    /// As the key was at the revision before, also if the same txn has put it since. None for a put that creates, also if the
    /// same txn has deleted the key before.
    pub(crate) prev_kv: Option<KeyValue>,
}

/// A store. Fresh ones are at revision 1.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// By revision, oldest first; never empty.
    states: BTreeMap<i64, Keys>,
    /// The changes of each revision, in the order of its operations.
    events: BTreeMap<i64, Vec<Event>>,
    /// Revisions below are gone. Before the first compaction -1, as even revision 0 can be compacted once.
    compacted: i64,
    leases: Leases,
}

/// A request under way: what it has done so far, on a copy.
#[derive(Clone, Debug)]
struct Draft<'a> {
    before: &'a Model,
    keys: Keys,
    leases: Leases,
    events: Vec<Event>,
}

impl Model {
    pub(crate) fn new() -> Self {
        let states = BTreeMap::from([(1, Keys::new())]);
        Self {
            states,
            events: BTreeMap::new(),
            compacted: -1,
            leases: Leases::default(),
        }
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> i64 {
        *self.states.keys().next_back().expect("there is always a newest state")
    }

    /// The last compacted revision; -1 if there was no compaction.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// The ids of all leases.
    pub(crate) fn leases(&self) -> Vec<i64> {
        self.leases.ids()
    }

    /// The keys of the newest revision.
    pub(crate) fn keys(&self) -> &Keys {
        &self.states[&self.revision()]
    }

    /// Returns the changes from `revision` on, in order, which a watch of all keys from there must receive.
    pub(crate) fn events_from(&self, revision: i64) -> impl Iterator<Item = &Event> {
        self.events.range(revision..).flat_map(|(_, events)| events)
    }

    /// Executes `request`.
    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        verify::request(request)?;
        match request {
            Request::Range(range) => self.draft().range(range).map(Response::Range),
            Request::Put(put) => self.write(|draft| Ok(Response::Put(draft.put_alone(put)?))),
            Request::Delete(delete) => self.write(|draft| Ok(Response::Delete(draft.delete(delete)))),
            Request::Txn(txn) => self.write(|draft| Ok(Response::Txn(draft.txn_alone(txn)?))),
            Request::Compact(compact) => self.compact(compact.revision),
            Request::Grant(grant) => self.grant(grant),
            Request::Revoke(revoke) => self.write(|draft| Ok(Response::Revoke(draft.revoke(revoke.id)?))),
            Request::KeepAlive(keep_alive) => Ok(self.keep_alive(keep_alive)),
            Request::TimeToLive(ask) => Ok(self.time_to_live(ask)),
            Request::Leases(_) => Ok(self.list_leases()),
        }
    }

    fn draft(&self) -> Draft<'_> {
        Draft {
            before: self,
            keys: self.keys().clone(),
            leases: self.leases.clone(),
            events: Vec::new(),
        }
    }

    /// All of it or, if it is refused, nothing.
    fn write(&mut self, act: impl FnOnce(&mut Draft<'_>) -> Answer) -> Answer {
        let mut draft = self.draft();
        let answer = act(&mut draft)?;
        let Draft {
            keys, leases, events, ..
        } = draft;
        self.leases = leases;
        if !events.is_empty() {
            let revision = self.revision() + 1;
            self.states.insert(revision, keys);
            self.events.insert(revision, events);
        }
        Ok(answer)
    }

    fn compact(&mut self, revision: i64) -> Answer {
        if revision <= self.compacted {
            return Err(compacted());
        }
        if revision > self.revision() {
            return Err(future_revision());
        }
        self.compacted = revision;
        self.states = self.states.split_off(&revision);
        self.events = self.events.split_off(&revision); // what happened at the compacted revision can still be watched
        Ok(Response::Compact(pb::CompactionResponse {
            header: header(self.revision()),
        }))
    }
}

impl Draft<'_> {
    /// The revision that a header carries at this point.
    fn revision(&self) -> i64 {
        self.before.revision() + i64::from(!self.events.is_empty())
    }

    fn put_alone(&mut self, put: &pb::PutRequest) -> Result<pb::PutResponse, Refusal> {
        self.leases.must_exist(put.lease)?;
        self.put(put)
    }

    fn put(&mut self, put: &pb::PutRequest) -> Result<pb::PutResponse, Refusal> {
        let prev_kv = self.keys.get(&put.key).cloned();
        if (put.ignore_value || put.ignore_lease) && prev_kv.is_none() {
            return Err(key_not_found());
        }
        let revision = self.before.revision() + 1;
        let before = prev_kv.clone().unwrap_or_default();
        let kv = KeyValue {
            key: put.key.clone(),
            value: if put.ignore_value {
                before.value
            } else {
                put.value.clone()
            },
            lease: if put.ignore_lease { before.lease } else { put.lease },
            create_revision: if prev_kv.is_some() {
                before.create_revision
            } else {
                revision
            },
            mod_revision: revision,
            version: before.version + 1,
        };
        self.leases.attach(&kv.key, kv.lease);
        self.keys.insert(kv.key.clone(), kv.clone());
        self.event(kv, false);
        Ok(pb::PutResponse {
            header: header(revision),
            prev_kv: prev_kv.filter(|_| put.prev_kv),
        })
    }

    fn delete(&mut self, delete: &pb::DeleteRangeRequest) -> pb::DeleteRangeResponse {
        let gone = range::select(&self.keys, &delete.key, &delete.range_end);
        for kv in &gone {
            self.remove(kv);
        }
        pb::DeleteRangeResponse {
            header: header(self.revision()),
            deleted: gone.len() as i64,
            prev_kvs: if delete.prev_kv { gone } else { Vec::new() },
        }
    }

    fn remove(&mut self, kv: &KeyValue) {
        self.keys.remove(&kv.key);
        self.leases.attach(&kv.key, 0);
        let mod_revision = self.before.revision() + 1;
        let tombstone = KeyValue {
            key: kv.key.clone(),
            mod_revision,
            ..KeyValue::default()
        };
        self.event(tombstone, true);
    }

    fn event(&mut self, kv: KeyValue, deleted: bool) {
        let creates = !deleted && kv.create_revision == kv.mod_revision;
        let prev_kv = self.before.keys().get(&kv.key).filter(|_| !creates).cloned();
        self.events.push(Event { kv, deleted, prev_kv });
    }
}

/// A header with nothing but a revision, as those within a txn are.
fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader {
        revision,
        ..pb::ResponseHeader::default()
    })
}

fn refused(code: Code, text: &str) -> Refusal {
    Refusal {
        code,
        text: format!("etcdserver: {text}"),
    }
}

fn compacted() -> Refusal {
    refused(Code::OutOfRange, "mvcc: required revision has been compacted")
}

fn future_revision() -> Refusal {
    refused(Code::OutOfRange, "mvcc: required revision is a future revision")
}

fn key_not_found() -> Refusal {
    refused(Code::InvalidArgument, "key not found")
}
