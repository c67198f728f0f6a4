//! Transactions: any compares, branches, nesting, and what must be refused.

use bytes::Bytes;
use pb::compare::TargetUnion;
use pb::request_op::Request as Op;
use rand::RngExt as _;
use wire::etcdserverpb as pb;

use super::{NONE, RandomRequests, ZERO};

const MAX_TXN_DEPTH: u32 = 3;
const TOO_MANY_OPS: usize = 130;

impl RandomRequests {
    /// A transaction that etcd survives.
    pub fn txn(&mut self) -> pb::TxnRequest {
        match self.rng.random_range(0..100) {
            0..=29 => self.kubernetes(),
            30..=31 => self.too_many(),
            _ => tamed(self.any_txn(0)),
        }
    }

    /// As kube-apiserver writes: compare mod revision, then put or delete, else get.
    fn kubernetes(&mut self) -> pb::TxnRequest {
        let key = self.key();
        let mod_revision = if self.chance(40) { 0 } else { self.some_revision() };
        let target_union = Some(TargetUnion::ModRevision(mod_revision));
        let compare = pb::Compare {
            result: 0,
            target: 2,
            key: key.clone(),
            target_union,
            range_end: NONE,
        };
        let write = if self.chance(70) {
            let lease = if self.chance(20) { self.lease() } else { 0 };
            Op::RequestPut(pb::PutRequest {
                key: key.clone(),
                value: self.value(),
                lease,
                ..pb::PutRequest::default()
            })
        } else {
            Op::RequestDeleteRange(pb::DeleteRangeRequest {
                key: key.clone(),
                ..pb::DeleteRangeRequest::default()
            })
        };
        let read = Op::RequestRange(pb::RangeRequest {
            key,
            ..pb::RangeRequest::default()
        });
        pb::TxnRequest {
            compare: vec![compare],
            success: vec![op(write)],
            failure: vec![op(read)],
        }
    }

    fn any_txn(&mut self, depth: u32) -> pb::TxnRequest {
        let compares = self.pick(&[0, 0, 1, 1, 2, 3]);
        pb::TxnRequest {
            compare: (0..compares).map(|_| self.compare()).collect(),
            success: self.ops(depth),
            failure: self.ops(depth),
        }
    }

    fn ops(&mut self, depth: u32) -> Vec<pb::RequestOp> {
        let count = self.pick(&[0, 1, 1, 2, 2, 3, 5]);
        (0..count).map(|_| self.op(depth)).collect()
    }

    fn op(&mut self, depth: u32) -> pb::RequestOp {
        let request = match self.rng.random_range(0..100) {
            0..=29 => {
                let mut range = self.range();
                if self.chance(70) {
                    range.revision = 0; // else hardly any transaction would pass
                }
                Op::RequestRange(range)
            }
            30..=69 => {
                let mut put = self.put();
                if self.chance(70) {
                    put.lease = 0;
                }
                Op::RequestPut(put)
            }
            70..=84 => Op::RequestDeleteRange(self.delete_range()),
            85..=98 if depth < MAX_TXN_DEPTH => Op::RequestTxn(self.any_txn(depth + 1)),
            85..=98 => Op::RequestPut(self.put()),
            _ => return pb::RequestOp { request: None },
        };
        op(request)
    }

    fn compare(&mut self) -> pb::Compare {
        let (key, range_end) = if self.chance(75) {
            (self.key(), NONE)
        } else {
            self.span()
        };
        let target = self.pick(&[0, 1, 2, 3, 4]);
        // sometimes what is given is not what is asked for
        let given = if self.chance(95) {
            target
        } else {
            self.pick(&[0, 1, 2, 3, 4])
        };
        let target_union = match given {
            0 => TargetUnion::Version(self.pick(&[0, 0, 1, 2, 3, -1])),
            1 => TargetUnion::CreateRevision(self.compared_revision()),
            2 => TargetUnion::ModRevision(self.compared_revision()),
            3 => TargetUnion::Value(self.value()),
            _ => TargetUnion::Lease(self.lease()),
        };
        let target_union = Some(target_union).filter(|_| self.chance(98));
        let (result, target) = match self.rng.random_range(0..50) {
            0 => (self.pick(&[4, -1]), target),
            1 => (0, self.pick(&[5, -1])),
            // which of two leases has the greater id depends on the ids that the servers chose
            _ if target == 4 => (self.pick(&[0, 3]), target),
            _ => (self.pick(&[0, 0, 1, 2, 3]), target),
        };
        pb::Compare {
            result,
            target,
            key,
            target_union,
            range_end,
        }
    }

