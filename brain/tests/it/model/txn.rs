//! Transactions: every compare sees the state before, every operation what the ones before it did.

use std::cmp::Ordering;

use super::range::select;
use super::{Draft, compacted, future_revision, header, key_not_found};
use crate::wire::{KeyValue, Refusal, pb};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as Op;
use pb::response_op::Response as Done;

impl Draft<'_> {
    pub(super) fn txn_alone(&mut self, txn: &pb::TxnRequest) -> Result<pb::TxnResponse, Refusal> {
        self.check(txn)?;
        let mut response = self.txn(txn)?;
        response.header = header(self.revision());
        Ok(response)
    }

    /// Checks the branches that will run, against the state before all of it.
    fn check(&self, txn: &pb::TxnRequest) -> Result<(), Refusal> {
        for op in self.branch(txn).1 {
            match &op.request {
                Some(Op::RequestRange(range)) => match range.revision {
                    0 => {}
                    revision if revision > self.before.revision() => return Err(future_revision()),
                    // Unlike alone, a range within a txn may not ask for "latest" by a negative revision, unless none was compacted.
                    revision if revision < self.before.compacted => return Err(compacted()),
                    _ => {}
                },
                Some(Op::RequestPut(put)) => {
                    let exists = self.before.keys().contains_key(&put.key);
                    if (put.ignore_value || put.ignore_lease) && !exists {
                        return Err(key_not_found());
                    }
                    self.before.leases.must_exist(put.lease)?;
                }
                Some(Op::RequestTxn(nested)) => self.check(nested)?,
                Some(Op::RequestDeleteRange(_)) | None => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &pb::TxnRequest) -> Result<pb::TxnResponse, Refusal> {
        let (succeeded, ops) = self.branch(txn);
        let mut responses = Vec::new();
        for op in ops {
            let done = match &op.request {
                Some(Op::RequestRange(range)) => Some(Done::ResponseRange(self.range(range)?)),
                Some(Op::RequestPut(put)) => Some(Done::ResponsePut(self.put(put)?)),
                Some(Op::RequestDeleteRange(delete)) => Some(Done::ResponseDeleteRange(self.delete(delete))),
                Some(Op::RequestTxn(nested)) => Some(Done::ResponseTxn(self.txn(nested)?)),
                None => None,
            };
            responses.push(pb::ResponseOp { response: done });
        }
        // The header of a nested txn is present, and empty.
        Ok(pb::TxnResponse {
            header: header(0),
            succeeded,
            responses,
        })
    }

    fn branch<'t>(&self, txn: &'t pb::TxnRequest) -> (bool, &'t [pb::RequestOp]) {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        (succeeded, if succeeded { &txn.success } else { &txn.failure })
    }

    fn holds(&self, compare: &pb::Compare) -> bool {
        let kvs = select(self.before.keys(), &compare.key, &compare.range_end);
        if !kvs.is_empty() {
            return kvs.iter().all(|kv| holds_for(compare, kv));
        }
        // A key that is not there compares like zeros, except that it has no value at all.
        compare.target != CompareTarget::Value as i32 && holds_for(compare, &KeyValue::default())
    }
}

/// An operand of another target than the one compared counts as zero; a target that does not exist as equal.
fn holds_for(compare: &pb::Compare, kv: &KeyValue) -> bool {
    let union = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => kv.version.cmp(&match union {
            Some(TargetUnion::Version(version)) => *version,
            _ => 0,
        }),
        Ok(CompareTarget::Create) => kv.create_revision.cmp(&match union {
            Some(TargetUnion::CreateRevision(revision)) => *revision,
            _ => 0,
        }),
        Ok(CompareTarget::Mod) => kv.mod_revision.cmp(&match union {
            Some(TargetUnion::ModRevision(revision)) => *revision,
            _ => 0,
        }),
        Ok(CompareTarget::Lease) => kv.lease.cmp(&match union {
            Some(TargetUnion::Lease(lease)) => *lease,
            _ => 0,
        }),
        Ok(CompareTarget::Value) => match union {
            Some(TargetUnion::Value(value)) => kv.value.cmp(value),
            _ => kv.value[..].cmp(&[]),
        },
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order == Ordering::Equal,
        Ok(CompareResult::NotEqual) => order != Ordering::Equal,
        Ok(CompareResult::Greater) => order == Ordering::Greater,
        Ok(CompareResult::Less) => order == Ordering::Less,
        Err(_) => true,
    }
}
