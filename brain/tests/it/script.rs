//! Random requests: few keys, awkward ones; revisions around the current and the compacted one; what is wrong in every way.
//!
//! The same seed gives the same script, whatever the target answers, unless it answers wrongly.

mod ops;
mod run;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::model::Model;
use crate::wire::{Request, pb};

pub(crate) use run::{Run, run};

/// Prefixes of each other, neighbours, and both ends of the byte order.
const KEYS: &[&[u8]] = &[
    b"a",
    b"a\0",
    b"a\0\0",
    b"a\0b",
    b"ab",
    b"abc",
    b"a\xff",
    b"a\xff\xff",
    b"b",
    b"b/",
    b"b/1",
    b"b/2",
    b"b0",
    b"\0",
    b"\0\0",
    b"\0a",
    b"\x01",
    b"\xff",
    b"\xff\0",
    b"\xff\xff",
    b"/registry/pods/x",
    b"/registry/pods/y",
    b"/registry/pods0",
];

/// Few, so that sorts by value have ties.
const VALUES: &[&[u8]] = &[b"", b"", b"1", b"2", b"10", b"\0", b"\xff", b"a value of some length"];

/// The revisions and leases that the generator may refer to.
#[derive(Clone, Debug)]
struct Known {
    revision: i64,
    compacted: i64,
    leases: Vec<i64>,
}

/// An endless script.
pub(crate) struct Script {
    rng: StdRng,
    next_lease: i64,
    /// Requests that must follow the last one at once.
    queued: Vec<Request>,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            next_lease: 1_000,
            queued: Vec::new(),
        }
    }

    /// The next request for a store in the state of `model`.
    pub(crate) fn next(&mut self, model: &Model) -> Request {
        if let Some(request) = self.queued.pop() {
            return request;
        }
        let known = Known {
            revision: model.revision(),
            compacted: model.compacted(),
            leases: model.leases(),
        };
        match self.rng.random_range(0..1000) {
            0..300 => Request::Put(self.put(&known)),
            300..520 => Request::Range(self.range(&known)),
            520..600 => Request::Delete(self.delete()),
            600..880 => Request::Txn(self.txn(&known)),
            880..900 => Request::Compact(self.compact(&known)),
            900..935 => Request::Grant(self.grant(&known)),
            935..955 => Request::Revoke(pb::LeaseRevokeRequest { id: self.lease(&known) }),
            955..975 => Request::KeepAlive(pb::LeaseKeepAliveRequest { id: self.lease(&known) }),
            975..992 => {
                let keys = self.rng.random();
                Request::TimeToLive(pb::LeaseTimeToLiveRequest {
                    id: self.lease(&known),
                    keys,
                })
            }
            _ => Request::Leases(pb::LeaseLeasesRequest {}),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    fn key(&mut self) -> Bytes {
        if self.rng.random_ratio(1, 200) {
            return Bytes::new();
        }
        Bytes::from_static(KEYS.choose(&mut self.rng).expect("there are keys"))
    }

    /// None, "all from here", the end of a prefix, the next key, or any key, before or after.
    fn end(&mut self, key: &Bytes) -> Bytes {
        match self.rng.random_range(0..10) {
            0..4 => Bytes::new(),
            4 => Bytes::from_static(b"\0"),
            5..7 => prefix_end(key),
            7 => Bytes::from([&key[..], &[0]].concat()),
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Bytes {
        Bytes::from_static(VALUES.choose(&mut self.rng).expect("there are values"))
    }

    fn revision(&mut self, known: &Known) -> i64 {
        let around = self.rng.random_range(-3..=2);
        match self.rng.random_range(0..10) {
            0..3 => known.revision + around,
            3..5 => known.compacted + around,
            5..9 => self
                .rng
                .random_range(known.compacted.min(known.revision)..=known.revision),
            _ => self.rng.random_range(-5..5),
        }
    }

    fn compact(&mut self, known: &Known) -> pb::CompactionRequest {
        let near = known.compacted + (known.revision - known.compacted) / 4;
        let revision = match self.rng.random_range(0..8) {
            0 => self.revision(known),
            1 => known.revision,
            2 => known.revision + 1,
            _ => near,
        };
        pb::CompactionRequest {
            revision,
            physical: self.rng.random(),
        }
    }

    fn lease(&mut self, known: &Known) -> i64 {
        match known.leases.choose(&mut self.rng) {
            Some(id) if self.rng.random_ratio(9, 10) => *id,
            _ => self.rng.random_range(-2..3),
        }
    }

    fn grant(&mut self, known: &Known) -> pb::LeaseGrantRequest {
        let id = match self.rng.random_range(0..10) {
            0 => 0,
            1 => self.lease(known),
            _ => {
                self.next_lease += 1;
                if self.rng.random_ratio(1, 4) {
                    -self.next_lease
                } else {
                    self.next_lease
                }
            }
        };
        let ttl = match self.rng.random_range(0..12) {
            0 if id > 1_000 && !known.leases.contains(&id) => {
                // Raised to the shortest there is, and gone before it runs out.
                self.queued.push(Request::Revoke(pb::LeaseRevokeRequest { id }));
                self.rng.random_range(-5..2)
            }
            1 => 9_000_000_000,
            2 => 9_000_000_001,
            _ => self.rng.random_range(100_000..1_000_000),
        };
        pb::LeaseGrantRequest { ttl, id }
    }
}

/// The first key after all that begin with `prefix`; `\0`, "all from here", if there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bytes::from(end);
        }
    }
    Bytes::from_static(b"\0")
}