    fn compared_revision(&mut self) -> i64 {
        if self.chance(30) { 0 } else { self.some_revision() }
    }

    fn too_many(&mut self) -> pb::TxnRequest {
        let count = self.pick(&[TOO_MANY_OPS - 2, TOO_MANY_OPS - 1, TOO_MANY_OPS]);
        let key = |n: usize| Bytes::from(format!("many/{n}"));
        let get = |n| {
            op(Op::RequestRange(pb::RangeRequest {
                key: key(n),
                ..pb::RangeRequest::default()
            }))
        };
        let ops: Vec<_> = (0..count).map(get).collect();
        let half = TOO_MANY_OPS / 2;
        match self.rng.random_range(0..4) {
            0 => pb::TxnRequest {
                success: ops,
                ..pb::TxnRequest::default()
            },
            1 => pb::TxnRequest {
                failure: ops,
                ..pb::TxnRequest::default()
            },
            2 => pb::TxnRequest {
                compare: (0..count)
                    .map(|n| pb::Compare {
                        key: key(n),
                        ..pb::Compare::default()
                    })
                    .collect(),
                ..pb::TxnRequest::default()
            },
            _ => {
                let inner = pb::TxnRequest {
                    success: ops[..half].to_vec(),
                    ..pb::TxnRequest::default()
                };
                let mut outer = ops[..half - self.rng.random_range(0..4_usize)].to_vec();
                outer.push(op(Op::RequestTxn(inner)));
                pb::TxnRequest {
                    success: outer,
                    ..pb::TxnRequest::default()
                }
            }
        }
    }
}

/// A deletion without an end is not seen to meet a put in the same transaction. If that put keeps a value or lease that
/// it then does not find, etcd ends itself: such deletions get an end.
fn tamed(mut txn: pb::TxnRequest) -> pb::TxnRequest {
    let keeps = |op: &Op| matches!(op, Op::RequestPut(put) if put.ignore_lease || put.ignore_value);
    if any(&txn, &keeps) {
        visit(&mut txn, &mut |op| {
            if let Op::RequestDeleteRange(delete) = op
                && is_endless(delete)
            {
                delete.range_end = NONE;
            }
        });
    }
    txn
}

/// True if the transaction may put keys that it deletes: etcd does not compare its puts with a deletion without an end.
#[must_use]
pub fn puts_what_it_deletes(txn: &pb::TxnRequest) -> bool {
    let deletes = |op: &Op| matches!(op, Op::RequestDeleteRange(delete) if is_endless(delete));
    any(txn, &deletes) && any(txn, &|op| matches!(op, Op::RequestPut(_)))
}

fn is_endless(delete: &pb::DeleteRangeRequest) -> bool {
    delete.range_end == ZERO
}

fn any(txn: &pb::TxnRequest, holds: &dyn Fn(&Op) -> bool) -> bool {
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.any(|op| match &op.request {
        Some(Op::RequestTxn(nested)) => any(nested, holds),
        Some(op) => holds(op),
        None => false,
    })
}

fn visit(txn: &mut pb::TxnRequest, each: &mut dyn FnMut(&mut Op)) {
    for op in txn
        .success
        .iter_mut()
        .chain(&mut txn.failure)
        .filter_map(|op| op.request.as_mut())
    {
        each(op);
        if let Op::RequestTxn(inner) = op {
            visit(inner, each);
        }
    }
}

fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_etcd_is_not_asked() {
        let mut keeping = 0;
        for seed in 0..20 {
            let mut requests = RandomRequests::new(seed);
            for _ in 0..200 {
                let (mut keeps, mut endless) = (false, false);
                visit(&mut tamed(requests.any_txn(0)), &mut |op| match op {
                    Op::RequestPut(put) => keeps |= put.ignore_lease || put.ignore_value,
                    Op::RequestDeleteRange(delete) => endless |= is_endless(delete),
                    _ => {}
                });
                keeping += usize::from(keeps);
                assert!(!(keeps && endless), "seed {seed}");
            }
        }
        assert!(keeping > 100, "{keeping}");
    }
}
