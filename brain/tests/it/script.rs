//! Random requests: few keys, awkward ones; revisions around the current and the compacted one; what is wrong in every way.
//!
//! The same seed gives the same script, whatever the target answers, unless it answers wrongly.

mod run;

use prost::Message;
use rand::RngExt as _;
use testkit::requests::{KnownState, RandomRequests};

use crate::model::Model;
use crate::wire::{Request, pb};

pub(crate) use run::{Run, run};

/// An endless script.
pub(crate) struct Script {
    random: RandomRequests,
    next_lease: i64,
    /// Requests that must follow the last one at once.
    queued: Vec<Request>,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: RandomRequests::new(seed),
            next_lease: 1_000,
            queued: Vec::new(),
        }
    }

    /// The next request for a store in the state of `model`.
    pub(crate) fn next(&mut self, model: &Model) -> Request {
        if let Some(request) = self.queued.pop() {
            return request;
        }
        self.random.known = KnownState {
            revision: model.revision(),
            compacted: model.compacted(),
            leases: model.leases(),
        };
        let random = &mut self.random;
        match random.rng.random_range(0..1000) {
            0..300 => Request::Put(ours(&random.put())),
            300..520 => Request::Range(ours(&random.range())),
            520..600 => Request::Delete(ours(&random.delete_range())),
            600..880 => Request::Txn(ours(&random.txn())),
            880..900 => Request::Compact(self.compact()),
            900..935 => Request::Grant(self.grant()),
            935..955 => Request::Revoke(pb::LeaseRevokeRequest { id: random.lease() }),
            955..975 => Request::KeepAlive(pb::LeaseKeepAliveRequest { id: random.lease() }),
            975..992 => {
                let keys = random.rng.random();
                Request::TimeToLive(pb::LeaseTimeToLiveRequest {
                    id: random.lease(),
                    keys,
                })
            }
            _ => Request::Leases(pb::LeaseLeasesRequest {}),
        }
    }

    fn compact(&mut self) -> pb::CompactionRequest {
        let known = &self.random.known;
        let (near, now) = (known.compacted + (known.revision - known.compacted) / 4, known.revision);
        let revision = match self.random.rng.random_range(0..8) {
            0 => self.random.some_revision(),
            1 => now,
            2 => now + 1,
            _ => near,
        };
        pb::CompactionRequest {
            revision,
            physical: self.random.rng.random(),
        }
    }

    fn grant(&mut self) -> pb::LeaseGrantRequest {
        let id = match self.random.rng.random_range(0..10) {
            0 => 0,
            1 => self.random.lease(),
            _ => {
                self.next_lease += 1;
                if self.random.rng.random_ratio(1, 4) {
                    -self.next_lease
                } else {
                    self.next_lease
                }
            }
        };
        let ttl = match self.random.rng.random_range(0..12) {
            0 if id > 1_000 && !self.random.known.leases.contains(&id) => {
                // Raised to the shortest there is, and gone before it runs out.
                self.queued.push(Request::Revoke(pb::LeaseRevokeRequest { id }));
                self.random.rng.random_range(-5..2)
            }
            1 => 9_000_000_000,
            2 => 9_000_000_001,
            _ => self.random.rng.random_range(100_000..1_000_000),
        };
        pb::LeaseGrantRequest { ttl, id }
    }
}

/// The same message as the brain has it.
fn ours<T: Message + Default>(request: &impl Message) -> T {
    T::decode(&request.encode_to_vec()[..]).expect("both are etcd's messages")
}
