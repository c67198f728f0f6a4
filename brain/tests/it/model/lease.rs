//! Leases without a clock: which keys hang on which.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tonic::Code;

use super::{Draft, Model, header, refused};
use crate::wire::{Answer, Refusal, Response, pb};

/// Shorter ones are raised to this many seconds, with etcd's default election timeout.
const MIN_TTL: i64 = 2;
const MAX_TTL: i64 = 9_000_000_000;

/// All leases, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases(BTreeMap<i64, Lease>);

#[derive(Clone, Debug, Default)]
struct Lease {
    ttl: i64,
    keys: BTreeSet<Bytes>,
}

impl Leases {
    pub(super) fn ids(&self) -> Vec<i64> {
        self.0.keys().copied().collect()
    }

    /// Lease 0 is none.
    pub(super) fn must_exist(&self, id: i64) -> Result<(), Refusal> {
        if id == 0 || self.0.contains_key(&id) {
            Ok(())
        } else {
            Err(not_found())
        }
    }

    /// A key hangs on one lease at most.
    pub(super) fn attach(&mut self, key: &Bytes, id: i64) {
        for lease in self.0.values_mut() {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.0.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }
}

impl Draft<'_> {
    pub(super) fn revoke(&mut self, id: i64) -> Result<pb::LeaseRevokeResponse, Refusal> {
        let lease = self.leases.0.get(&id).cloned().ok_or_else(not_found)?;
        for key in &lease.keys {
            let kv = self
                .keys
                .get(key)
                .cloned()
                .expect("only keys that exist hang on a lease");
            self.remove(&kv);
        }
        self.leases.0.remove(&id);
        Ok(pb::LeaseRevokeResponse {
            header: header(self.revision()),
        })
    }
}

impl Model {
    /// The id must be given: the model cannot know which one a server would choose.
    pub(super) fn grant(&mut self, grant: &pb::LeaseGrantRequest) -> Answer {
        assert_ne!(grant.id, 0, "the model cannot choose ids");
        if grant.ttl > MAX_TTL {
            return Err(refused(Code::OutOfRange, "too large lease TTL"));
        }
        if self.leases.0.contains_key(&grant.id) {
            return Err(refused(Code::FailedPrecondition, "lease already exists"));
        }
        let ttl = grant.ttl.max(MIN_TTL);
        self.leases.0.insert(
            grant.id,
            Lease {
                ttl,
                keys: BTreeSet::new(),
            },
        );
        let header = header(self.revision());
        Ok(Response::Grant(pb::LeaseGrantResponse {
            header,
            id: grant.id,
            ttl,
            error: String::new(),
        }))
    }

    pub(super) fn keep_alive(&self, ask: &pb::LeaseKeepAliveRequest) -> Response {
        let ttl = self.leases.0.get(&ask.id).map_or(0, |lease| lease.ttl);
        Response::KeepAlive(pb::LeaseKeepAliveResponse {
            header: header(self.revision()),
            id: ask.id,
            ttl,
        })
    }

    /// Answers the whole TTL as the remaining one.
    pub(super) fn time_to_live(&self, ask: &pb::LeaseTimeToLiveRequest) -> Response {
        let lease = self.leases.0.get(&ask.id);
        Response::TimeToLive(pb::LeaseTimeToLiveResponse {
            header: header(self.revision()),
            id: ask.id,
            ttl: lease.map_or(-1, |lease| lease.ttl),
            granted_ttl: lease.map_or(0, |lease| lease.ttl),
            keys: lease
                .filter(|_| ask.keys)
                .map(|lease| lease.keys.iter().cloned().collect())
                .unwrap_or_default(),
        })
    }

    pub(super) fn list_leases(&self) -> Response {
        let leases = self.leases.ids().into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Response::Leases(pb::LeaseLeasesResponse {
            header: header(self.revision()),
            leases,
        })
    }
}

fn not_found() -> Refusal {
    refused(Code::NotFound, "requested lease not found")
}
