//! Locks and elections: two candidates in turn, in a contest of a name that no other has.
//!
//! Invariant: nothing comes between the steps of a contest, so that no candidate waits for ever.

use bytes::Bytes;
use wire::etcdserverpb as pb;
use wire::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use wire::v3lockpb::{LockRequest, UnlockRequest};

use super::Script;
use crate::request::Request;

/// Leases of the candidates. The keys that contests make end with them, so the servers cannot choose.
const CANDIDATES: [i64; 2] = [0x0a11, 0x0b0b];
const UNKNOWN_LEASE: i64 = 0x0404;
const LEASE_TTL: i64 = 3_600;

impl Script {
    /// Queues a contest.
    pub(super) fn contest(&mut self) -> Request {
        self.contests += 1;
        for id in CANDIDATES {
            self.push(Request::Grant(pb::LeaseGrantRequest { ttl: LEASE_TTL, id }, 0));
        }
        if self.random.chance(50) {
            self.lock_in_turn();
        } else {
            self.lead_in_turn();
        }
        for id in CANDIDATES {
            self.push(Request::Revoke(pb::LeaseRevokeRequest { id }));
        }
        Request::Lock(LockRequest {
            name: self.contest_name(),
            lease: UNKNOWN_LEASE,
        })
    }

    /// A name below the keys of other requests half of the time.
    fn contest_name(&self) -> Bytes {
        let prefix = if self.contests.is_multiple_of(2) {
            "ab"
        } else {
            "contest/"
        };
        format!("{prefix}{}", self.contests).into()
    }

    fn lock_in_turn(&mut self) {
        let name = self.contest_name();
        let [one, other] = CANDIDATES;
        let lock = |lease| LockRequest {
            name: name.clone(),
            lease,
        };
        let unlock = |lease| UnlockRequest { key: key(&name, lease) };
        self.push_any(Request::Lock(lock(one)));
        if self.random.chance(30) {
            self.push_any(Request::Lock(lock(one))); // who has it gets it again
        }
        if self.random.chance(70) {
            self.push(Request::LockBehind(lock(other), unlock(one)));
            self.push_any(Request::Unlock(unlock(other)));
        }
        if self.random.chance(40) {
            self.push_any(Request::Unlock(unlock(one)));
        }
    }

    fn lead_in_turn(&mut self) {
        let name = self.contest_name();
        let [one, other] = CANDIDATES;
        let campaign = |lease, value| CampaignRequest {
            name: name.clone(),
            lease,
            value: Bytes::from_static(value),
        };
        let leader = |lease| {
            // The client puts in the revision that the campaign gave.
            Some(LeaderKey {
                name: name.clone(),
                key: key(&name, lease),
                rev: 0,
                lease,
            })
        };
        let resign = |lease| ResignRequest { leader: leader(lease) };
        let proclaim = |lease| {
            Request::Proclaim(ProclaimRequest {
                leader: leader(lease),
                value: Bytes::from_static(b"later"),
            })
        };
        let who = || LeaderRequest { name: name.clone() };
        if self.random.chance(30) {
            self.push_any(Request::Leader(who()));
        }
        self.push_any(Request::Campaign(campaign(one, b"one")));
        self.push_any(proclaim(one));
        if self.random.chance(30) {
            self.push_any(Request::Campaign(campaign(one, b"again")));
        }
        self.push_any(Request::Leader(who()));
        self.push_any(Request::Observe(who()));
        self.push(Request::CampaignBehind(campaign(other, b"other"), resign(one)));
        self.push_any(Request::Leader(who()));
        if self.random.chance(50) {
            self.push_any(proclaim(one)); // leads no longer
        }
        self.push_any(Request::Resign(resign(other)));
        if self.random.chance(50) {
            self.push_any(Request::Resign(resign(one)));
        }
        self.push_any(Request::Leader(who()));
    }

    /// As [`Script::push`], now and then over the gateway.
    fn push_any(&mut self, request: Request) {
        self.push(request);
        let gateway = self.random.chance(25);
        if let Some(step) = self.queue.back_mut() {
            step.gateway = gateway;
        }
    }
}

/// The key of a candidate.
fn key(name: &[u8], lease: i64) -> Bytes {
    [name, format!("/{lease:x}").as_bytes()].concat().into()
}
