//! Operations of a script.

use super::{Known, Script};
use crate::wire::pb;
use pb::compare::TargetUnion;
use pb::request_op::Request as Op;
use rand::RngExt;

/// Txns nest at most so deep, not counting the outer one.
const DEPTH: u32 = 3;

impl Script {
    pub(super) fn put(&mut self, known: &Known) -> pb::PutRequest {
        let ignore_value = self.chance(8);
        let ignore_lease = self.chance(8);
        let mut put = pb::PutRequest {
            key: self.key(),
            value: self.value(),
            lease: if self.chance(25) { self.lease(known) } else { 0 },
            prev_kv: self.rng.random(),
            ignore_value,
            ignore_lease,
        };
        // Mostly well-formed.
        if ignore_value && self.chance(80) {
            put.value.clear();
        }
        if ignore_lease && self.chance(80) {
            put.lease = 0;
        }
        put
    }

    pub(super) fn delete(&mut self) -> pb::DeleteRangeRequest {
        let key = self.key();
        let range_end = self.end(&key);
        pb::DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.rng.random(),
        }
    }

    pub(super) fn range(&mut self, known: &Known) -> pb::RangeRequest {
        let key = self.key();
        let mut range = pb::RangeRequest {
            range_end: self.end(&key),
            key,
            ..pb::RangeRequest::default()
        };
        range.serializable = self.chance(20);
        range.keys_only = self.chance(15);
        range.count_only = self.chance(10);
        if self.chance(40) {
            range.revision = self.revision(known);
        }
        if self.chance(50) {
            range.limit = match self.rng.random_range(0..20) {
                0 => -1,
                1 => i64::MAX,
                _ => self.rng.random_range(0..8),
            };
        }
        if self.chance(40) {
            range.sort_target = self.rng.random_range(0..5);
            range.sort_order = self.rng.random_range(0..3);
        }
        if self.chance(1) {
            range.sort_target = self.rng.random_range(-1..7);
            range.sort_order = self.rng.random_range(-1..5);
        }
        for bound in [
            &mut range.min_mod_revision,
            &mut range.max_mod_revision,
            &mut range.min_create_revision,
            &mut range.max_create_revision,
        ] {
            if self.chance(10) {
                *bound = self.revision(known);
            }
        }
        range
    }

    pub(super) fn txn(&mut self, known: &Known) -> pb::TxnRequest {
        if self.rng.random_ratio(1, 100) {
            return self.long_txn();
        }
        let txn = self.level(known, DEPTH);
        if would_stop_etcd(&txn) { self.txn(known) } else { txn }
    }

    fn level(&mut self, known: &Known, depth: u32) -> pb::TxnRequest {
        let compares = self.rng.random_range(0..3);
        let (successes, failures) = (self.rng.random_range(0..4), self.rng.random_range(0..4));
        pb::TxnRequest {
            compare: (0..compares).map(|_| self.compare(known)).collect(),
            success: (0..successes).map(|_| self.op(known, depth)).collect(),
            failure: (0..failures).map(|_| self.op(known, depth)).collect(),
        }
    }

    fn op(&mut self, known: &Known, depth: u32) -> pb::RequestOp {
        let request = match self.rng.random_range(0..100) {
            0..40 => Some(Op::RequestPut(self.put(known))),
            40..65 => Some(Op::RequestRange(self.range(known))),
            65..80 => Some(Op::RequestDeleteRange(self.delete())),
            80..99 if depth > 0 => Some(Op::RequestTxn(self.level(known, depth - 1))),
            80..99 => Some(Op::RequestRange(self.range(known))),
            _ => self.chance(70).then(|| Op::RequestPut(self.put(known))),
        };
        pb::RequestOp { request }
    }

    fn compare(&mut self, known: &Known) -> pb::Compare {
        let key = self.key();
        let range_end = if self.chance(30) {
            self.end(&key)
        } else {
            bytes::Bytes::new()
        };
        let number = match self.rng.random_range(0..4) {
            0 => 0,
            1 => self.rng.random_range(0..5),
            _ => self.revision(known),
        };
        let mut target = self.rng.random_range(0..5);
        let target_union = match target {
            0 => TargetUnion::Version(self.rng.random_range(0..4)),
            1 => TargetUnion::CreateRevision(number),
            2 => TargetUnion::ModRevision(number),
            3 => TargetUnion::Value(self.value()),
            _ => TargetUnion::Lease(self.lease(known)),
        };
        // The wrong operand, none, or a target and a result that do not exist.
        let mut result = self.rng.random_range(0..4);
        match self.rng.random_range(0..100) {
            0 => target = self.rng.random_range(-1..7),
            1 => result = self.rng.random_range(-1..6),
            2 => {
                return pb::Compare {
                    result,
                    target,
                    key,
                    range_end,
                    target_union: None,
                };
            }
            _ => {}
        }
        pb::Compare {
            result,
            target,
            key,
            range_end,
            target_union: Some(target_union),
        }
    }

    /// Around the limit on operations, which nested ones share.
    fn long_txn(&mut self) -> pb::TxnRequest {
        let read = || pb::RangeRequest {
            key: bytes::Bytes::from_static(b"a"),
            ..pb::RangeRequest::default()
        };
        let op = || pb::RequestOp {
            request: Some(Op::RequestRange(read())),
        };
        let ops = |n: usize| (0..n).map(|_| op()).collect::<Vec<_>>();
        let outer = self.rng.random_range(1..130);
        let inner = (129 - usize::min(outer, 128)).saturating_sub(self.rng.random_range(0..3));
        let nested = pb::TxnRequest {
            success: ops(inner),
            ..pb::TxnRequest::default()
        };
        let mut success = ops(outer - 1);
        success.push(pb::RequestOp {
            request: Some(Op::RequestTxn(nested)),
        });
        pb::TxnRequest {
            success,
            ..pb::TxnRequest::default()
        }
    }
}

/// Etcd 3.6 panics if a put within a txn relies on a key that the same txn has deleted before. It refuses that in general, but not if
/// the deletion reaches to the end of the key space.
fn would_stop_etcd(txn: &pb::TxnRequest) -> bool {
    fn walk(txn: &pb::TxnRequest, relies: &mut bool, deletes: &mut bool) {
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(Op::RequestPut(put)) => *relies |= put.ignore_value || put.ignore_lease,
                Some(Op::RequestDeleteRange(delete)) => *deletes |= delete.range_end == b"\0"[..],
                Some(Op::RequestTxn(nested)) => walk(nested, relies, deletes),
                _ => {}
            }
        }
    }
    let (mut relies, mut deletes) = (false, false);
    walk(txn, &mut relies, &mut deletes);
    relies && deletes
}
